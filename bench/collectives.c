// SPDX-License-Identifier: Apache-2.0
// bench_collectives [--workers N] [--comm shm|tcp|mpi] [--collective NAME|all]
//                   [--memory comm|private|both] [--bytes N[,N...]] [--touch]
//                   [--json]
// Times collectives of f32 over ranks. Starts its own workers, or runs under
// mpiexec. algbw is bytes / time; busbw is what each rank's memory or wire has
// to carry for it (all_reduce: 2 (n-1)/n of the bytes), as in nccl-tests.
// Repeated on memory that nobody else writes, a rank's part stays in its own
// cache; --touch has each rank write all of its memory before each repetition,
// untimed, as a backward pass does.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_program.h"
#include "core/clock.h"
#include "dist/comm.h"

enum { BATCHES = 11, MAX_SIZES = 32, MAX_WORKERS = 256 };

typedef struct options_s {
  int32_t workers;
  const char* comm;
  const char* collective;
  const char* memory;
  size_t sizes[MAX_SIZES];
  int size_count;
  bool json;
  bool touch;
} options_t;

typedef struct bench_s {
  options_t options;
  choir_comm_t* comm;
  choir_device_t* device;
  int32_t rank;
  int32_t size;
} bench_t;

static const char program[] = "bench_collectives";

static int usage(const char* what) {
  fprintf(stderr,
          "bench_collectives: %s\nusage: bench_collectives [--workers N] "
          "[--comm shm|tcp|mpi] [--collective NAME|all] [--memory "
          "comm|private|both] [--bytes N[,N...]] [--touch] [--json]\n",
          what);
  return 2;
}

static bool same(const char* a, const char* b) { return strcmp(a, b) == 0; }

static bool read_sizes(options_t* options, const char* text) {
  options->size_count = 0;
  while (*text && options->size_count < MAX_SIZES) {
    char* end;
    unsigned long long bytes = strtoull(text, &end, 10);
    if (end == text || bytes < 4) return false;
    options->sizes[options->size_count++] = (size_t)bytes / 4 * 4;
    text = *end == ',' ? end + 1 : end;
    if (*end && *end != ',') return false;
  }
  return options->size_count > 0;
}

static int parse(int argc, char** argv, options_t* options) {
  static const size_t sizes[] = {4,       1024,     4096,    16384,
                                 65536,   262144,   1048576, 1724320,
                                 4194304, 16777216, 67108864};
  *options = (options_t){.workers = 2,
                         .comm = "shm",
                         .collective = "all_reduce",
                         .memory = "both"};
  options->size_count = (int)(sizeof(sizes) / sizeof(sizes[0]));
  memcpy(options->sizes, sizes, sizeof(sizes));
  for (int i = 1; i < argc; ++i) {
    const char* flag = argv[i];
    if (same(flag, "--json")) {
      options->json = true;
      continue;
    }
    if (same(flag, "--touch")) {
      options->touch = true;
      continue;
    }
    if (i + 1 == argc) return usage("a flag without value, or unknown");
    const char* value = argv[++i];
    if (same(flag, "--workers"))
      options->workers = atoi(value);
    else if (same(flag, "--comm"))
      options->comm = value;
    else if (same(flag, "--collective"))
      options->collective = value;
    else if (same(flag, "--memory"))
      options->memory = value;
    else if (!same(flag, "--bytes") || !read_sizes(options, value))
      return usage("an unknown flag or value");
  }
  return 0;
}

// ---- One case ----

// `bytes` is the larger side: what an all-gather gives, a reduce-scatter takes.
static choir_status_t run_once(bench_t* bench, choir_collective_kind_t kind,
                               float* src, float* dst, size_t bytes) {
  int64_t count = (int64_t)(bytes / sizeof(float));
  choir_collective_t c = {.kind = kind,
                          .op = CHOIR_REDUCE_SUM,
                          .dtype = CHOIR_DTYPE_F32,
                          .count = count,
                          .src = src,
                          .dst = dst,
                          .weight = 1,
                          .name = "bench"};
  if (kind == CHOIR_COLLECTIVE_ALL_REDUCE) c.src = dst;
  int64_t share = count / bench->size;
  int64_t splits[MAX_WORKERS];
  for (int32_t r = 0; r < bench->size; ++r) splits[r] = share;
  switch (kind) {
    case CHOIR_COLLECTIVE_ALL_GATHER:
    case CHOIR_COLLECTIVE_ALL_GATHER_V:
    case CHOIR_COLLECTIVE_GATHER:
    case CHOIR_COLLECTIVE_GATHER_V:
    case CHOIR_COLLECTIVE_ALL_TO_ALL:
      c.count = share;
      c.capacity = count;
      break;
    case CHOIR_COLLECTIVE_SCATTER:
    case CHOIR_COLLECTIVE_REDUCE_SCATTER:
      c.count = share;
      c.src = dst;
      c.dst = src;
      break;
    case CHOIR_COLLECTIVE_REDUCE_SCATTER_V:
      c.src = dst;
      c.dst = src;
      break;
    case CHOIR_COLLECTIVE_SCATTER_V:
    case CHOIR_COLLECTIVE_ALL_TO_ALL_V:
      c.count = share * bench->size;
      c.capacity = c.count;
      c.splits = splits;
      break;
    default:
      break;
  }
  return choir_comm_run(bench->comm, &c);
}

static double bus_factor(choir_collective_kind_t kind, int32_t size) {
  double n = size;
  switch (kind) {
    case CHOIR_COLLECTIVE_ALL_REDUCE:
      return 2 * (n - 1) / n;
    case CHOIR_COLLECTIVE_BROADCAST:
    case CHOIR_COLLECTIVE_REDUCE:
    case CHOIR_COLLECTIVE_BARRIER:
      return 1;
    default:
      return (n - 1) / n;
  }
}

static int compare(const void* a, const void* b) {
  double x = *(const double*)a;
  double y = *(const double*)b;
  return (x > y) - (x < y);
}

static const char* const kind_names[CHOIR_COLLECTIVE_COUNT] = {
#define NAME(ENUM, name) #name,
    CHOIR_COLLECTIVE_LIST(NAME)
#undef NAME
};

static void print_case(const bench_t* bench, choir_collective_kind_t kind,
                       const char* memory, size_t bytes, int repeats,
                       double* seconds) {
  qsort(seconds, BATCHES, sizeof(double), compare);
  double median = seconds[BATCHES / 2];
  double spread = (seconds[BATCHES * 3 / 4] - seconds[BATCHES / 4]) / median;
  double algbw = (double)bytes / median * 1e-9;
  double busbw = algbw * bus_factor(kind, bench->size);
  if (bench->options.json)
    printf(
        "{\"collective\":\"%s\",\"comm\":\"%s\",\"ranks\":%d,\"memory\":"
        "\"%s\",\"bytes\":%zu,\"repeats\":%d,\"median_us\":%.3f,"
        "\"min_us\":%.3f,\"max_us\":%.3f,\"spread\":%.3f,\"algbw\":%.3f,"
        "\"busbw\":%.3f}\n",
        kind_names[kind], choir_comm_backend(bench->comm), bench->size, memory,
        bytes, repeats, median * 1e6, seconds[0] * 1e6,
        seconds[BATCHES - 1] * 1e6, spread, algbw, busbw);
  else
    printf("%-14s %-4s %2d %-7s %10zu %12.2f %7.1f%% %9.3f %9.3f\n",
           kind_names[kind], choir_comm_backend(bench->comm), bench->size,
           memory, bytes, median * 1e6, spread * 100, algbw, busbw);
  fflush(stdout);
}

// About 20 ms a batch, agreed by all ranks.
static choir_status_t choose_repeats(bench_t* bench, double seconds,
                                     int* out_repeats) {
  int32_t repeats = (int32_t)(0.02 / (seconds > 1e-7 ? seconds : 1e-7)) + 1;
  if (repeats > 20000) repeats = 20000;
  CHOIR_TRY(choir_comm_broadcast(bench->comm, &repeats, 1, CHOIR_DTYPE_I32, 0,
                                 "repeats"));
  *out_repeats = repeats;
  return NULL;
}

static choir_status_t run_batch(bench_t* bench, choir_collective_kind_t kind,
                                size_t bytes, float* src, float* dst,
                                int repeats, double* out_seconds) {
  double total = 0;
  double start = choir_clock_seconds();
  for (int i = 0; i < repeats; ++i) {
    if (bench->options.touch) {
      memset(dst, 0, bytes);
      CHOIR_TRY(choir_comm_barrier(bench->comm, "touched"));
      start = choir_clock_seconds();
    }
    CHOIR_TRY(run_once(bench, kind, src, dst, bytes));
    if (bench->options.touch) total += choir_clock_seconds() - start;
  }
  if (!bench->options.touch) total = choir_clock_seconds() - start;
  *out_seconds = total / repeats;
  return NULL;
}

static choir_status_t measure(bench_t* bench, choir_collective_kind_t kind,
                              const char* memory, size_t bytes, float* src,
                              float* dst) {
  double seconds[BATCHES];
  int repeats = 1;
  for (int i = 0; i < 3; ++i) {
    double start = choir_clock_seconds();
    CHOIR_TRY(run_once(bench, kind, src, dst, bytes));
    seconds[0] = choir_clock_seconds() - start;
  }
  CHOIR_TRY(choose_repeats(bench, seconds[0], &repeats));
  for (int batch = 0; batch < BATCHES; ++batch) {
    // Sums grow; zeros stay, and take as long.
    memset(dst, 0, bytes);
    memset(src, 0, bytes);
    CHOIR_TRY(choir_comm_barrier(bench->comm, "batch"));
    seconds[batch] = 0;
    CHOIR_TRY(
        run_batch(bench, kind, bytes, src, dst, repeats, &seconds[batch]));
  }
  if (bench->rank == 0)
    print_case(bench, kind, memory, bytes, repeats, seconds);
  return NULL;
}

static choir_status_t run_case(bench_t* bench, choir_collective_kind_t kind,
                               bool shared, size_t bytes) {
  choir_buffer_t* buffers[2] = {NULL, NULL};
  choir_status_t status = NULL;
  for (int i = 0; i < 2 && !status; ++i)
    status = shared ? choir_comm_buffer_create(bench->comm, bench->device,
                                               bytes, &buffers[i])
                    : choir_buffer_create(bench->device, bytes, &buffers[i]);
  if (!status)
    status =
        measure(bench, kind, shared ? "comm" : "private", bytes,
                choir_buffer_data(buffers[0]), choir_buffer_data(buffers[1]));
  choir_buffer_release(buffers[0]);
  choir_buffer_release(buffers[1]);
  return status;
}

static choir_status_t run_all(bench_t* bench) {
  const options_t* options = &bench->options;
  for (int k = 0; k < CHOIR_COLLECTIVE_COUNT; ++k) {
    // Operations of two ranks, not of all.
    if (k == CHOIR_COLLECTIVE_SEND || k == CHOIR_COLLECTIVE_RECEIVE) continue;
    if (!same(options->collective, "all") &&
        !same(options->collective, kind_names[k]))
      continue;
    for (int shared = 1; shared >= 0; --shared) {
      if (same(options->memory, shared ? "private" : "comm")) continue;
      for (int i = 0; i < options->size_count; ++i)
        CHOIR_TRY(run_case(bench, (choir_collective_kind_t)k, shared,
                           options->sizes[i]));
    }
  }
  return choir_comm_finalize(bench->comm);
}

static choir_status_t run_worker(bench_t* bench) {
  choir_comm_config_t config;
  CHOIR_TRY(choir_comm_config_init(&config));
  if (same(config.backend, "auto")) config.backend = bench->options.comm;
  config.segment_bytes = (size_t)64 << 20;
  choir_device_options_t device_options = {.threads = 1};
  CHOIR_TRY(choir_device_create("cpu", &device_options, &bench->device));
  CHOIR_TRY(choir_comm_create(&config, &bench->comm));
  bench->rank = choir_comm_rank(bench->comm);
  bench->size = choir_comm_size(bench->comm);
  if (bench->size > MAX_WORKERS)
    return CHOIR_ERROR(INVALID_ARGUMENT, "%d ranks; at most %d", bench->size,
                       MAX_WORKERS);
  if (bench->rank == 0 && !bench->options.json)
    printf("%-14s %-4s %2s %-7s %10s %12s %8s %9s %9s\n", "collective", "comm",
           "n", "memory", "bytes", "median us", "spread", "algbw GB", "busbw");
  return run_all(bench);
}

int main(int argc, char** argv) {
  bench_t bench = {0};
  int wrong = parse(argc, argv, &bench.options);
  if (wrong) return wrong;
  if (!bench_is_worker())
    return bench_launch(program, argv, bench.options.workers,
                        bench.options.comm);
  choir_status_t status = run_worker(&bench);
  choir_comm_release(bench.comm);
  choir_device_release(bench.device);
  return status ? bench_fail(program, status, 1) : 0;
}
