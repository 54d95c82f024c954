// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_GPT_WEIGHTS_H_
#define CHOIR_EXAMPLES_GPT_WEIGHTS_H_

#include "examples/gpt.h"

// Weights as Hugging Face's transformers stores them: safetensors files with
// its names of the parameters, "transformer.h.0.attn.c_attn.weight" for GPT-2
// and "model.layers.0.self_attn.q_proj.weight" for Llama. The model's settings
// say which of the two it is.

// INVALID_ARGUMENT: neither, so that the functions below refuse it.
choir_status_t gpt_check_names(const gpt_config_t* config) CHOIR_NODISCARD;

// Sets the parameters of a gpt_def, which has its updater, to those of `path`:
// f32, or f16 or bf16, which are cast. Names may lack the prefix "transformer."
// or "model." Each parameter must be there with its shape and nothing else, but
// for masks of attention, frequencies of rotary positions and, where the model
// has no head, an lm_head.weight equal to the tokens' (INVALID_ARGUMENT, with
// the tensor's name; parameters may be set in part then).
choir_status_t gpt_read_weights(choir_model_t* model,
                                const gpt_config_t* config, const char* path)
    CHOIR_NODISCARD;

// Writes the parameters, whole or not at all.
choir_status_t gpt_write_weights(choir_model_t* model,
                                 const gpt_config_t* config, const char* path)
    CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_GPT_WEIGHTS_H_
