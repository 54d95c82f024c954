// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_FAKE_MPI_PLUGIN_H_
#define CHOIR_TESTS_DIST_FAKE_MPI_PLUGIN_H_

// A world of two ranks of which only this process, rank 0, is there: what it
// receives of rank 1 is zeros, at once, until the script says otherwise.
typedef struct fake_mpi_s {
  int send_code;       // not 0: what every send returns
  int receive_code;    // not 0: what every receive ends with
  int never_receives;  // receives stay open
  int open_receives;   // posted for an operation, neither done nor cancelled
} fake_mpi_t;

#define FAKE_MPI_SYMBOL "fake_mpi"

#endif  // CHOIR_TESTS_DIST_FAKE_MPI_PLUGIN_H_
