// SPDX-License-Identifier: Apache-2.0
// The ranks that mpiexec started on this host, by their environments in /proc:
// while they are in MPI_Init nobody else can say where they are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/backends/mpi/mpi_internal.h"
#include "dist/proc_internal.h"

typedef struct seen_s {
  int32_t pid;  // 0: not there
  bool is_stopped;
} seen_t;

typedef struct job_s {
  const char* name;  // of all processes of one mpiexec
  int32_t size;
  int32_t local_size;
  seen_t* seen;  // [size]
} job_t;

static int32_t number_of(const char* variable) {
  const char* text = getenv(variable);
  return text ? (int32_t)atoi(text) : 0;
}

// Of a rank that has started others the stopped one is told, else the first.
static void note_process(job_t* job, const choir__folder_t* proc,
                         const choir__process_t* process) {
  char name[256], number[16];
  if (!choir__process_variable(proc, process, "PMIX_NAMESPACE=", name,
                               sizeof(name)) ||
      strcmp(name, job->name) != 0 ||
      !choir__process_variable(proc, process, "OMPI_COMM_WORLD_RANK=", number,
                               sizeof(number)))
    return;
  const int32_t rank = (int32_t)atoi(number);
  if (rank < 0 || rank >= job->size) return;
  seen_t* seen = &job->seen[rank];
  const bool is_stopped = process->state == 'T' || process->state == 't';
  if (seen->pid && !is_stopped) return;
  *seen = (seen_t){process->pid, is_stopped};
}

static void read_processes(job_t* job) {
  choir__folder_t proc;
  choir__process_t process;
  if (!choir__processes_open(&proc)) return;
  while (choir__processes_next(&proc, &process))
    note_process(job, &proc, &process);
  choir__folder_close(&proc);
}

static void describe(const job_t* job, char* text, size_t text_bytes) {
  // Those of other hosts are not seen here.
  const bool has_all = job->local_size == job->size;
  for (int32_t r = 0; r < job->size; ++r) {
    char one[64] = "";
    if (job->seen[r].is_stopped)
      snprintf(one, sizeof(one), "; rank %d (pid %d) is stopped", r,
               job->seen[r].pid);
    else if (!job->seen[r].pid && has_all)
      snprintf(one, sizeof(one), "; rank %d has ended", r);
    choir__text_append(text, text_bytes, one);
  }
}

void choir_mpi_describe_ranks(char* text, size_t text_bytes) {
  text[0] = 0;
  // $PMIX_NAMESPACE: Open MPI's name of the run, by which ranks of this host
  // that did not start are found.
  // $OMPI_COMM_WORLD_LOCAL_SIZE: Open MPI's number of ranks on this host; the
  // Python package divides the cores by it.
  job_t job = {.name = getenv("PMIX_NAMESPACE"),
               .size = number_of("OMPI_COMM_WORLD_SIZE"),
               .local_size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE")};
  if (!job.name || job.size < 1) return;
  choir_allocator_t allocator = choir_allocator_default();
  const size_t bytes = (size_t)job.size * sizeof(seen_t);
  void* memory = NULL;
  choir_status_t status = choir_allocate(allocator, bytes, "ranks", &memory);
  if (status) {
    choir_status_free(status);
    return;
  }
  job.seen = memory;
  read_processes(&job);
  describe(&job, text, text_bytes);
  choir_deallocate(allocator, memory, bytes);
}
