// SPDX-License-Identifier: Apache-2.0
// An index of tensors in several files: it is the input, beside two files that
// are good. Its text names those, others of the folder, or what it likes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/checkpoint.h"
#include "tests/fuzz/fuzz.h"

static const char* const indices[] = {
    "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"w\":\"a\","
    "\"b\":\"c\",\"v\":\"a\"}}",
    "{\"weight_map\":{\"w\\u00e9\":\"./a\",\"w\":\"../x\",\"b\":\"\"}}",
    "{\"weight_map\":{\"b\":\"c\",\"b\":\"c\"},\"weight_map\":[[1]]}",
};
static const char* const headers[][2] = {
    {"a",
     "{\"w\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
     "\"v\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[3,4]}}"},
    {"c", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"}};
static char folder[256], path[300];

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  if (number >= (int)(sizeof(indices) / sizeof(indices[0]))) return 0;
  const size_t bytes = strlen(indices[number]);
  memcpy(out_data, indices[number], bytes);
  return bytes;
}

static void remove_folder(void) {
  char file[300];
  for (int i = 0; i < 2; ++i) {
    snprintf(file, sizeof(file), "%s/%s", folder, headers[i][0]);
    unlink(file);
  }
  unlink(path);
  rmdir(folder);
}

// With both files, and a link to where the driver writes its inputs.
static void make_folder(const char* input) {
  const char* base = getenv("TEST_TMPDIR");
  char file[300];
  snprintf(folder, sizeof(folder), "%s/choir_fuzz_XXXXXX",
           base ? base : "/tmp");
  if (!mkdtemp(folder)) abort();
  for (int i = 0; i < 2; ++i) {
    const uint64_t bytes = strlen(headers[i][1]);
    snprintf(file, sizeof(file), "%s/%s", folder, headers[i][0]);
    FILE* out = fopen(file, "we");
    if (!out || fwrite(&bytes, sizeof(bytes), 1, out) != 1 ||
        fwrite(headers[i][1], bytes, 1, out) != 1 ||
        fwrite("\1\2\3\4", 4, 1, out) != 1 || fclose(out))
      abort();
  }
  snprintf(path, sizeof(path), "%s/x.index.json", folder);
  if (symlink(input, path) || atexit(remove_folder)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const char* input = choir_fuzz_file(data, bytes);
  if (!folder[0]) make_folder(input);
  choir_checkpoint_t* file = NULL;
  choir_status_t status = choir_checkpoint_open(path, &file);
  if (status && (file || !choir_status_message(status)[0])) abort();
  choir_status_free(status);
  if (!file) return 0;
  for (size_t i = 0; i < choir_checkpoint_count(file); ++i) {
    const choir_checkpoint_entry_t* entry = choir_checkpoint_get(file, i);
    // No tensor of another file than the two.
    if (entry->bytes > 4 || choir_checkpoint_find(file, entry->name) != entry)
      abort();
  }
  choir_checkpoint_destroy(file);
  return 0;
}
