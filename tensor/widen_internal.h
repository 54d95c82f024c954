// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_WIDEN_INTERNAL_H_
#define CHOIR_TENSOR_WIDEN_INTERNAL_H_

#include "tensor/op_def.h"

// 16-bit floats (f16, bf16) where a device has a kernel for f32 alone: sources
// are cast up, the op runs in f32, its results are cast down; each is a record
// of its own. Exact but for one rounding to f32 ahead of the last.

// Whether the record, which has no kernel of the device's, has one in f32. Ops
// without sources do not: they draw values in the result's own dtype.
bool choir__widens(const choir_device_t* device, const choir_record_t* record);
choir_status_t choir__lower_wide(const choir_lowering_t* lowering,
                                 const choir_record_t* record) CHOIR_NODISCARD;

#endif  // CHOIR_TENSOR_WIDEN_INTERNAL_H_
