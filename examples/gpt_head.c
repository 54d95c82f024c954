// SPDX-License-Identifier: Apache-2.0
// What the last matrix makes of a GPT's rows: scores, or at once the loss.
#include "examples/gpt.h"

// Of (vocabulary, width) the table of tokens (Press and Wolf, 2017), else the
// head, (width, vocabulary). After gpt_run, which makes the table.
static choir_var_t* matrix(choir_scope_t* s, const gpt_t* g) {
  return choir_scope_param(s,
                           choir_layer_param(g->head ? g->head : g->tokens, 0));
}

static choir_var_t* scores(choir_scope_t* s, void* self, choir_vars_t inputs) {
  const gpt_t* g = self;
  choir_var_t* x = gpt_run(s, g, inputs.at[0]);
  if (g->head) return choir_layer_forward(s, g->head, x);
  const choir_matmul_attrs_t attrs = {.transpose_b = true};
  return choir_var_matmul(s, x, matrix(s, g), &attrs);
}

static choir_var_t* loss(choir_scope_t* s, void* self, choir_vars_t inputs,
                         choir_vars_t targets) {
  const gpt_t* g = self;
  choir_var_t* x = gpt_run(s, g, inputs.at[0]);
  const choir_linear_cross_entropy_attrs_t attrs = {.transpose = !g->head};
  return choir_var_linear_cross_entropy(s, x, targets.at[0], matrix(s, g),
                                        &attrs);
}

const choir_model_def_t gpt_def = {
    .name = "gpt", .define = gpt_define, .forward = scores};
const choir_model_def_t gpt_loss_def = {
    .name = "gpt", .define = gpt_define, .forward = scores, .loss = loss};

bool gpt_has_large_scores(const gpt_config_t* config, int64_t windows) {
  return windows * config->context > config->width &&
         config->vocabulary > 4 * config->width;
}
