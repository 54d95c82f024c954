// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_STRATEGIES_LOCAL_SHARED_H_
#define CHOIR_DIST_STRATEGIES_LOCAL_SHARED_H_

#include "dist/strategies/flat_shared.h"

// Rounds of local steps. All ranks share an anchor; each trains on its own
// replica for `period` steps. A round takes delta = anchor - replica (a
// gradient over many steps, so to say), averages it over ranks by samples,
// makes an outer step from the anchor with it, and puts the new anchor under
// each replica, with what the rank did since the round began:
//
//   v = outer_momentum v + delta                  v: zeros at first
//   anchor' = anchor - outer_lr (nesterov ? delta + outer_momentum v : v)
//   replica = anchor' + (replica - replica when the round began)
//
// With `delay` steps between start and end the exchange runs while the next
// local steps do. Rounds begin and end at fixed steps, not when a message
// comes, so that runs repeat bit for bit.
//
// Lian et al. 2015; Stich 2019 (local SGD); Douillard et al. 2023 (DiLoCo: the
// outer Nesterov step).

typedef struct choir__local_s choir__local_t;
struct choir__local_s {
  choir_strategy_t base;  // first
  // Set before choir__local_attach.
  int64_t period;
  int64_t delay;
  float outer_lr;
  float outer_momentum;
  bool nesterov;
  // `delta` is there, for a rank of this weight; what to exchange. And what
  // came: into `average`. NULL: it is there.
  choir_status_t (*encode)(choir__local_t* self, double weight,
                           choir_collective_t* out_collective);
  choir_status_t (*decode)(choir__local_t* self);

  int64_t count;           // of all that follows
  choir_buffer_t* deltas;  // in the communicator's memory
  choir_buffer_t* averages;
  float* delta;
  float* average;
  float* anchor;
  choir_tensor_t* velocity_tensor;  // NULL without outer momentum
  float* velocity;
  choir_work_t* work;  // of the exchange under way, or NULL
  int64_t started;     // steps when it began
  int64_t steps;       // since the last round
  int64_t samples;
};

choir_status_t choir__local_attach(choir__local_t* self);
void choir__local_detach(choir_strategy_t* strategy);
void choir__local_take_params(choir_strategy_t* strategy);
choir_status_t choir__local_combine(choir_strategy_t* strategy,
                                    const choir_step_values_t* values);
choir_status_t choir__local_consolidate(choir_strategy_t* strategy);
// The outer velocity.
size_t choir__local_states(const choir_strategy_t* strategy,
                           choir_named_tensor_t* out_states);

// For a strategy's `check`.
choir_status_t choir__local_check(int64_t period, int64_t delay, bool nesterov,
                                  double outer_momentum);

#endif  // CHOIR_DIST_STRATEGIES_LOCAL_SHARED_H_
