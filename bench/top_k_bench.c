// SPDX-License-Identifier: Apache-2.0
// bench_top_k [--json]
// Exact selection of the largest 1 % by magnitude, beside one pass that reads
// the same memory for its largest magnitude: median of 21 runs in turns, and
// the ratio within a run. On one thread; values are cubed normal ones.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "dist/top_k_internal.h"

enum { RUNS = 21 };

static const int64_t counts[] = {431080, 25000000};

// GCC and clang make vector code of it for each of these.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint32_t
read_pass(const float* src, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t key;
    memcpy(&key, src + i, sizeof(key));
    key &= 0x7fffffffu;
    largest = key > largest ? key : largest;
  }
  return largest;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values) {
  qsort(values, RUNS, sizeof(double), compare);
  return values[RUNS / 2];
}

static void fill(float* src, int64_t count) {
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    // A sum of twelve uniform numbers is near enough to a normal one.
    double x = -6;
    for (int j = 0; j < 12; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x += (double)(state >> 40) / (1 << 24);
    }
    src[i] = (float)(x * x * x);
  }
}

static choir_status_t measure(int64_t count, bool json) {
  const int64_t k = count / 100;
  const size_t scratch_bytes = choir__top_k_scratch_bytes(count, k);
  float* src =
      aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
  void* scratch = aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
  int32_t* indices = calloc((size_t)k, sizeof(int32_t));
  float* values = calloc((size_t)k, sizeof(float));
  choir_status_t status = NULL;
  double pass[RUNS];
  double select[RUNS];
  double ratio[RUNS];
  uint32_t largest = 0;
  if (!src || !scratch || !indices || !values)
    status = CHOIR_ERROR(OUT_OF_MEMORY, "no memory for %lld elements",
                         (long long)count);
  if (!status) fill(src, count);
  // The first runs fault in the pages.
  for (int run = -2; run < RUNS && !status; ++run) {
    const double start = choir_clock_seconds();
    largest |= read_pass(src, count);
    const double middle = choir_clock_seconds();
    status = choir__top_k(src, count, k, scratch, indices, values);
    const double end = choir_clock_seconds();
    if (run < 0) continue;
    pass[run] = (middle - start) * 1e6;
    select[run] = (end - middle) * 1e6;
    ratio[run] = select[run] / pass[run];
  }
  free(src);
  free(scratch);
  free(indices);
  free(values);
  if (status) return status;
  qsort(ratio, RUNS, sizeof(double), compare);
  if (json)
    printf(
        "{\"count\": %lld, \"k\": %lld, \"top_k_us\": %.1f, "
        "\"read_pass_us\": %.1f, \"ratio\": %.2f, \"least_ratio\": %.2f, "
        "\"most_ratio\": %.2f, \"largest\": %u}\n",
        (long long)count, (long long)k, median(select), median(pass),
        ratio[RUNS / 2], ratio[0], ratio[RUNS - 1], (unsigned)largest);
  else
    printf(
        "top %lld of %lld: %.1f us, read pass %.1f us, ratio %.2f "
        "(%.2f..%.2f)\n",
        (long long)k, (long long)count, median(select), median(pass),
        ratio[RUNS / 2], ratio[0], ratio[RUNS - 1]);
  return NULL;
}

int main(int argc, char** argv) {
  const bool json = argc == 2 && strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    fprintf(stderr, "usage: bench_top_k [--json]\n");
    return 2;
  }
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); ++i) {
    choir_status_t status = measure(counts[i], json);
    if (!status) continue;
    fprintf(stderr, "bench_top_k: %s\n", choir_status_message(status));
    choir_status_free(status);
    return 1;
  }
  return 0;
}
