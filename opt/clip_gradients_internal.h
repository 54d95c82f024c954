// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_CLIP_GRADIENTS_INTERNAL_H_
#define CHOIR_OPT_CLIP_GRADIENTS_INTERNAL_H_

#include "opt/optimizer.h"

// Submits the records that limit the gradients of the trainable parameters,
// where they lie.
choir_status_t choir__clip_gradients(const choir_gradient_clip_t* clip,
                                     choir_stream_t* stream,
                                     const choir_param_set_t* params)
    CHOIR_NODISCARD;

#endif  // CHOIR_OPT_CLIP_GRADIENTS_INTERNAL_H_
