// SPDX-License-Identifier: Apache-2.0
// The ranks that mpiexec started on this host, by their environments in /proc:
// while they are in MPI_Init nobody else can say where they are.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/backends/mpi/mpi_internal.h"

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

static bool is_stopped(int32_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  FILE* file = fopen(path, "re");
  if (!file) return false;
  text[fread(text, 1, sizeof(text) - 1, file)] = 0;
  fclose(file);
  const char* end = strrchr(text, ')');
  return end && (!strncmp(end, ") T", 3) || !strncmp(end, ") t", 3));
}

// Of a rank that has started others the stopped one is told, else the first.
static void note_process(job_t* job, int32_t pid) {
  static const char name_of[] = "PMIX_NAMESPACE=";
  static const char rank_of[] = "OMPI_COMM_WORLD_RANK=";
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/environ", pid);
  FILE* file = fopen(path, "re");
  if (!file) return;
  char* entry = NULL;
  size_t entry_bytes = 0;
  bool is_ours = false;
  int32_t rank = -1;
  while (getdelim(&entry, &entry_bytes, 0, file) > 0) {
    if (!strncmp(entry, name_of, sizeof(name_of) - 1))
      is_ours = !strcmp(entry + sizeof(name_of) - 1, job->name);
    if (!strncmp(entry, rank_of, sizeof(rank_of) - 1))
      rank = (int32_t)atoi(entry + sizeof(rank_of) - 1);
  }
  free(entry);
  fclose(file);
  if (!is_ours || rank < 0 || rank >= job->size) return;
  seen_t* seen = &job->seen[rank];
  const bool stands = is_stopped(pid);
  if (seen->pid && !stands) return;
  *seen = (seen_t){pid, stands};
}

static void look(job_t* job) {
  DIR* proc = opendir("/proc");
  if (!proc) return;
  for (struct dirent* entry; (entry = readdir(proc));) {
    const int32_t pid = (int32_t)atoi(entry->d_name);
    if (pid > 0) note_process(job, pid);
  }
  closedir(proc);
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
  look(&job);
  describe(&job, text, text_bytes);
  choir_deallocate(allocator, memory, bytes);
}
