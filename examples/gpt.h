// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_H_
#define CHOIR_EXAMPLES_GPT_H_

#include "choir.h"

// A GPT (Radford et al., 2019) or, by its settings, a Llama (Touvron et al.,
// 2023, arXiv:2302.13971): tokens (n, t) of i32 -> scores of the next one
// (n, t, vocabulary).

// Its sizes, which are a program's flags too. A vocabulary of 0 is for the
// program to fill in.
#define GPT_FIELDS(X, T)                                                    \
  X(T, INT, layers, 4, 1, 64, "blocks")                                     \
  X(T, INT, heads, 4, 1, 1024, "heads of attention")                        \
  X(T, INT, width, 128, 1, 1e6, "elements of a token's vector")             \
  X(T, INT, context, 64, 1, 1e6, "tokens of a window")                      \
  X(T, INT, vocabulary, 0, 0, 1e9, "different tokens; 0: as the text has")  \
  X(T, FLOAT, dropout, 0, 0, 0.999999, "share of elements set to 0")        \
  X(T, BOOL, bias, false, 0, 1, "of products and norms")                    \
  X(T, ENUM, activation, 0, choir_hidden_activation_names, 0,               \
    "of the feed-forward layers")                                           \
  X(T, BOOL, gated, false, 0, 1, "multiply it by a third product (SwiGLU)") \
  X(T, INT, hidden, 0, 0, 1e9, "columns between the two; 0: 4 x width")     \
  X(T, INT, kv_heads, 0, 0, 1024, "of key and value; 0: as heads")          \
  X(T, FLOAT, rotary, 0, 0, 1e12,                                           \
    "theta of rotary positions; 0: positions are learnt")                   \
  X(T, BOOL, rms_norm, false, 0, 1, "in place of layer norm")               \
  X(T, FLOAT, epsilon, 1e-5, 1e-12, 1, "of norms, added below the root")    \
  X(T, BOOL, head, false, 0, 1, "a last matrix apart from the tokens'")     \
  X(T, BOOL, recompute, false, 0, 1,                                        \
    "activation checkpointing: backward computes those of a block again")
CHOIR_CONFIG_STRUCT(gpt_config_t, GPT_FIELDS);
// Constant ones: the first fields by place, others by name, or as above.
#define GPT_SIZES(...) \
  { __VA_ARGS__, .epsilon = 1e-5 }
enum { GPT_MAX_LAYERS = 64 };

typedef struct gpt_block_s {
  const gpt_config_t* config;
  choir_layer_t *norm1, *attention, *norm2, *mlp, *dropout;
} gpt_block_t;

typedef struct gpt_s {
  gpt_config_t config;  // the caller sets it
  gpt_block_t parts[GPT_MAX_LAYERS];
  choir_layer_t *tokens, *positions, *dropout, *blocks[GPT_MAX_LAYERS], *norm;
  choir_layer_t* head;  // NULL, as positions: the model has none
} gpt_t;

// Its `self`, zeros at first, is a gpt_t. gpt_loss_def trains and evaluates
// without the scores, and counts no hits: for steps whose scores would be their
// largest tensor.
extern const choir_model_def_t gpt_def, gpt_loss_def;
bool gpt_has_large_scores(const gpt_config_t* config, int64_t windows);

// gpt.c: layers, and rows (n, t, width) for ids (n, t) up to the last norm.
void gpt_define(choir_model_t* model, void* gpt);
choir_var_t* gpt_run(choir_scope_t* scope, const gpt_t* gpt, choir_var_t* ids);

#endif  // CHOIR_EXAMPLES_GPT_H_
