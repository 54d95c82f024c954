// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_DIST_MAIN_H_
#define CHOIR_EXAMPLES_DIST_MAIN_H_

#include "examples/trainer.h"

// The main of a program that trains `task` with one or several workers; returns
// its exit status. Started by a user it starts the workers, which are this
// program again (--launcher spawn), or hands that to mpiexec (--launcher mpi).
// Under a user's own mpiexec it is a worker at once. `name`: the program's,
// static.
int dist_main(const char* name, const train_task_t* task, int argc,
              char** argv);

#endif  // CHOIR_EXAMPLES_DIST_MAIN_H_
