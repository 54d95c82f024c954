// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_SAMPLE_H_
#define CHOIR_EXAMPLES_GPT_SAMPLE_H_

#include "choir.h"

// How a model goes on with a text.
typedef struct gpt_sample_s {
  const char* prompt;  // UTF-8; "" is a line's end
  int64_t count;       // tokens to draw
  double temperature;  // divides scores; 0: the largest one is taken
  int64_t context;     // tokens that the model sees
  int64_t seed;
} gpt_sample_t;

// Draws tokens one by one, each from the scores behind all before it, and
// prints the prompt and what comes, if it `prints`: texts, or ids where the
// tokens have none. The model takes (1, context) ids and gives (1, context,
// vocabulary).
choir_status_t gpt_sample(choir_model_t* model, const choir_tokens_t* tokens,
                          const gpt_sample_t* sample, bool prints)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_GPT_SAMPLE_H_
