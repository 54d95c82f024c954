// SPDX-License-Identifier: Apache-2.0
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/checkpoint_internal.h"
#include "io/io_internal.h"

// Tensors in several files, as Hugging Face splits large models, by an index
// beside them:
//
//   {"metadata": {...}, "weight_map": {"name": "file", ...}}
//
// Each file has exactly the tensors that the map places there, so that sorted
// by file and name the map is the list of their entries.

#define WHERE "checkpoint"
#define MAP "weight_map"

typedef struct place_s {
  const char* name;
  const char* file;
} place_t;

static int compare_places(const void* a, const void* b) {
  const place_t* x = a;
  const place_t* y = b;
  const int order = strcmp(x->file, y->file);
  return order ? order : strcmp(x->name, y->name);
}

static choir_status_t read_text(choir_checkpoint_t* index) {
  int fd;
  uint64_t bytes;
  CHOIR_TRY(choir__io_open(WHERE, index->path, &fd, &bytes));
  choir_status_t status = NULL;
  void* block = NULL;
  if (bytes > CHOIR__SAFETENSORS_MAX_HEADER)
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         WHERE ": index '%s' has %llu bytes; %llu are allowed",
                         index->path, (unsigned long long)bytes,
                         (unsigned long long)CHOIR__SAFETENSORS_MAX_HEADER);
  if (!status)
    status = choir_allocate(index->allocator, bytes + 1,
                            "the index of a checkpoint", &block);
  if (!status) {
    index->text = block;
    index->text_bytes = bytes + 1;
    status = choir__io_read_at(fd, WHERE, index->path, 0, block, bytes);
  }
  close(fd);
  return status;
}

static choir_status_t find_map(choir_checkpoint_t* index,
                               const cJSON** out_map) {
  CHOIR_TRY_NOTE(
      choir__safetensors_read_json("index", index->text, index->text_bytes - 1,
                                   &index->header.json),
      WHERE ": '%s'", index->path);
  size_t maps = 0;
  const cJSON* item;
  cJSON_ArrayForEach(item, (const cJSON*)index->header.json) {
    if (strcmp(item->string, MAP) != 0) continue;
    *out_map = item;
    ++maps;
  }
  if (maps == 1 && cJSON_IsObject(*out_map)) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     WHERE ": index '%s' has %zu entries '" MAP
                           "'; one is needed, which has a file for each tensor",
                     index->path, maps);
}

// The index is not trusted: it names files of its own folder only.
static bool is_plain(const char* file) {
  return *file && !strchr(file, '/') && strcmp(file, ".") != 0 &&
         strcmp(file, "..") != 0;
}

// places: as many as the map has pairs.
static choir_status_t list_places(const choir_checkpoint_t* index,
                                  const cJSON* map, place_t* places) {
  size_t count = 0;
  const cJSON* pair;
  cJSON_ArrayForEach(pair, map) {
    if (!cJSON_IsString(pair) || !is_plain(pair->valuestring))
      return CHOIR_ERROR(
          INVALID_ARGUMENT,
          WHERE
          ": index '%s' places tensor '%s' in '%s'; the "
          "plain name of a file beside it is needed",
          index->path, pair->string,
          cJSON_IsString(pair) ? pair->valuestring : "(no text)");
    places[count++] = (place_t){pair->string, pair->valuestring};
  }
  qsort(places, count, sizeof(*places), compare_places);
  for (size_t i = 1; i < count; ++i)
    if (compare_places(&places[i - 1], &places[i]) == 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         WHERE ": index '%s' has tensor '%s' twice",
                         index->path, places[i].name);
  return NULL;
}

static choir_status_t open_part(const choir_checkpoint_t* index,
                                const char* file,
                                choir_checkpoint_t** out_part) {
  const char* slash = strrchr(index->path, '/');
  const int folder_bytes = slash ? (int)(slash - index->path) + 1 : 0;
  char path[CHOIR__CHECKPOINT_PATH_BYTES];
  const int bytes =
      snprintf(path, sizeof(path), "%.*s%s", folder_bytes, index->path, file);
  if (bytes < 0 || (size_t)bytes >= sizeof(path))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       WHERE
                       ": index '%s' places tensors in a file whose name "
                       "makes a path of %zu bytes or more",
                       index->path, sizeof(path));
  CHOIR_TRY_NOTE(choir__checkpoint_open(path, false, out_part),
                 WHERE ": index '%s'", index->path);
  return NULL;
}

// Takes over the entries of the newest part, which must be `count` places.
static choir_status_t take_entries(choir_checkpoint_t* index,
                                   const place_t* places, size_t count,
                                   size_t first) {
  const size_t source = index->part_count - 1;
  const choir_checkpoint_t* part = index->parts[source];
  const choir__safetensors_t* header = &part->header;
  for (size_t i = 0; i < count || i < header->count; ++i) {
    const choir__safetensors_entry_t* entry =
        i < header->count ? &header->entries[header->by_name[i]] : NULL;
    const int order = i == count ? 1
                      : !entry   ? -1
                                 : strcmp(places[i].name, entry->entry.name);
    if (order < 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         WHERE
                         ": index '%s' places tensor '%s' in '%s', which does "
                         "not have it",
                         index->path, places[i].name, part->path);
    if (order > 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         WHERE
                         ": '%s' has tensor '%s', which index '%s' does "
                         "not place there",
                         part->path, entry->entry.name, index->path);
    index->header.entries[first + i] = *entry;
    index->header.entries[first + i].source = source;
  }
  return NULL;
}

static choir_status_t open_parts(choir_checkpoint_t* index,
                                 const place_t* places) {
  const size_t count = index->header.count;
  index->verified = true;
  for (size_t first = 0, end = 0; first < count; first = end) {
    while (end < count && strcmp(places[end].file, places[first].file) == 0)
      ++end;
    choir_checkpoint_t** part = &index->parts[index->part_count];
    CHOIR_TRY(open_part(index, places[first].file, part));
    ++index->part_count;
    index->verified = index->verified && (*part)->verified;
    CHOIR_TRY(take_entries(index, places + first, end - first, first));
  }
  CHOIR_TRY_NOTE(choir__safetensors_sort_names(&index->header),
                 WHERE ": index '%s'", index->path);
  return NULL;
}

choir_status_t choir__checkpoint_read_index(choir_checkpoint_t* index) {
  choir__safetensors_t* header = &index->header;
  const cJSON* map = NULL;
  header->allocator = index->allocator;
  CHOIR_TRY(read_text(index));
  CHOIR_TRY(find_map(index, &map));
  header->count = (size_t)cJSON_GetArraySize(map);
  if (header->count == 0) return NULL;
  void* block;
  CHOIR_TRY(choir_allocate(index->allocator,
                           header->count * sizeof(*header->entries),
                           "the index of a checkpoint", &block));
  header->entries = block;
  CHOIR_TRY(choir_allocate(index->allocator, header->count * sizeof(void*),
                           "the index of a checkpoint", &block));
  index->parts = block;
  CHOIR_TRY(choir_allocate(index->allocator, header->count * sizeof(place_t),
                           "the index of a checkpoint", &block));
  choir_status_t status = list_places(index, map, block);
  if (!status) status = open_parts(index, block);
  choir_deallocate(index->allocator, block, header->count * sizeof(place_t));
  return status;
}
