// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_HOST_FALLBACK_INTERNAL_H_
#define CHOIR_TENSOR_HOST_FALLBACK_INTERNAL_H_

#include "tensor/op_def.h"

#ifdef __cplusplus
extern "C" {
#endif

// Runs an op's reference for a device whose memory the host cannot touch:
// copies what the operands cover down, computes, copies the destinations up.
// Blocks.
choir_status_t choir__host_fallback(const choir_op_def_t* def,
                                    const choir_record_t* record,
                                    choir_stream_t* stream);

// CHOIR_STRICT_DEVICE=1 in the environment (read once): no such runs.
bool choir__host_fallback_is_forbidden(void);
// What to say then.
choir_status_t choir__host_fallback_refusal(choir_op_t op,
                                            const choir_device_t* device,
                                            const choir_record_t* record)
    CHOIR_NODISCARD;

// For a kernel that supported the record and learns in its run that it cannot
// do it: the host run, counted, or the refusal.
choir_status_t choir__run_on_host(const choir_record_t* record,
                                  choir_stream_t* stream) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_HOST_FALLBACK_INTERNAL_H_
