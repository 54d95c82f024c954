// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_OPTIMIZER_H_
#define CHOIR_EXAMPLES_GPT_OPTIMIZER_H_

#include "choir.h"

// AdamW as nanoGPT has it: matrices decay, biases and the scales of norms do
// not, and the norm of all gradients is limited to 1.
choir_status_t gpt_make_optimizer(double lr, double beta2, double weight_decay,
                                  choir_optimizer_t** out_optimizer)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_GPT_OPTIMIZER_H_
