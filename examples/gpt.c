// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt.h"

#include <math.h>
#include <stdio.h>

#define RUN(layer, x) choir_layer_forward(s, layer, x)

static choir_layer_t* norm(choir_model_t* m, const char* id,
                           const gpt_config_t* c) {
  if (c->rms_norm) return choir_layer_rms_norm(m, id, .epsilon = c->epsilon);
  return choir_layer_layer_norm(m, id, .epsilon = c->epsilon, .bias = c->bias);
}

static void define_block(choir_model_t* m, void* self) {
  gpt_block_t* b = self;
  const gpt_config_t* c = b->config;
  // What is added to the stream starts smaller, the more is added.
  const double in = 0.02, out = in / sqrt(2.0 * (double)c->layers);
  b->norm1 = norm(m, "norm1", c);
  b->attention = choir_layer_multi_head_attention(
      m, "attention", .num_heads = c->heads, .kv_heads = c->kv_heads,
      .rotary = c->rotary, .causal = true, .bias = c->bias,
      .dropout = c->dropout, .deviation = in, .out_deviation = out);
  b->norm2 = norm(m, "norm2", c);
  b->mlp = choir_layer_feed_forward(
      m, "mlp", .hidden_size = c->hidden, .gated = c->gated, .bias = c->bias,
      .activation = c->activation, .deviation = in, .out_deviation = out);
  b->dropout = choir_layer_dropout(m, "dropout", .ratio = c->dropout);
}

static choir_var_t* run_block(choir_scope_t* s, void* self, choir_vars_t in) {
  const gpt_block_t* b = self;
  choir_var_t* x = in.at[0];
  x = choir_var_add(s, x, RUN(b->dropout, RUN(b->attention, RUN(b->norm1, x))));
  return choir_var_add(s, x, RUN(b->dropout, RUN(b->mlp, RUN(b->norm2, x))));
}

static const choir_block_def_t block_def = {define_block, run_block};

void gpt_define(choir_model_t* m, void* self) {
  gpt_t* g = self;
  const gpt_config_t* c = &g->config;
  g->tokens = choir_layer_embedding(m, "tokens", .deviation = 0.02,
                                    .num_embeddings = c->vocabulary,
                                    .embedding_dim = c->width);
  if (c->rotary == 0)
    g->positions = choir_layer_position_embedding(
        m, "positions", .num_embeddings = c->context, .deviation = 0.02);
  g->dropout = choir_layer_dropout(m, "dropout", .ratio = c->dropout);
  for (int64_t i = 0; i < c->layers; ++i) {
    char name[16];
    snprintf(name, sizeof(name), "block%d", (int)i);
    g->parts[i].config = c;
    g->blocks[i] = choir_layer_block(m, name, &block_def, &g->parts[i]);
    choir_layer_set_recompute(g->blocks[i], c->recompute);
  }
  g->norm = norm(m, "norm", c);
  if (c->head)
    g->head = choir_layer_linear(m, "head", .out_features = c->vocabulary,
                                 .bias = false, .deviation = 0.02);
}

choir_var_t* gpt_run(choir_scope_t* s, const gpt_t* g, choir_var_t* ids) {
  choir_var_t* x = RUN(g->tokens, ids);
  x = RUN(g->dropout, g->positions ? RUN(g->positions, x) : x);
  for (int64_t i = 0; i < g->config.layers; ++i) x = RUN(g->blocks[i], x);
  return RUN(g->norm, x);
}
