// SPDX-License-Identifier: Apache-2.0
// Runs a target. With --config=fuzz it is libFuzzer that does, which sees what
// code an input reaches: the seeds are the beginning of its corpus, in a folder
// that it tells and that stays, for a run that goes on from there. Without, in
// every run of the tests, inputs are seeds with a few changes each.
//
//   bazel test //tests/fuzz/...
//   bazel run --config=fuzz //tests/fuzz:idx_fuzz -- -runs=10000000
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

const char* choir_fuzz_file(const uint8_t* data, size_t bytes) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  }
  if (fd < 0 || ftruncate(fd, 0) ||
      pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
    abort();
  return path;
}

#ifdef CHOIR__LIBFUZZER

int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static char folder[] = "/tmp/choir_fuzz_XXXXXX";
  static uint8_t data[CHOIR_FUZZ_MOST_BYTES];
  if (!mkdtemp(folder)) return -1;
  size_t bytes;
  for (int i = 0; (bytes = choir_fuzz_seed(i, data)) > 0; ++i) {
    char path[64];
    snprintf(path, sizeof(path), "%s/%d", folder, i);
    FILE* file = fopen(path, "we");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file))
      return -1;
  }
  char** with = calloc((size_t)*argc + 2, sizeof(*with));
  if (!with) return -1;
  memcpy(with, *argv, (size_t)*argc * sizeof(*with));
  with[(*argc)++] = folder;
  *argv = with;
  return 0;
}

#else

static uint64_t state = 88172645463325252u;

static uint64_t draw(uint64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return below ? state % below : 0;
}

static size_t change(uint8_t* data, size_t bytes) {
  static const uint64_t numbers[] = {0,          1,         UINT64_MAX,
                                     INT32_MAX,  INT64_MAX, (uint64_t)1 << 31,
                                     UINT32_MAX, 255,       (uint64_t)1 << 63};
  const size_t at = draw(bytes);
  const size_t most = CHOIR_FUZZ_MOST_BYTES - bytes;
  size_t count = draw(bytes - at) % 64;
  switch (draw(bytes ? 6 : 1)) {
    case 0:  // more
      count = 1 + draw(16);
      if (count > most) count = most;
      memmove(data + at + count, data + at, bytes - at);
      for (size_t i = 0; i < count; ++i) data[at + i] = (uint8_t)draw(256);
      return bytes + count;
    case 1:  // fewer
      memmove(data + at, data + at + count, bytes - at - count);
      return bytes - count;
    case 2:
      data[at] ^= (uint8_t)(1 << draw(8));
      return bytes;
    case 3:
      data[at] = (uint8_t)draw(256);
      return bytes;
    case 4: {
      const uint64_t number = numbers[draw(sizeof(numbers) / 8)] + draw(3) - 1;
      const size_t size = (size_t)1 << draw(4);
      if (size <= bytes - at) memcpy(data + at, &number, size);
      return bytes;
    }
    default: {  // a part in another place
      const size_t to = draw(bytes);
      if (count > bytes - to) count = bytes - to;
      memmove(data + to, data + at, count);
      return bytes;
    }
  }
}

int main(int argc, char** argv) {
  const long runs = argc > 1 ? atol(argv[1]) : 20000;
  static uint8_t data[CHOIR_FUZZ_MOST_BYTES];
  int seeds = 0;
  for (size_t bytes; (bytes = choir_fuzz_seed(seeds, data)) > 0; ++seeds)
    LLVMFuzzerTestOneInput(data, bytes);
  for (long i = 0; i < runs; ++i) {
    size_t bytes = choir_fuzz_seed((int)draw((uint64_t)seeds), data);
    for (uint64_t k = draw(5) + 1; k > 0; --k) bytes = change(data, bytes);
    // So that what lies behind it is found to be read.
    uint8_t* input = malloc(bytes ? bytes : 1);
    if (!input) return 1;
    memcpy(input, data, bytes);
    LLVMFuzzerTestOneInput(input, bytes);
    free(input);
  }
  printf("%d seeds, %ld runs\n", seeds, runs);
  return 0;
}

#endif
