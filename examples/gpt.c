// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt.h"

#include <math.h>
#include <stdio.h>

static void define_block(choir_model_t* model, void* self) {
  gpt_block_t* b = self;
  const gpt_config_t* c = b->config;
  // What is added to the stream starts smaller, the more is added.
  const double in = 0.02, out = in / sqrt(2.0 * (double)c->layers);
  b->norm1 = choir_layer_layer_norm(model, "norm1", .bias = c->bias);
  b->attention = choir_layer_multi_head_attention(
      model, "attention", .num_heads = c->heads, .causal = true,
      .bias = c->bias, .dropout = c->dropout, .deviation = in,
      .out_deviation = out);
  b->norm2 = choir_layer_layer_norm(model, "norm2", .bias = c->bias);
  b->expand = choir_layer_linear(model, "expand", .out_features = 4 * c->width,
                                 .bias = c->bias, .deviation = in);
  b->shrink = choir_layer_linear(model, "shrink", .out_features = c->width,
                                 .bias = c->bias, .deviation = out);
  b->dropout = choir_layer_dropout(model, "dropout", .ratio = c->dropout);
}

static choir_var_t* forward_block(choir_scope_t* s, void* self,
                                  choir_vars_t inputs) {
  const gpt_block_t* b = self;
  choir_var_t *x = inputs.at[0], *y = choir_layer_forward(s, b->norm1, x);
  y = choir_layer_forward(s, b->attention, y);
  x = choir_var_add(s, x, choir_layer_forward(s, b->dropout, y));
  y = choir_layer_forward(s, b->norm2, x);
  y = choir_layer_forward(s, b->expand, y);
  y = b->config->gelu_tanh ? choir_var_gelu_tanh(s, y) : choir_var_gelu(s, y);
  y = choir_layer_forward(s, b->shrink, y);
  return choir_var_add(s, x, choir_layer_forward(s, b->dropout, y));
}

static const choir_block_def_t block_def = {define_block, forward_block};

static void define(choir_model_t* model, void* self) {
  gpt_t* g = self;
  const gpt_config_t* c = &g->config;
  g->tokens = choir_layer_embedding(model, "tokens", .deviation = 0.02,
                                    .num_embeddings = c->vocabulary,
                                    .embedding_dim = c->width);
  g->positions = choir_layer_position_embedding(
      model, "positions", .num_embeddings = c->context, .deviation = 0.02);
  g->dropout = choir_layer_dropout(model, "dropout", .ratio = c->dropout);
  for (int64_t i = 0; i < c->layers; ++i) {
    char name[16];
    snprintf(name, sizeof(name), "block%d", (int)i);
    g->parts[i].config = c;
    g->blocks[i] = choir_layer_block(model, name, &block_def, &g->parts[i]);
  }
  g->norm = choir_layer_layer_norm(model, "norm", .bias = c->bias);
}

static choir_var_t* forward(choir_scope_t* s, void* self, choir_vars_t inputs) {
  const gpt_t* g = self;
  choir_var_t* x = choir_layer_forward(s, g->tokens, inputs.at[0]);
  x = choir_layer_forward(s, g->positions, x);
  x = choir_layer_forward(s, g->dropout, x);
  for (int64_t i = 0; i < g->config.layers; ++i)
    x = choir_layer_forward(s, g->blocks[i], x);
  x = choir_layer_forward(s, g->norm, x);
  // The table of tokens is the last matrix too (Press and Wolf, 2017).
  choir_var_t* w = choir_scope_param(s, choir_layer_param(g->tokens, 0));
  return choir_var_matmul(s, x, w,
                          &(choir_matmul_attrs_t){.transpose_b = true});
}

const choir_model_def_t gpt_def = {
    .name = "gpt", .define = define, .forward = forward};
