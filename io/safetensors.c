// SPDX-License-Identifier: Apache-2.0
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "io/safetensors_internal.h"
#include "io/utf8_internal.h"

// Two passes. The first looks at the bytes only and refuses what would cost
// memory or time out of proportion, or what cJSON takes too lightly: deep
// nesting, more values than a list of tensors can have, characters that JSON
// forbids, and NULs, which would cut names short. The second lets cJSON parse
// and checks what it found.

// {"name": {"shape": [...]}}
#define MAX_DEPTH 3
// The densest header with CHOIR_MAX_NDIM dimensions has one value for 4.6
// bytes.
#define BYTES_PER_VALUE 4
// A double holds whole numbers exactly up to here.
#define MAX_WHOLE 9007199254740992.0

// ---- The first pass ----

static choir_status_t scan(const char* what, const char* text, size_t bytes) {
  if (bytes == 0 || text[0] != '{') {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the %s does not begin with '{'; this is no "
                       "safetensors file",
                       what);
  }
  if (!choir__utf8_is_valid(text, bytes)) {
    return CHOIR_ERROR(INVALID_ARGUMENT, "the %s is not UTF-8", what);
  }
  bool in_text = false;
  int depth = 0;
  size_t values = 1;
  for (size_t i = 0; i < bytes; ++i) {
    const char byte = text[i];
    if (in_text) {
      if ((uint8_t)byte < 0x20) {
        return CHOIR_ERROR(INVALID_ARGUMENT,
                           "the %s has a control character in a text at "
                           "byte %zu",
                           what, i);
      }
      if (byte == '"') in_text = false;
      if (byte == '\\') {
        if (bytes - i > 5 && memcmp(text + i, "\\u0000", 6) == 0) {
          return CHOIR_ERROR(INVALID_ARGUMENT,
                             "the %s has a NUL in a text at byte %zu", what, i);
        }
        ++i;  // what is escaped ends nothing
      }
      continue;
    }
    if (byte == '"') in_text = true;
    if (byte == '{' || byte == '[') {
      ++values;
      if (++depth > MAX_DEPTH) {
        return CHOIR_ERROR(INVALID_ARGUMENT,
                           "the %s nests deeper than %d levels at byte "
                           "%zu",
                           what, MAX_DEPTH, i);
      }
    }
    if (byte == '}' || byte == ']') --depth;
    if (byte == ',') ++values;
    if (byte == '\0') {
      return CHOIR_ERROR(INVALID_ARGUMENT, "the %s has a NUL at byte %zu", what,
                         i);
    }
  }
  if (values > bytes / BYTES_PER_VALUE + 16) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the %s has more than %zu values in %zu bytes, "
                       "which no list of tensors has",
                       what, values - 1, bytes);
  }
  return NULL;
}

// ---- The second pass ----

#define SAFETENSORS_DTYPE_(ENUM, name, bytes, is_float) #ENUM,
static const char* const dtype_names[CHOIR_DTYPE_COUNT] = {
    CHOIR_DTYPE_LIST(SAFETENSORS_DTYPE_)};
#undef SAFETENSORS_DTYPE_

const char* choir__safetensors_dtype(choir_dtype_t dtype) {
  if ((int)dtype < 0 || dtype >= CHOIR_DTYPE_COUNT) return NULL;
  return dtype_names[dtype];
}

static bool whole_number(const cJSON* item, uint64_t* out_value) {
  if (!cJSON_IsNumber(item)) return false;
  const double value = item->valuedouble;
  if (!(value >= 0 && value <= MAX_WHOLE)) return false;
  *out_value = (uint64_t)value;
  return (double)*out_value == value;
}

static choir_status_t malformed(const char* name, const char* why) {
  return CHOIR_ERROR(INVALID_ARGUMENT, "the header's entry '%s' %s", name, why);
}

static choir_status_t parse_shape(const cJSON* item,
                                  choir_checkpoint_entry_t* entry) {
  if (!cJSON_IsArray(item)) {
    return malformed(entry->name, "has a shape that is no list");
  }
  const cJSON* size;
  cJSON_ArrayForEach(size, item) {
    if (entry->ndim == CHOIR_MAX_NDIM) {
      return CHOIR_ERROR(UNIMPLEMENTED,
                         "tensor '%s' has more than %d dimensions, the most "
                         "that Choir has",
                         entry->name, CHOIR_MAX_NDIM);
    }
    uint64_t value;
    if (!whole_number(size, &value)) {
      return malformed(entry->name, "has a size that is no whole number");
    }
    entry->shape[entry->ndim++] = (int64_t)value;
  }
  // Dimensions of size 0 may stand beside any others, but sizes that overflow
  // without them are refused too, as choir_view_make does.
  uint64_t bytes = choir_dtype_bytes(entry->dtype);
  bool is_empty = false;
  for (int32_t k = 0; k < entry->ndim; ++k) {
    if (entry->shape[k] == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(bytes, (uint64_t)entry->shape[k],
                                      &bytes) ||
               bytes > INT64_MAX) {
      return malformed(entry->name, "has a shape of more than 2^63 bytes");
    }
  }
  entry->bytes = is_empty ? 0 : (size_t)bytes;
  return NULL;
}

static choir_status_t parse_dtype(const cJSON* item,
                                  choir_checkpoint_entry_t* entry) {
  if (!cJSON_IsString(item)) {
    return malformed(entry->name, "has a dtype that is no text");
  }
  for (int dtype = 0; dtype < CHOIR_DTYPE_COUNT; ++dtype) {
    if (strcmp(item->valuestring, dtype_names[dtype]) == 0) {
      entry->dtype = (choir_dtype_t)dtype;
      return NULL;
    }
  }
  return CHOIR_ERROR(UNIMPLEMENTED,
                     "tensor '%s' has dtype '%.16s', which Choir lacks",
                     entry->name, item->valuestring);
}

static choir_status_t parse_entry(const cJSON* item, uint64_t data_bytes,
                                  choir__safetensors_entry_t* out_entry) {
  choir_checkpoint_entry_t* entry = &out_entry->entry;
  entry->name = item->string;
  const cJSON* dtype = NULL;
  const cJSON* shape = NULL;
  const cJSON* offsets = NULL;
  size_t fields = 0;
  if (cJSON_IsObject(item)) {
    const cJSON* field;
    cJSON_ArrayForEach(field, item) {
      ++fields;
      if (strcmp(field->string, "dtype") == 0) dtype = field;
      if (strcmp(field->string, "shape") == 0) shape = field;
      if (strcmp(field->string, "data_offsets") == 0) offsets = field;
    }
  }
  if (!dtype || !shape || !offsets || fields != 3) {
    return malformed(entry->name,
                     "does not consist of dtype, shape and data_offsets");
  }
  CHOIR_TRY(parse_dtype(dtype, entry));
  CHOIR_TRY(parse_shape(shape, entry));
  uint64_t end = 0;
  if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
      !whole_number(offsets->child, &out_entry->begin) ||
      !whole_number(offsets->child->next, &end)) {
    return malformed(entry->name,
                     "has data_offsets that are not two whole numbers");
  }
  if (out_entry->begin > end || end > data_bytes) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor '%s' claims bytes %llu to %llu of %llu; the "
                       "file is truncated or damaged",
                       entry->name, (unsigned long long)out_entry->begin,
                       (unsigned long long)end, (unsigned long long)data_bytes);
  }
  if (end - out_entry->begin != entry->bytes) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "tensor '%s' has %llu bytes; its shape and dtype make "
                       "%zu",
                       entry->name,
                       (unsigned long long)(end - out_entry->begin),
                       entry->bytes);
  }
  return NULL;
}

static int compare_places(const void* a, const void* b) {
  const choir__safetensors_entry_t* x = a;
  const choir__safetensors_entry_t* y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  // Empty tensors share their place with the one after them.
  if (x->entry.bytes != y->entry.bytes) {
    return x->entry.bytes < y->entry.bytes ? -1 : 1;
  }
  return strcmp(x->entry.name, y->entry.name);
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

static choir_status_t allocate_array(const choir__safetensors_t* header,
                                     size_t count, size_t item_bytes,
                                     void** out_array) {
  *out_array = NULL;
  if (count == 0) return NULL;
  return choir_allocate(header->allocator, count * item_bytes,
                        "the header of a checkpoint", out_array);
}

static choir_status_t parse_metadata(const cJSON* item,
                                     choir__safetensors_t* header) {
  if (!cJSON_IsObject(item)) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the header's __metadata__ is no list of texts");
  }
  const size_t count = (size_t)cJSON_GetArraySize(item);
  void* array;
  CHOIR_TRY(allocate_array(header, count, sizeof(choir_metadata_t), &array));
  header->metadata = array;
  header->metadata_count = count;
  size_t used = 0;
  const cJSON* pair;
  cJSON_ArrayForEach(pair, item) {
    if (used == count) break;
    if (!cJSON_IsString(pair)) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "the header's metadata '%s' is no text", pair->string);
    }
    header->metadata[used++] =
        (choir_metadata_t){pair->string, pair->valuestring};
  }
  if (count > 0) {
    qsort(header->metadata, count, sizeof(choir_metadata_t), compare_keys);
  }
  for (size_t i = 1; i < count; ++i) {
    if (compare_keys(&header->metadata[i - 1], &header->metadata[i]) == 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT, "the header has metadata '%s' twice",
                         header->metadata[i].key);
    }
  }
  return NULL;
}

choir_status_t choir__safetensors_sort_names(choir__safetensors_t* header) {
  const size_t count = header->count;
  void* array;
  CHOIR_TRY(allocate_array(header, count, sizeof(size_t), &array));
  header->by_name = array;
  for (size_t i = 0; i < count; ++i) header->by_name[i] = i;
  if (count > 0) {
    qsort_r(header->by_name, count, sizeof(size_t), compare_names,
            header->entries);
  }
  for (size_t i = 1; i < count; ++i) {
    if (compare_names(&header->by_name[i - 1], &header->by_name[i],
                      header->entries) == 0) {
      return CHOIR_ERROR(INVALID_ARGUMENT, "it has tensor '%s' twice",
                         header->entries[header->by_name[i]].entry.name);
    }
  }
  return NULL;
}

// Names are unique, and the ranges cover the data without gap or overlap.
static choir_status_t check_entries(choir__safetensors_t* header,
                                    uint64_t data_bytes) {
  const size_t count = header->count;
  if (count > 0) {
    qsort(header->entries, count, sizeof *header->entries, compare_places);
  }
  uint64_t place = 0;
  for (size_t i = 0; i < count; ++i) {
    const choir__safetensors_entry_t* entry = &header->entries[i];
    if (entry->begin != place) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "tensor '%s' begins at byte %llu, where the one "
                         "before it ends at %llu; tensors must neither overlap "
                         "nor leave a gap",
                         entry->entry.name, (unsigned long long)entry->begin,
                         (unsigned long long)place);
    }
    place += entry->entry.bytes;
  }
  if (place != data_bytes) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "the header lists %llu bytes of tensors; the file has "
                       "%llu",
                       (unsigned long long)place,
                       (unsigned long long)data_bytes);
  }
  return choir__safetensors_sort_names(header);
}

choir_status_t choir__safetensors_read_json(const char* what, char* text,
                                            size_t bytes, void** out_json) {
  *out_json = NULL;
  CHOIR_TRY(scan(what, text, bytes));
  text[bytes] = '\0';
  // Writers may pad with spaces; anything else after the object is an error.
  const char* end = NULL;
  *out_json = cJSON_ParseWithLengthOpts(text, bytes + 1, &end, true);
  if (*out_json) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT, "the %s is no JSON near byte %lld", what,
                     end ? (long long)(end - text) : 0);
}

static choir_status_t parse(char* text, size_t bytes, uint64_t data_bytes,
                            choir__safetensors_t* header) {
  CHOIR_TRY(choir__safetensors_read_json("header", text, bytes, &header->json));
  const cJSON* json = header->json;
  size_t count = 0;
  const cJSON* metadata = NULL;
  const cJSON* item;
  cJSON_ArrayForEach(item, json) {
    if (strcmp(item->string, CHOIR__SAFETENSORS_METADATA) != 0) {
      ++count;
    } else if (metadata) {
      return CHOIR_ERROR(INVALID_ARGUMENT, "the header has __metadata__ twice");
    } else {
      metadata = item;
    }
  }
  if (metadata) CHOIR_TRY(parse_metadata(metadata, header));
  void* array;
  CHOIR_TRY(allocate_array(header, count, sizeof *header->entries, &array));
  header->entries = array;
  header->count = count;
  size_t used = 0;
  cJSON_ArrayForEach(item, json) {
    if (item == metadata || used == count) continue;
    CHOIR_TRY(parse_entry(item, data_bytes, &header->entries[used++]));
  }
  return check_entries(header, data_bytes);
}

choir_status_t choir__safetensors_parse(choir_allocator_t allocator, char* text,
                                        size_t bytes, uint64_t data_bytes,
                                        choir__safetensors_t* out_header) {
  memset(out_header, 0, sizeof *out_header);
  out_header->allocator = allocator;
  choir_status_t status = parse(text, bytes, data_bytes, out_header);
  if (status) choir__safetensors_clear(out_header);
  return status;
}

void choir__safetensors_clear(choir__safetensors_t* header) {
  if (header->by_name) {
    choir_deallocate(header->allocator, header->by_name,
                     header->count * sizeof(size_t));
  }
  if (header->entries) {
    choir_deallocate(header->allocator, header->entries,
                     header->count * sizeof *header->entries);
  }
  if (header->metadata) {
    choir_deallocate(header->allocator, header->metadata,
                     header->metadata_count * sizeof *header->metadata);
  }
  cJSON_Delete(header->json);
  memset(header, 0, sizeof *header);
}

// ---- Queries ----

const choir__safetensors_entry_t* choir__safetensors_find(
    const choir__safetensors_t* header, const char* name) {
  size_t low = 0;
  size_t high = header->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const choir__safetensors_entry_t* entry =
        &header->entries[header->by_name[middle]];
    const int order = strcmp(name, entry->entry.name);
    if (order == 0) return entry;
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NULL;
}

const char* choir__safetensors_metadata(const choir__safetensors_t* header,
                                        const char* key) {
  const choir_metadata_t wanted = {key, NULL};
  if (header->metadata_count == 0) return NULL;
  const choir_metadata_t* pair =
      bsearch(&wanted, header->metadata, header->metadata_count,
              sizeof(choir_metadata_t), compare_keys);
  return pair ? pair->value : NULL;
}

static uint64_t add_text(uint64_t hash, const char* text) {
  return choir_hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t add_number(uint64_t hash, uint64_t number) {
  uint8_t bytes[8];
  for (int k = 0; k < 8; ++k) bytes[k] = (uint8_t)(number >> (8 * k));
  return choir_hash_bytes(hash, bytes, sizeof bytes);
}

uint64_t choir__safetensors_sum(const choir__safetensors_t* header) {
  uint64_t hash = add_number(CHOIR_HASH_START, header->count);
  for (size_t i = 0; i < header->count; ++i) {
    const choir__safetensors_entry_t* entry =
        &header->entries[header->by_name[i]];
    hash = add_text(hash, entry->entry.name);
    hash = add_text(hash, choir__safetensors_dtype(entry->entry.dtype));
    hash = add_number(hash, (uint64_t)entry->entry.ndim);
    for (int32_t k = 0; k < entry->entry.ndim; ++k) {
      hash = add_number(hash, (uint64_t)entry->entry.shape[k]);
    }
    hash = add_number(hash, entry->hash);
  }
  for (size_t i = 0; i < header->metadata_count; ++i) {
    const choir_metadata_t* pair = &header->metadata[i];
    if (strcmp(pair->key, CHOIR__SAFETENSORS_SUM) == 0) continue;
    hash = add_text(hash, pair->key);
    hash = add_text(hash, pair->value);
  }
  return hash;
}
