// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_H_
#define CHOIR_EXAMPLES_GPT_H_

#include "choir.h"

// A GPT (Radford et al., 2019): tokens (n, t) of i32 -> scores of the next one
// (n, t, vocabulary).

// Its sizes, which are a program's flags too. A vocabulary of 0 is for the
// program to fill in.
#define GPT_FIELDS(X, T)                                                   \
  X(T, INT, layers, 4, 1, 64, "blocks")                                    \
  X(T, INT, heads, 4, 1, 1024, "heads of attention")                       \
  X(T, INT, width, 128, 1, 1e6, "elements of a token's vector")            \
  X(T, INT, context, 64, 1, 1e6, "tokens of a window")                     \
  X(T, INT, vocabulary, 0, 0, 1e9, "different tokens; 0: as the text has") \
  X(T, FLOAT, dropout, 0, 0, 0.999999, "share of elements set to 0")       \
  X(T, BOOL, bias, false, 0, 1, "of products and norms")                   \
  X(T, BOOL, gelu_tanh, false, 0, 1, "gelu by its approximation, as GPT-2 has")
CHOIR_CONFIG_STRUCT(gpt_config_t, GPT_FIELDS);
enum { GPT_MAX_LAYERS = 64 };

typedef struct gpt_block_s {
  const gpt_config_t* config;
  choir_layer_t *norm1, *attention, *norm2, *expand, *shrink, *dropout;
} gpt_block_t;

typedef struct gpt_s {
  gpt_config_t config;  // the caller sets it
  gpt_block_t parts[GPT_MAX_LAYERS];
  choir_layer_t *tokens, *positions, *dropout, *blocks[GPT_MAX_LAYERS], *norm;
} gpt_t;

extern const choir_model_def_t gpt_def;  // its `self` is a gpt_t

#endif  // CHOIR_EXAMPLES_GPT_H_
