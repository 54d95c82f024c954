// SPDX-License-Identifier: Apache-2.0
// Lin, Han, Mao, Wang, Dally: "Deep Gradient Compression: Reducing the
// Communication Bandwidth for Distributed Training", ICLR 2018.
#include <math.h>

#include "dist/compress_gpu_internal.h"
#include "dist/strategies/sparse_shared.h"

CHOIR_STRATEGY_CONFIG(dgc, "dgc", CHOIR_DGC_FIELDS,
                      "the largest of summed-up momentum, the rest kept");

typedef struct dgc_s {
  choir__sparse_gradient_t base;  // first
  double momentum;  // the optimizer's, which applies none meanwhile
} dgc_t;

// The first share of the warm-up, a quarter of it the next, and so on: 25 %,
// 6.25 %, 1.6 %, 0.4 %.
static const double first_share = 0.25;
enum { WARMUP_STAGES = 4 };

static double share_at(const choir_dgc_config_t* config, int64_t step) {
  double share = config->spars;
  if (step < config->warmup_steps) {
    const double stage =
        floor((double)(WARMUP_STAGES * step) / (double)config->warmup_steps);
    share = pow(first_share, stage + 1);
  }
  return share > config->spars ? share : config->spars;
}

// u = m u + g; v += u. v is what is sent from.
static choir_status_t keep(choir__sparse_gradient_t* self,
                           choir__sparse_part_t* part, const float* grads,
                           choir_stream_t* stream) {
  const choir_dgc_config_t* config = &self->base.config.as_dgc;
  const double momentum = ((const dgc_t*)self)->momentum;
  if (!choir_device_is_host(self->base.device))
    return choir__gpu_momentum_add(stream, (float)momentum, 1, grads,
                                   part->sparse.count, part->velocity,
                                   part->residual);
  double factor = 1;
  if (config->clip > 0) {
    // Of a sum over N ranks each may have the part of a N^-1/2th.
    const double most =
        config->clip / sqrt((double)choir_comm_size(self->base.comm));
    const double norm = sqrt(choir__squared_norm(grads, part->sparse.count));
    if (norm > most) factor = most / norm;
  }
  choir__momentum_add((float)momentum, (float)factor, grads, part->sparse.count,
                      part->velocity, part->residual);
  return NULL;
}

static choir__sparse_choice_t choice(const choir__sparse_gradient_t* self,
                                     const choir__sparse_part_t* part,
                                     int64_t step) {
  const choir_dgc_config_t* config = &self->base.config.as_dgc;
  return (choir__sparse_choice_t){
      .k = choir__sparse_k(part->sparse.count, share_at(config, step))};
}

static choir_status_t attach(choir_strategy_t* strategy) {
  const choir_dgc_config_t* config = &strategy->config.as_dgc;
  dgc_t* self = (dgc_t*)strategy;
  self->base.choice = choice;
  self->base.keep = keep;
  const choir__sparse_setup_t setup = {
      .values = choir__sparse_values(config->values),
      .share = share_at(config, 0),
      .has_residual = true,
      .has_velocity = true,
      .has_top_k = true};
  CHOIR_TRY(choir__sparse_gradient_attach(&self->base, &setup));
  return choir_optimizer_take_momentum(strategy->optimizer, &self->momentum);
}

static void detach(choir_strategy_t* strategy) {
  dgc_t* self = (dgc_t*)strategy;
  if (self->momentum > 0)
    choir_optimizer_give_momentum(strategy->optimizer, self->momentum);
  self->momentum = 0;
  choir__sparse_gradient_detach(strategy);
}

// The norm is a sum in the order of the host's.
static bool works_on(const choir_strategy_t* strategy,
                     const choir_device_t* device) {
  return strategy->config.as_dgc.clip == 0 &&
         choir__sparse_gradient_works_on(strategy, device);
}

// After the warm-up.
static bool cost(const void* config_, const choir_workload_t* workload,
                 choir_strategy_cost_t* out_cost) {
  const choir_dgc_config_t* config = config_;
  const choir__message_config_t values = choir__sparse_values(config->values);
  *out_cost = (choir_strategy_cost_t){
      .gathered = choir__sparse_bytes(&values, workload->params, config->spars),
      .operations = workload->buckets,
      .period = 1,
      .overlaps = true,
      .passes = 8,
      .effort = 1.3};
  return true;
}

const choir_strategy_def_t choir_strategy_def_dgc = {
    .config = &config_def,
    .bytes = sizeof(dgc_t),
    .attach = attach,
    .detach = detach,
    .exchange = choir__sparse_gradient_exchange,
    .has_own_states = true,
    .states = choir__sparse_gradient_states,
    .cost = cost,
    .works_on = works_on,
};
