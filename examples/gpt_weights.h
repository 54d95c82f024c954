// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_WEIGHTS_H_
#define CHOIR_EXAMPLES_GPT_WEIGHTS_H_

#include "choir.h"

// GPT-2's weights as Hugging Face's transformers stores them: safetensors files
// with its names of the parameters ("transformer.h.0.attn.c_attn.weight").

// Sets the parameters of a gpt_def, which has its updater, to those of `path`:
// f32, or f16 or bf16, which are cast. Names may lack the prefix "transformer."
// Each parameter must be there with its shape and nothing else, but for masks
// of attention and an lm_head.weight equal to wte.weight (INVALID_ARGUMENT,
// with the tensor's name; parameters may be set in part then).
choir_status_t gpt_read_weights(choir_model_t* model, const char* path)
    CHOIR_NODISCARD;

// Writes the parameters, whole or not at all.
choir_status_t gpt_write_weights(choir_model_t* model, const char* path)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_GPT_WEIGHTS_H_
