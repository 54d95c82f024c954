// SPDX-License-Identifier: Apache-2.0
#include "core/record_list.h"

#include <string.h>

#include "core/random.h"
#include "core/record_internal.h"
#include "core/record_list_internal.h"

// ---- Clones ----

enum { BLOCK_ALIGNMENT = 16 };  // of attributes: what malloc promises

static size_t align_up(size_t bytes) {
  return (bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
}

size_t choir__record_clone_bytes(const choir_record_t* record) {
  return align_up(choir__record_operands(record) * sizeof(choir_view_t)) +
         align_up(record->attrs_bytes) +
         (record->label ? strlen(record->label) + 1 : 0);
}

void choir__record_clone(const choir_record_t* record, void* block,
                         choir_record_t* out_clone) {
  size_t count = choir__record_operands(record);
  choir_view_t* operands = block;
  char* attrs = (char*)block + align_up(count * sizeof(choir_view_t));
  *out_clone = *record;
  out_clone->operands = operands;
  for (size_t k = 0; k < count; ++k) {
    operands[k] = record->operands[k];
    choir_buffer_retain(operands[k].buffer);
  }
  choir_scalar_retain(record->scalar);
  if (record->label) {
    char* label = attrs + align_up(record->attrs_bytes);
    out_clone->label = strcpy(label, record->label);
  }
  out_clone->attrs = record->attrs_bytes > 0 ? attrs : NULL;
  if (record->attrs_bytes > 0) {
    memcpy(attrs, record->attrs, record->attrs_bytes);
    if (record->kernel && record->kernel->retain_attrs)
      record->kernel->retain_attrs(attrs);
  }
}

void choir__record_drop(const choir_record_t* clone) {
  if (clone->attrs && clone->kernel && clone->kernel->release_attrs)
    clone->kernel->release_attrs(clone->attrs);
  choir_scalar_release(clone->scalar);
  for (size_t k = 0; k < choir__record_operands(clone); ++k)
    choir_buffer_release(clone->operands[k].buffer);
}

// ---- List ----
//
// Records stand in one growing array; their views, attributes and buffer
// numbers in an arena, which does not move them. Both stay when the list is
// cleared. Buffers get numbers in order of appearance, through a table by
// address, since the hash must not see addresses.

typedef struct list_entry_s {
  choir_record_t record;
  const int32_t* buffer_ids;  // (src_count + dst_count); -1: no buffer
} list_entry_t;

typedef struct buffer_slot_s {
  const choir_buffer_t* buffer;  // NULL: free
  int32_t id;
} buffer_slot_t;

struct choir_record_list_s {
  choir_allocator_t allocator;
  choir_arena_t* arena;
  list_entry_t* entries;
  size_t count;
  size_t capacity;
  buffer_slot_t* slots;  // open addressing; the capacity is a power of two
  size_t slot_capacity;
  int32_t buffer_count;
  uint64_t hash;
};

enum { ARENA_CHUNK_BYTES = 32 * 1024 };

choir_status_t choir_record_list_create(choir_allocator_t allocator,
                                        choir_record_list_t** out_list) {
  *out_list = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_record_list_t),
                           "choir_record_list_create", &memory));
  choir_record_list_t* list = memory;
  list->allocator = allocator;
  list->hash = CHOIR_HASH_START;
  choir_status_t status =
      choir_arena_create(allocator, ARENA_CHUNK_BYTES, &list->arena);
  if (status) {
    choir_deallocate(allocator, list, sizeof(*list));
    return status;
  }
  *out_list = list;
  return NULL;
}

void choir_record_list_clear(choir_record_list_t* list) {
  for (size_t i = 0; i < list->count; ++i)
    choir__record_drop(&list->entries[i].record);
  list->count = 0;
  list->buffer_count = 0;
  list->hash = CHOIR_HASH_START;
  if (list->slots)
    memset(list->slots, 0, list->slot_capacity * sizeof(*list->slots));
  choir_arena_reset(list->arena);
}

void choir_record_list_destroy(choir_record_list_t* list) {
  if (!list) return;
  choir_record_list_clear(list);
  choir_arena_destroy(list->arena);
  choir_deallocate(list->allocator, list->entries,
                   list->capacity * sizeof(*list->entries));
  choir_deallocate(list->allocator, list->slots,
                   list->slot_capacity * sizeof(*list->slots));
  choir_deallocate(list->allocator, list, sizeof(*list));
}

static choir_status_t reserve_entry(choir_record_list_t* list) {
  if (list->count < list->capacity) return NULL;
  size_t capacity = list->capacity ? list->capacity * 2 : 64;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(list->allocator, capacity * sizeof(list_entry_t),
                           "choir_record_list_append", &memory));
  if (list->count > 0)
    memcpy(memory, list->entries, list->count * sizeof(list_entry_t));
  choir_deallocate(list->allocator, list->entries,
                   list->capacity * sizeof(list_entry_t));
  list->entries = memory;
  list->capacity = capacity;
  return NULL;
}

// The slot of `buffer`, or the free one where it belongs.
static buffer_slot_t* find_slot(buffer_slot_t* slots, size_t capacity,
                                const choir_buffer_t* buffer) {
  uint64_t hash = (uint64_t)(uintptr_t)buffer * 0x9e3779b97f4a7c15ull;
  size_t place = (size_t)(hash >> 32) & (capacity - 1);
  while (slots[place].buffer && slots[place].buffer != buffer)
    place = (place + 1) & (capacity - 1);
  return &slots[place];
}

// Room for one more record's buffers, at most half full afterwards.
static choir_status_t reserve_slots(choir_record_list_t* list,
                                    const choir_record_t* record) {
  size_t needed =
      2 * ((size_t)list->buffer_count + choir__record_operands(record));
  if (needed <= list->slot_capacity) return NULL;
  size_t capacity = list->slot_capacity ? list->slot_capacity * 2 : 128;
  while (capacity < needed) capacity *= 2;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(list->allocator, capacity * sizeof(buffer_slot_t),
                           "choir_record_list_append", &memory));
  buffer_slot_t* slots = memory;
  for (size_t i = 0; i < list->slot_capacity; ++i) {
    if (!list->slots[i].buffer) continue;
    *find_slot(slots, capacity, list->slots[i].buffer) = list->slots[i];
  }
  choir_deallocate(list->allocator, list->slots,
                   list->slot_capacity * sizeof(buffer_slot_t));
  list->slots = slots;
  list->slot_capacity = capacity;
  return NULL;
}

static int32_t number_buffer(choir_record_list_t* list,
                             const choir_buffer_t* buffer) {
  if (!buffer) return -1;
  buffer_slot_t* slot = find_slot(list->slots, list->slot_capacity, buffer);
  if (!slot->buffer) {
    slot->buffer = buffer;
    slot->id = list->buffer_count++;
  }
  return slot->id;
}

static uint64_t hash_i64(uint64_t hash, int64_t value) {
  return choir_hash_bytes(hash, &value, sizeof(value));
}

uint64_t choir__record_hash(uint64_t hash, const choir_record_t* record,
                            const int32_t* buffer_ids) {
  const char* name = choir_record_name(record);
  hash = choir_hash_bytes(hash, name, strlen(name) + 1);
  hash = hash_i64(hash, record->src_count);
  hash = hash_i64(hash, record->dst_count);
  hash = hash_i64(hash, record->accumulate);
  hash = hash_i64(hash, record->segment);
  for (size_t k = 0; k < choir__record_operands(record); ++k) {
    const choir_view_t* view = &record->operands[k];
    hash = hash_i64(hash, buffer_ids[k]);
    hash = hash_i64(hash, view->offset);
    hash = hash_i64(hash, view->dtype);
    hash = hash_i64(hash, view->ndim);
    for (int32_t d = 0; d < view->ndim && d < CHOIR_MAX_NDIM; ++d) {
      hash = hash_i64(hash, view->shape[d]);
      hash = hash_i64(hash, view->strides[d]);
    }
  }
  return hash;
}

choir_status_t choir_record_list_append(choir_record_list_t* list,
                                        const choir_record_t* record) {
  CHOIR_TRY(choir__record_check("choir_record_list_append", record));
  // Everything that can fail comes first, so that a failure changes nothing.
  CHOIR_TRY(reserve_entry(list));
  CHOIR_TRY(reserve_slots(list, record));
  size_t clone_bytes = choir__record_clone_bytes(record);
  void* block = choir_arena_alloc(list->arena, clone_bytes);
  int32_t* buffer_ids = choir_arena_alloc(
      list->arena, choir__record_operands(record) * sizeof(*buffer_ids));
  if (!block || !buffer_ids) {
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "choir_record_list_append: %zu bytes asked for; the "
                       "allocator has none left",
                       clone_bytes);
  }
  list_entry_t* entry = &list->entries[list->count++];
  choir__record_clone(record, block, &entry->record);
  entry->buffer_ids = buffer_ids;
  for (size_t k = 0; k < choir__record_operands(record); ++k)
    buffer_ids[k] = number_buffer(list, record->operands[k].buffer);
  list->hash = choir__record_hash(list->hash, &entry->record, buffer_ids);
  return NULL;
}

size_t choir_record_list_count(const choir_record_list_t* list) {
  return list->count;
}

const choir_record_t* choir_record_list_get(const choir_record_list_t* list,
                                            size_t index) {
  return index < list->count ? &list->entries[index].record : NULL;
}

choir_status_t choir_record_list_replay(const choir_record_list_t* list,
                                        choir_stream_t* stream) {
  for (size_t i = 0; i < list->count; ++i) {
    const choir_record_t* record = &list->entries[i].record;
    CHOIR_TRY_NOTE(choir_stream_submit(stream, record), "record %zu, %s", i,
                   choir_record_name(record));
  }
  return NULL;
}

uint64_t choir_record_list_hash(const choir_record_list_t* list) {
  return list->hash;
}

// ---- Printing ----

void choir__record_print(choir__text_t* text, const choir_record_t* record,
                         const int32_t* buffer_ids) {
  choir__text_put(text, "%s", choir_record_name(record));
  if (record->label) choir__text_put(text, " [%s]", record->label);
  for (size_t k = 0; k < choir__record_operands(record); ++k) {
    const choir_view_t* view = &record->operands[k];
    char shape[512];
    choir_view_print(view, shape, sizeof(shape));
    const char* between = k == (size_t)record->src_count ? " ->"
                          : k > 0                        ? ","
                                                         : "";
    if (buffer_ids[k] < 0) {
      choir__text_put(text, "%s none %s", between, shape);
    } else if (view->offset != 0) {
      choir__text_put(text, "%s b%d+%lld %s", between, buffer_ids[k],
                      (long long)view->offset, shape);
    } else {
      choir__text_put(text, "%s b%d %s", between, buffer_ids[k], shape);
    }
  }
  if (record->accumulate) choir__text_put(text, " accumulate");
  if (record->segment > 0)
    choir__text_put(text, " segment %lld", (long long)record->segment);
  choir__text_put(text, "\n");
}

choir_status_t choir_record_list_print(const choir_record_list_t* list,
                                       char** out_text) {
  choir__text_t text;
  choir__text_init(&text);
  for (size_t i = 0; i < list->count; ++i) {
    choir__text_put(&text, "%zu ", i);
    choir__record_print(&text, &list->entries[i].record,
                        list->entries[i].buffer_ids);
  }
  return choir__text_take(&text, "choir_record_list_print", out_text);
}
