// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt_optimizer.h"

choir_status_t gpt_make_optimizer(double lr, double beta2, double weight_decay,
                                  choir_optimizer_t** out_optimizer) {
  const choir_gradient_clip_t clip = {.norm = 1};
  CHOIR_TRY(choir_optimizer_adamw(out_optimizer, .lr = lr, .beta1 = 0.9,
                                  .beta2 = beta2,
                                  .weight_decay = weight_decay));
  CHOIR_TRY(choir_optimizer_add_group(
      *out_optimizer, .match = "*.b,*.bias,*.scale", .weight_decay = 0));
  return choir_optimizer_set_clip(*out_optimizer, &clip);
}
