// SPDX-License-Identifier: Apache-2.0
#include "bench/machine_rates.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "third_party/dnnl/dnnl_v3.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FAST
#endif

enum { SMALLEST = 128 << 10, FMA_ROUNDS = 1 << 22, ACCUMULATORS = 12 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double smaller(double a, double b) { return a < b ? a : b; }

// ---- Multiply-adds in registers ----

// One thread's share; the sum keeps the loop alive. Twelve chains hide the
// latency of two units.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float fma_avx512(int rounds) {
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  __m512 sums[ACCUMULATORS];
  for (int i = 0; i < ACCUMULATORS; i++) sums[i] = _mm512_set1_ps((float)i);
  for (int round = 0; round < rounds; round++)
    for (int i = 0; i < ACCUMULATORS; i++)
      sums[i] = _mm512_fmadd_ps(sums[i], a, b);
  for (int i = 1; i < ACCUMULATORS; i++)
    sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) static float fma_avx2(int rounds) {
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  __m256 sums[ACCUMULATORS];
  for (int i = 0; i < ACCUMULATORS; i++) sums[i] = _mm256_set1_ps((float)i);
  for (int round = 0; round < rounds; round++)
    for (int i = 0; i < ACCUMULATORS; i++)
      sums[i] = _mm256_fmadd_ps(sums[i], a, b);
  for (int i = 1; i < ACCUMULATORS; i++)
    sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}
#endif

static double measure_fma(int threads, int tries) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const int wide = __builtin_cpu_supports("avx512f");
  if (!wide && !__builtin_cpu_supports("fma")) return 0;
  double best = 1e9;
  float sum = 0;
  for (int i = 0; i < tries; i++) {
    const double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += wide ? fma_avx512(FMA_ROUNDS) : fma_avx2(FMA_ROUNDS);
    best = smaller(best, now() - start);
  }
  volatile float kept = sum;
  (void)kept;
  const double lanes = wide ? 16 : 8;
  return 2e-9 * lanes * ACCUMULATORS * FMA_ROUNDS * threads / best;
#else
  (void)threads, (void)tries;
  return 0;
#endif
}

// ---- Matrix products ----

static double measure_sgemm(int64_t n, int tries) {
  const size_t count = (size_t)(n * n);
  float* a = calloc(3 * count, sizeof(float));
  if (!a) return -1;
  for (size_t i = 0; i < 2 * count; i++) a[i] = (float)(i % 7) - 3;
  double best = 1e9;
  dnnl_status_t status = dnnl_success;
  // The first one makes the code.
  for (int i = -1; i < tries && status == dnnl_success; i++) {
    const double start = now();
    status = dnnl_sgemm('N', 'N', n, n, n, 1, a, n, a + count, n, 0,
                        a + 2 * count, n);
    if (i >= 0) best = smaller(best, now() - start);
  }
  free(a);
  const double side = (double)n;
  return status == dnnl_success ? 2e-9 * side * side * side / best : -1;
}

// ---- Memory ----

// Eight sums, as one alone would wait for its own additions.
FAST static float read_part(const float* a, size_t count) {
  const size_t n = count / 8;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, s4, s5, s6, s7)
  for (size_t i = 0; i < n; i++) {
    s0 += a[i];
    s1 += a[i + n];
    s2 += a[i + 2 * n];
    s3 += a[i + 3 * n];
    s4 += a[i + 4 * n];
    s5 += a[i + 5 * n];
    s6 += a[i + 6 * n];
    s7 += a[i + 7 * n];
  }
  return s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
}

FAST static void triad_part(float* a, const float* b, const float* c,
                            size_t count) {
#pragma omp simd
  for (size_t i = 0; i < count; i++) a[i] = b[i] + 0.5f * c[i];
}

// Seconds of `repeats` passes of all threads, each over its own part: one of
// `count` elements to read, or three of a third.
static double passes(float* data, size_t count, int threads, int repeats,
                     int triad) {
  (void)threads;  // clang without OpenMP
  float sum = 0;
  const double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
#ifdef _OPENMP
    const size_t rank = (size_t)omp_get_thread_num();
#else
    const size_t rank = 0;
#endif
    float* part = data + rank * count;
    const size_t third = count / 3;
    for (int i = 0; i < repeats; i++) {
      if (triad)
        triad_part(part, part + third, part + 2 * third, third);
      else
        sum += read_part(part, count);
    }
  }
  volatile float kept = sum;
  (void)kept;
  return now() - start;
}

// GB/s of the best try; a try lasts some milliseconds.
static double measure_passes(float* data, size_t count, int threads, int tries,
                             int triad) {
  const double bytes = (double)count * sizeof(float) * threads;
  const int repeats = 1 + (int)(64e6 / bytes);
  double best = 1e9;
  passes(data, count, threads, repeats, triad);
  for (int i = 0; i < tries; i++)
    best = smaller(best, passes(data, count, threads, repeats, triad));
  return 1e-9 * bytes * repeats / best;
}

static int measure_memory(const machine_rates_config_t* config, int threads,
                          machine_rates_t* rates) {
  float* data = malloc(config->largest);
  if (!data) return 1;
  // Not zeros: the compiler would take them from calloc, whose pages are all
  // one page until they are written.
  memset(data, 0x3c, config->largest);
  for (size_t bytes = SMALLEST;
       bytes <= config->largest && rates->size_count < MACHINE_RATES_SIZES;
       bytes *= 4) {
    const size_t count = bytes / sizeof(float) / (size_t)threads;
    bandwidth_t* size = &rates->sizes[rates->size_count++];
    size->bytes = (double)bytes;
    size->read = measure_passes(data, count, threads, config->tries, 0);
    size->triad = measure_passes(data, count, threads, config->tries, 1);
  }
  free(data);
  return 0;
}

int machine_rates_measure(const machine_rates_config_t* config,
                          machine_rates_t* out_rates) {
  int threads = 1;
#ifdef _OPENMP
  threads = config->threads;
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
#endif
  *out_rates = (machine_rates_t){.threads = threads};
  out_rates->fma = measure_fma(threads, config->tries);
  out_rates->sgemm = measure_sgemm(config->sgemm_size, config->tries);
  const int failed = measure_memory(config, threads, out_rates);
#ifdef _OPENMP
  omp_set_num_threads(before);
#endif
  return failed || out_rates->sgemm < 0;
}

double machine_rates_bandwidth(const machine_rates_t* rates, double bytes) {
  if (rates->size_count == 0) return 0;
  int i = rates->size_count - 1;
  while (i > 0 && rates->sizes[i].bytes > bytes) --i;
  const bandwidth_t* size = &rates->sizes[i];
  return size->read > size->triad ? size->read : size->triad;
}
