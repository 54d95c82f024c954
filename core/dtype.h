// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DTYPE_H_
#define CHOIR_CORE_DTYPE_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Element types. F16 is IEEE binary16, BF16 the upper half of binary32; BOOL
// is one byte, 0 or 1.
// X(ENUM, name, bytes, is_float)
#define CHOIR_DTYPE_LIST(X) \
  X(F32, f32, 4, true)      \
  X(F64, f64, 8, true)      \
  X(F16, f16, 2, true)      \
  X(BF16, bf16, 2, true)    \
  X(I32, i32, 4, false)     \
  X(I64, i64, 8, false)     \
  X(U8, u8, 1, false)       \
  X(BOOL, bool, 1, false)

typedef enum choir_dtype_e {
#define CHOIR_DTYPE_ENUM_(ENUM, name, bytes, is_float) CHOIR_DTYPE_##ENUM,
  CHOIR_DTYPE_LIST(CHOIR_DTYPE_ENUM_)
#undef CHOIR_DTYPE_ENUM_
      CHOIR_DTYPE_COUNT
} choir_dtype_t;

// Bytes of one element; 0 for a value that is no dtype.
CHOIR_API size_t choir_dtype_bytes(choir_dtype_t dtype);
// "f32"; "?" for a value that is no dtype. Static storage.
CHOIR_API const char* choir_dtype_name(choir_dtype_t dtype);
CHOIR_API bool choir_dtype_is_float(choir_dtype_t dtype);
// The dtype called `name`, else NOT_FOUND.
CHOIR_API choir_status_t choir_dtype_parse(const char* name,
                                           choir_dtype_t* out_dtype)
    CHOIR_NODISCARD;

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
CHOIR_API uint16_t choir_f16_from_f32(float value);
CHOIR_API float choir_f16_to_f32(uint16_t bits);
CHOIR_API uint16_t choir_bf16_from_f32(float value);
CHOIR_API float choir_bf16_to_f32(uint16_t bits);

// One element as a double, and back. A float is rounded once to its type; an
// integer is truncated towards zero and saturates (NaN gives 0); BOOL is
// (value != 0).
CHOIR_API double choir_element_load(const void* element, choir_dtype_t dtype);
CHOIR_API void choir_element_store(void* element, choir_dtype_t dtype,
                                   double value);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_DTYPE_H_
