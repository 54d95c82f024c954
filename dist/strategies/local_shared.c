// SPDX-License-Identifier: Apache-2.0
#include "dist/strategies/local_shared.h"

#include "core/profile.h"
#include "dist/comm_shared_def.h"
#include "dist/compress_internal.h"

static choir__local_t* as_local(choir_strategy_t* strategy) {
  return (choir__local_t*)strategy;
}

choir_status_t choir__local_check(int64_t period, int64_t delay, bool nesterov,
                                  double outer_momentum) {
  if (delay >= period)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "delay is %lld steps and period %lld; a round must end "
                       "before the next one begins",
                       (long long)delay, (long long)period);
  if (nesterov && outer_momentum == 0)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "nesterov is set and outer_momentum is 0; it needs "
                       "some");
  return NULL;
}

// ---- Life ----

static choir_status_t make_array(choir__local_t* self, float** out_array) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(self->base.allocator,
                           (size_t)self->count * sizeof(float),
                           "copy of the parameters", &memory));
  *out_array = memory;
  return NULL;
}

static choir_status_t make_buffer(choir__local_t* self,
                                  choir_buffer_t** out_buffer,
                                  float** out_data) {
  CHOIR_TRY(choir_comm_buffer_create(self->base.comm, self->base.device,
                                     (size_t)self->count * sizeof(float),
                                     out_buffer));
  *out_data = choir_buffer_data(*out_buffer);
  return NULL;
}

choir_status_t choir__local_attach(choir__local_t* self) {
  choir_strategy_t* strategy = &self->base;
  CHOIR_TRY(choir__strategy_need_f32(strategy));
  self->count = choir__flat_count(strategy);
  CHOIR_TRY(make_buffer(self, &self->deltas, &self->delta));
  CHOIR_TRY(make_buffer(self, &self->averages, &self->average));
  CHOIR_TRY(make_array(self, &self->anchor));
  if (self->outer_momentum == 0) return NULL;
  void* velocity = NULL;
  CHOIR_TRY(choir__strategy_make_state(strategy, CHOIR_DTYPE_F32, self->count,
                                       &self->velocity_tensor, &velocity));
  self->velocity = velocity;
  return NULL;
}

static choir_status_t end_exchange(choir__local_t* self) {
  choir_work_t* work = self->work;
  self->work = NULL;
  return choir_work_wait(work);
}

void choir__local_detach(choir_strategy_t* strategy) {
  choir__local_t* self = as_local(strategy);
  // It uses the buffers.
  if (self->work) choir_status_free(end_exchange(self));
  choir_buffer_release(self->deltas);
  choir_buffer_release(self->averages);
  choir_deallocate(strategy->allocator, self->anchor,
                   (size_t)self->count * sizeof(float));
  choir_tensor_release(self->velocity_tensor);
  self->deltas = NULL;
  self->averages = NULL;
  self->anchor = NULL;
  self->velocity_tensor = NULL;
  self->velocity = NULL;
}

void choir__local_take_params(choir_strategy_t* strategy) {
  choir__local_t* self = as_local(strategy);
  choir__flat_read(strategy, 0, self->count, self->anchor);
  self->steps = 0;
  self->samples = 0;
}

size_t choir__local_states(const choir_strategy_t* strategy,
                           choir_named_tensor_t* out_states) {
  const choir__local_t* self = (const choir__local_t*)strategy;
  if (!self->velocity_tensor) return 0;
  if (out_states)
    *out_states =
        (choir_named_tensor_t){"outer/velocity", self->velocity_tensor, NULL};
  return 1;
}

// ---- A round ----

static void take_delta(void* self_, const choir__flat_piece_t* piece) {
  choir__local_t* self = self_;
  choir__pass_subtract(self->anchor + piece->at, piece->value, piece->count,
                       self->delta + piece->at);
}

// `steps` are done; `step` is the last of them, NULL: in none.
static choir_status_t begin_round(choir__local_t* self, int64_t steps,
                                  const choir_step_values_t* step) {
  choir_strategy_t* strategy = &self->base;
  choir__flat_visit(strategy, 0, self->count, take_delta, self);
  choir_collective_t collective;
  CHOIR_TRY(self->encode(self, (double)self->samples, &collective));
  choir__comm_set_step(&collective, step);
  self->started = steps;
  self->steps = 0;
  self->samples = 0;
  return choir_comm_start(strategy->comm, &collective, &self->work);
}

// anchor - replica was delta, so replica - anchor + delta is what came since:
// exactly 0 where nothing did, which makes the replicas equal.
static void put_anchor_under(void* self_, const choir__flat_piece_t* piece) {
  choir__local_t* self = self_;
  float* anchor = self->anchor + piece->at;
  const float* delta = self->delta + piece->at;
  const float* average = self->average + piece->at;
  float* velocity = self->velocity ? self->velocity + piece->at : NULL;
  for (int64_t i = 0; i < piece->count; ++i) {
    float step = average[i];
    if (velocity) {
      velocity[i] = self->outer_momentum * velocity[i] + average[i];
      step = self->nesterov ? average[i] + self->outer_momentum * velocity[i]
                            : velocity[i];
    }
    const float since = (piece->value[i] - anchor[i]) + delta[i];
    anchor[i] = anchor[i] - self->outer_lr * step;
    piece->value[i] = anchor[i] + since;
  }
}

static choir_status_t end_round(choir__local_t* self) {
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_WAIT);
  choir_status_t status = end_exchange(self);
  choir_span_end(&span, "wait", "exchange of parameters", NULL);
  CHOIR_TRY(status);
  if (self->decode) CHOIR_TRY(self->decode(self));
  choir__flat_visit(&self->base, 0, self->count, put_anchor_under, self);
  return NULL;
}

choir_status_t choir__local_combine(choir_strategy_t* strategy,
                                    const choir_step_values_t* values) {
  choir__local_t* self = as_local(strategy);
  const int64_t steps = values->step + 1;
  ++self->steps;
  self->samples += values->sample_count;
  if (self->work && steps >= self->started + self->delay)
    CHOIR_TRY(end_round(self));
  if (steps % self->period != 0) return NULL;
  CHOIR_TRY(begin_round(self, steps, values));
  return self->delay == 0 ? end_round(self) : NULL;
}

choir_status_t choir__local_consolidate(choir_strategy_t* strategy) {
  choir__local_t* self = as_local(strategy);
  if (self->work) CHOIR_TRY(end_round(self));
  if (self->steps == 0) return NULL;
  CHOIR_TRY(begin_round(self, self->started, NULL));
  return end_round(self);
}
