// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_BENCH_MACHINE_RATES_H_
#define CHOIR_BENCH_MACHINE_RATES_H_

#include <stddef.h>
#include <stdint.h>

// What the machine can do at best: the least time of several tries counts, as
// others on the machine can only lengthen it.
//
// Threads: OpenMP's, as many as asked for; 1 where the build has no OpenMP.

enum { MACHINE_RATES_SIZES = 16 };

// GB/s of one working set, which lies in the smallest cache that holds it.
typedef struct bandwidth_s {
  double bytes;  // of all arrays, for all threads together
  double read;   // sum over one array
  double triad;  // a = b + s * c; three arrays, each counted once
} bandwidth_t;

typedef struct machine_rates_s {
  int threads;
  double fma;    // GFLOP/s of multiply-adds in registers, 0 where unknown
  double sgemm;  // GFLOP/s of oneDNN's, square matrices
  double bgemm;  // those of bf16; 0: not measured
  bandwidth_t sizes[MACHINE_RATES_SIZES];  // from small to large
  int size_count;
} machine_rates_t;

typedef struct machine_rates_config_s {
  int threads;
  int64_t sgemm_size;  // rows and columns
  size_t largest;      // bytes of the largest working set
  int tries;
} machine_rates_config_t;

// Returns 0, or 1 where memory is short or oneDNN fails.
int machine_rates_measure(const machine_rates_config_t* config,
                          machine_rates_t* out_rates);

// GB/s that work on so many bytes can have at most: the better one of the two
// kinds, for the next smaller size that was measured.
double machine_rates_bandwidth(const machine_rates_t* rates, double bytes);

#endif  // CHOIR_BENCH_MACHINE_RATES_H_
