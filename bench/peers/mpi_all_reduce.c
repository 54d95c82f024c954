// SPDX-License-Identifier: Apache-2.0
// mpi_all_reduce BYTES[,BYTES...] [--touch]
// Times MPI_Allreduce of f32 sums in place and prints a JSON line for each
// size, as bench_collectives does. Started by mpiexec. --touch: each rank
// writes all of its memory before each repetition, untimed.
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 11 };
#define BATCH_SECONDS 0.02

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static bool touch;

static double run(float* data, size_t count, int repeats) {
  double total = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < repeats; ++i) {
    if (touch) {
      memset(data, 0, count * sizeof(float));
      MPI_Barrier(MPI_COMM_WORLD);
      start = MPI_Wtime();
    }
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    if (touch) total += MPI_Wtime() - start;
  }
  if (!touch) total = MPI_Wtime() - start;
  return total / repeats;
}

static void measure(size_t bytes, int rank, int size) {
  const size_t count = bytes / sizeof(float);
  float* data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!data) {
    MPI_Abort(MPI_COMM_WORLD, 1);
    return;
  }
  memset(data, 0, bytes);
  run(data, count, 3);
  double repeats = BATCH_SECONDS / run(data, count, 8) + 1;
  if (repeats > 20000) repeats = 20000;
  MPI_Bcast(&repeats, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  double seconds[BATCHES];
  for (int batch = 0; batch < BATCHES; ++batch)
    seconds[batch] = run(data, count, (int)repeats);
  qsort(seconds, BATCHES, sizeof(double), compare);
  if (rank == 0)
    printf(
        "{\"comm\": \"mpi\", \"ranks\": %d, \"bytes\": %zu, \"repeats\": %d, "
        "\"median_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f}\n",
        size, bytes, (int)repeats, seconds[BATCHES / 2] * 1e6, seconds[0] * 1e6,
        seconds[BATCHES - 1] * 1e6);
  free(data);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank;
  int size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  touch = argc == 3 && strcmp(argv[2], "--touch") == 0;
  const bool is_right = argc == 2 || touch;
  const char* sizes = is_right ? argv[1] : "";
  while (*sizes) {
    char* end;
    const size_t bytes = strtoull(sizes, &end, 10);
    if (end == sizes || bytes < sizeof(float)) break;
    measure(bytes / sizeof(float) * sizeof(float), rank, size);
    sizes = *end == ',' ? end + 1 : end;
  }
  MPI_Finalize();
  if (is_right && !*sizes) return 0;
  if (rank == 0)
    fprintf(stderr,
            "usage: mpiexec -n N mpi_all_reduce BYTES[,BYTES...] [--touch]\n");
  return 2;
}
