// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_CONVERT_INTERNAL_H_
#define CHOIR_TENSOR_CONVERT_INTERNAL_H_

#include "tensor/op_def.h"

// Operands that none of a device's kernels takes as they are, but which one
// takes otherwise: 16-bit floats in f32, gaps and strange orders densely.
// Sources are converted, the op runs, its results are converted back; each is a
// record of its own. Exact, but that a 16-bit result is rounded to f32 ahead of
// the last time.

// Lowers the record, for which the device has no kernel, that way. *out_done:
// false when no conversion leads to a kernel. Ops without sources are not
// widened: they draw values in the result's own dtype.
choir_status_t choir__lower_converted(const choir_lowering_t* lowering,
                                      const choir_record_t* record,
                                      bool* out_done) CHOIR_NODISCARD;

// Whether a kernel for f32 takes the record then.
bool choir__is_widened(const choir_device_t* device,
                       const choir_record_t* record);

#endif  // CHOIR_TENSOR_CONVERT_INTERNAL_H_
