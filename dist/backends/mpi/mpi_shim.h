// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BACKENDS_MPI_MPI_SHIM_H_
#define CHOIR_DIST_BACKENDS_MPI_MPI_SHIM_H_

// What libchoir.so and libchoir_mpi.so have in common: a table of the few MPI
// calls that the backend needs, in plain C. So libchoir.so links no MPI, and
// libchoir_mpi.so knows nothing of Choir and can be built against another MPI.
//
// Codes are MPI's; 0 is success. Threads: one call at a time, by the caller's
// care.

#define CHOIR_MPI_SHIM_VERSION 1
#define CHOIR_MPI_SHIM_SYMBOL "choir_mpi_shim"

typedef struct choir_mpi_request_s {
  void* word;  // an MPI_Request, whatever that is
} choir_mpi_request_t;

enum {
  CHOIR_MPI_THREAD_LESS = 0,
  CHOIR_MPI_THREAD_SERIALIZED = 2,
  CHOIR_MPI_THREAD_MULTIPLE = 3,
};

typedef struct choir_mpi_shim_s {
  int version;
  // Whether the program has MPI under way (initialised, not finalized).
  int (*is_running)(void);
  int (*is_finalized)(void);
  // MPI_Init_thread with MPI_THREAD_SERIALIZED. Blocks.
  int (*init)(void);
  // The thread level that MPI gives.
  int (*thread_level)(void);
  // A copy of MPI_COMM_WORLD on which errors are returned. Call until *out_done
  // is set; never blocks.
  int (*open_world)(int* out_done);
  int (*rank)(void);
  int (*size)(void);
  int (*isend)(const void* data, int bytes, int peer, int tag,
               choir_mpi_request_t* out_request);
  int (*irecv)(void* data, int bytes, int peer, int tag,
               choir_mpi_request_t* out_request);
  // *out_done is set when the request is over and its memory free.
  int (*test)(choir_mpi_request_t* request, int* out_done);
  int (*cancel)(choir_mpi_request_t* request);
  // Blocks.
  int (*finalize)(void);
  void (*error_text)(int code, char* text, int text_bytes);
} choir_mpi_shim_t;

typedef const choir_mpi_shim_t* (*choir_mpi_shim_function_t)(void);

#endif  // CHOIR_DIST_BACKENDS_MPI_MPI_SHIM_H_
