// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors_internal.h"
#include "io/utf8_internal.h"

// ---- From tensors to a header ----

// Larger elements first: then every tensor begins at a multiple of its
// element's size.
static int compare_sources(const void* a, const void* b) {
  const choir__safetensors_entry_t* x = a;
  const choir__safetensors_entry_t* y = b;
  const size_t x_bytes = choir_dtype_bytes(x->entry.dtype);
  const size_t y_bytes = choir_dtype_bytes(y->entry.dtype);
  if (x_bytes != y_bytes) return x_bytes > y_bytes ? -1 : 1;
  return x->source < y->source ? -1 : 1;
}

static int compare_names(const void* a, const void* b, void* context) {
  const choir__safetensors_entry_t* entries = context;
  return strcmp(entries[*(const size_t*)a].entry.name,
                entries[*(const size_t*)b].entry.name);
}

static int compare_keys(const void* a, const void* b) {
  return strcmp(((const choir_metadata_t*)a)->key,
                ((const choir_metadata_t*)b)->key);
}

// `what`: "tensor 3" and the like.
static choir_status_t check_name(const char* name, const char* what,
                                 size_t index) {
  if (!name || !*name || !choir__utf8_is_valid(name, strlen(name)) ||
      strcmp(name, CHOIR__SAFETENSORS_METADATA) == 0) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s %zu is called '%s'; UTF-8, not empty and not "
                       "'" CHOIR__SAFETENSORS_METADATA "' is needed",
                       what, index, name ? name : "(null)");
  }
  return NULL;
}

static choir_status_t add_tensors(const choir_checkpoint_entry_t* tensors,
                                  choir__safetensors_t* header) {
  const size_t count = header->count;
  uint64_t place = 0;
  for (size_t i = 0; i < count; ++i) {
    CHOIR_TRY(check_name(tensors[i].name, "tensor", i));
    header->entries[i].entry = tensors[i];
    header->entries[i].source = i;
    header->by_name[i] = i;
  }
  qsort(header->entries, count, sizeof *header->entries, compare_sources);
  for (size_t i = 0; i < count; ++i) {
    header->entries[i].begin = place;
    if (__builtin_add_overflow(place, header->entries[i].entry.bytes, &place)) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "the tensors have more than 2^64 bytes");
    }
  }
  qsort_r(header->by_name, count, sizeof(size_t), compare_names,
          header->entries);
  for (size_t i = 1; i < count; ++i) {
    if (compare_names(&header->by_name[i - 1], &header->by_name[i],
                      header->entries) == 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "two tensors are called '%s'; names must be unique",
                         header->entries[header->by_name[i]].entry.name);
    }
  }
  return NULL;
}

static choir_status_t add_metadata(const choir_metadata_t* metadata,
                                   choir__safetensors_t* header) {
  const size_t count = header->metadata_count;
  for (size_t i = 0; i < count; ++i) {
    CHOIR_TRY(check_name(metadata[i].key, "metadata", i));
    const char* value = metadata[i].value;
    if (!value || !choir__utf8_is_valid(value, strlen(value))) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "metadata '%s' is %s; UTF-8 is needed",
                         metadata[i].key, value ? "no UTF-8" : "NULL");
    }
    header->metadata[i] = metadata[i];
  }
  qsort(header->metadata, count, sizeof(choir_metadata_t), compare_keys);
  for (size_t i = 1; i < count; ++i) {
    if (compare_keys(&header->metadata[i - 1], &header->metadata[i]) == 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "metadata '%s' is given twice; keys must be unique",
                         header->metadata[i].key);
    }
  }
  return NULL;
}

static choir_status_t build(const choir_checkpoint_entry_t* tensors,
                            const choir_metadata_t* metadata,
                            choir__safetensors_t* header) {
  static const char what[] = "the header of a checkpoint";
  void* array;
  if (header->count > 0) {
    CHOIR_TRY(choir_allocate(header->allocator,
                             header->count * sizeof *header->entries, what,
                             &array));
    header->entries = array;
    CHOIR_TRY(choir_allocate(header->allocator, header->count * sizeof(size_t),
                             what, &array));
    header->by_name = array;
    CHOIR_TRY(add_tensors(tensors, header));
  }
  if (header->metadata_count > 0) {
    CHOIR_TRY(choir_allocate(header->allocator,
                             header->metadata_count * sizeof(choir_metadata_t),
                             what, &array));
    header->metadata = array;
    CHOIR_TRY(add_metadata(metadata, header));
  }
  return NULL;
}

choir_status_t choir__safetensors_build(choir_allocator_t allocator,
                                        const choir_checkpoint_entry_t* tensors,
                                        size_t tensor_count,
                                        const choir_metadata_t* metadata,
                                        size_t metadata_count,
                                        choir__safetensors_t* out_header) {
  memset(out_header, 0, sizeof *out_header);
  out_header->allocator = allocator;
  out_header->count = tensor_count;
  out_header->metadata_count = metadata_count;
  choir_status_t status = build(tensors, metadata, out_header);
  if (status) choir__safetensors_clear(out_header);
  return status;
}

// ---- From a header to text ----

// Without `text` it only counts.
typedef struct writer_s {
  char* text;
  size_t used;
} writer_t;

static void put(writer_t* writer, const char* bytes, size_t count) {
  if (writer->text) memcpy(writer->text + writer->used, bytes, count);
  writer->used += count;
}

static void put_text(writer_t* writer, const char* text) {
  put(writer, text, strlen(text));
}

static void put_number(writer_t* writer, uint64_t number) {
  char digits[24];
  snprintf(digits, sizeof digits, "%" PRIu64, number);
  put_text(writer, digits);
}

static void put_quoted(writer_t* writer, const char* text) {
  put_text(writer, "\"");
  for (const char* at = text; *at; ++at) {
    if (*at == '"' || *at == '\\') {
      put_text(writer, "\\");
      put(writer, at, 1);
    } else if ((uint8_t)*at < 0x20) {
      char escape[8];
      snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(uint8_t)*at);
      put_text(writer, escape);
    } else {
      put(writer, at, 1);
    }
  }
  put_text(writer, "\"");
}

static void put_header(writer_t* writer, const choir__safetensors_t* header,
                       size_t* out_sum_offset) {
  const char* separator = "";
  put_text(writer, "{");
  if (header->metadata_count > 0) {
    put_text(writer, "\"" CHOIR__SAFETENSORS_METADATA "\":{");
    for (size_t i = 0; i < header->metadata_count; ++i) {
      put_text(writer, separator);
      put_quoted(writer, header->metadata[i].key);
      put_text(writer, ":");
      if (strcmp(header->metadata[i].key, CHOIR__SAFETENSORS_SUM) == 0) {
        *out_sum_offset = writer->used + 1;  // after the quote
      }
      put_quoted(writer, header->metadata[i].value);
      separator = ",";
    }
    put_text(writer, "}");
  }
  for (size_t i = 0; i < header->count; ++i) {
    const choir__safetensors_entry_t* entry = &header->entries[i];
    put_text(writer, separator);
    put_quoted(writer, entry->entry.name);
    put_text(writer, ":{\"dtype\":\"");
    put_text(writer, choir__safetensors_dtype(entry->entry.dtype));
    put_text(writer, "\",\"shape\":[");
    for (int32_t k = 0; k < entry->entry.ndim; ++k) {
      if (k) put_text(writer, ",");
      put_number(writer, (uint64_t)entry->entry.shape[k]);
    }
    put_text(writer, "],\"data_offsets\":[");
    put_number(writer, entry->begin);
    put_text(writer, ",");
    put_number(writer, entry->begin + entry->entry.bytes);
    put_text(writer, "]}");
    separator = ",";
  }
  put_text(writer, "}");
  while (writer->used % 8) put_text(writer, " ");
}

choir_status_t choir__safetensors_print(const choir__safetensors_t* header,
                                        char** out_text, size_t* out_bytes,
                                        size_t* out_sum_offset) {
  *out_text = NULL;
  *out_bytes = 0;
  *out_sum_offset = 0;
  // The 8 bytes of length are counted from the start, which keeps the padding
  // right.
  writer_t writer = {NULL, 8};
  put_header(&writer, header, out_sum_offset);
  const size_t bytes = writer.used;
  if (bytes - 8 > CHOIR__SAFETENSORS_MAX_HEADER) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "names, shapes and metadata make a header of %zu bytes; "
                       "at most %llu are allowed",
                       bytes - 8,
                       (unsigned long long)CHOIR__SAFETENSORS_MAX_HEADER);
  }
  void* block;
  CHOIR_TRY(choir_allocate(header->allocator, bytes,
                           "the header of a checkpoint", &block));
  writer = (writer_t){block, 8};
  for (int k = 0; k < 8; ++k) {
    writer.text[k] = (char)(uint8_t)((uint64_t)(bytes - 8) >> (8 * k));
  }
  put_header(&writer, header, out_sum_offset);
  *out_text = block;
  *out_bytes = bytes;
  return NULL;
}
