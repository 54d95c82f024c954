// SPDX-License-Identifier: Apache-2.0
// Tensors of a file: elements in one of several fields, in bytes, or in another
// file.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onnx/onnx_internal.h"

// ---- Types ----

const char* choir_onnx_type_name(int32_t type) {
  switch (type) {
#define CASE_(NAME, name, number, dtype) \
  case number:                           \
    return #name;
    CHOIR_ONNX_TYPE_LIST(CASE_)
#undef CASE_
    case CHOIR_ONNX_STRING:
      return "string";
    default:
      return "?";
  }
}

choir_status_t choir_onnx_type_dtype(int32_t type, choir_dtype_t* out_dtype) {
  switch (type) {
#define CASE_(NAME, name, number, dtype) \
  case number:                           \
    *out_dtype = CHOIR_DTYPE_##dtype;    \
    return NULL;
    CHOIR_ONNX_TYPE_LIST(CASE_)
#undef CASE_
    default:
      *out_dtype = CHOIR_DTYPE_F32;
      return CHOIR_ERROR(UNIMPLEMENTED,
                         "onnx: Choir has no tensors of type %d (%s)", type,
                         choir_onnx_type_name(type));
  }
}

int32_t choir__onnx_dtype_type(choir_dtype_t dtype) {
  static const int32_t types[] = {[CHOIR_DTYPE_F32] = CHOIR_ONNX_FLOAT,
                                  [CHOIR_DTYPE_F64] = CHOIR_ONNX_DOUBLE,
                                  [CHOIR_DTYPE_F16] = CHOIR_ONNX_FLOAT16,
                                  [CHOIR_DTYPE_BF16] = CHOIR_ONNX_BFLOAT16,
                                  [CHOIR_DTYPE_I32] = CHOIR_ONNX_INT32,
                                  [CHOIR_DTYPE_I64] = CHOIR_ONNX_INT64,
                                  [CHOIR_DTYPE_U8] = CHOIR_ONNX_UINT8,
                                  [CHOIR_DTYPE_BOOL] = CHOIR_ONNX_BOOL};
  return types[dtype];
}

// Bits of an element as raw_data has it.
static int32_t bits_of(int32_t type) {
  switch (type) {
    case CHOIR_ONNX_DOUBLE:
    case CHOIR_ONNX_INT64:
    case CHOIR_ONNX_UINT64:
      return 64;
    case CHOIR_ONNX_FLOAT:
    case CHOIR_ONNX_INT32:
    case CHOIR_ONNX_UINT32:
      return 32;
    case CHOIR_ONNX_FLOAT16:
    case CHOIR_ONNX_BFLOAT16:
    case CHOIR_ONNX_INT16:
    case CHOIR_ONNX_UINT16:
      return 16;
    case CHOIR_ONNX_UINT4:
    case CHOIR_ONNX_INT4:
    case CHOIR_ONNX_FLOAT4E2M1:
      return 4;
    case CHOIR_ONNX_UINT2:
    case CHOIR_ONNX_INT2:
      return 2;
    default:
      return 8;
  }
}

// Sign, exponent of `e` bits around `bias`, `m` bits of mantissa; and how the
// type says that a number is none (Micikevicius et al., 2022, arXiv:2209.05433;
// OCP's formats).
float choir__onnx_small_float(int32_t type, uint8_t bits) {
  int e = 4, m = 3, bias = 7, sign_bit = 7;
  bool is_uz = false, has_infinity = false, has_nan = true;
  switch (type) {
    case CHOIR_ONNX_FLOAT8E8M0:
      return bits == 255 ? NAN : ldexpf(1, (int)bits - 127);
    case CHOIR_ONNX_FLOAT8E4M3FNUZ:
      bias = 8, is_uz = true;
      break;
    case CHOIR_ONNX_FLOAT8E5M2:
      e = 5, m = 2, bias = 15, has_infinity = true;
      break;
    case CHOIR_ONNX_FLOAT8E5M2FNUZ:
      e = 5, m = 2, bias = 16, is_uz = true;
      break;
    case CHOIR_ONNX_FLOAT4E2M1:
      e = 2, m = 1, bias = 1, sign_bit = 3, has_nan = false;
      break;
    default:
      break;
  }
  const float sign = bits >> sign_bit & 1 ? -1.0f : 1.0f;
  const int exponent = bits >> m & ((1 << e) - 1);
  const int mantissa = bits & ((1 << m) - 1);
  if (is_uz && bits == 0x80) return NAN;
  if (has_infinity && exponent == (1 << e) - 1)
    return mantissa ? NAN : sign * INFINITY;
  if (has_nan && !is_uz && !has_infinity && exponent == (1 << e) - 1 &&
      mantissa == (1 << m) - 1)
    return NAN;
  if (exponent == 0) return sign * ldexpf((float)mantissa, 1 - bias - m);
  return sign * ldexpf((float)(mantissa + (1 << m)), exponent - bias - m);
}

// ---- Elements ----

// Element k of raw_data, little-endian, into `to`.
static void store_raw(int32_t type, const uint8_t* raw, int64_t k, char* to) {
  const int32_t bits = bits_of(type);
  if (bits < 8) {
    const int64_t bit = k * bits;
    const int32_t value = raw[bit / 8] >> bit % 8 & ((1 << bits) - 1);
    if (type == CHOIR_ONNX_FLOAT4E2M1) {
      const float number = choir__onnx_small_float(type, (uint8_t)value);
      memcpy(to, &number, sizeof number);
      return;
    }
    const bool is_signed = type == CHOIR_ONNX_INT4 || type == CHOIR_ONNX_INT2;
    const int32_t wide =
        is_signed && value >> (bits - 1) ? value - (1 << bits) : value;
    memcpy(to, &wide, sizeof wide);
    return;
  }
  const uint8_t* from = raw + k * (bits / 8);
  int32_t wide = 0;
  int64_t wider;
  uint16_t half;
  uint32_t word;
  float number;
  switch (type) {
    case CHOIR_ONNX_INT8:
      wide = *from < 128 ? *from : *from - 256;
      memcpy(to, &wide, sizeof wide);
      return;
    case CHOIR_ONNX_INT16:
    case CHOIR_ONNX_UINT16:
      memcpy(&half, from, sizeof half);
      wide = type == CHOIR_ONNX_INT16 ? (int16_t)half : half;
      memcpy(to, &wide, sizeof wide);
      return;
    case CHOIR_ONNX_UINT32:
      memcpy(&word, from, sizeof word);
      wider = word;
      memcpy(to, &wider, sizeof wider);
      return;
    case CHOIR_ONNX_BOOL:
      *to = *from != 0;
      return;
    case CHOIR_ONNX_FLOAT8E4M3FN:
    case CHOIR_ONNX_FLOAT8E4M3FNUZ:
    case CHOIR_ONNX_FLOAT8E5M2:
    case CHOIR_ONNX_FLOAT8E5M2FNUZ:
    case CHOIR_ONNX_FLOAT8E8M0:
      number = choir__onnx_small_float(type, *from);
      memcpy(to, &number, sizeof number);
      return;
    default:
      memcpy(to, from, (size_t)bits / 8);
  }
}

// Element k of the field that the type has in the schema: 32-bit words for all
// narrow types, several elements of less than 8 bits in a byte of one.
static void store_word(int32_t type, int32_t word, char* to) {
  uint8_t bytes[4];
  memcpy(bytes, &word, sizeof bytes);
  store_raw(type, bytes, 0, to);
}

static choir_status_t store_fields(const Onnx__TensorProto* proto, int32_t type,
                                   int64_t count, size_t width, char* to) {
  const int32_t bits = bits_of(type);
  size_t given = 0;
  switch (type) {
    case CHOIR_ONNX_FLOAT:
      given = proto->n_float_data;
      if (given == (size_t)count && count > 0)
        memcpy(to, proto->float_data, given * sizeof(float));
      break;
    case CHOIR_ONNX_DOUBLE:
      given = proto->n_double_data;
      if (given == (size_t)count && count > 0)
        memcpy(to, proto->double_data, given * sizeof(double));
      break;
    case CHOIR_ONNX_INT64:
      given = proto->n_int64_data;
      if (given == (size_t)count && count > 0)
        memcpy(to, proto->int64_data, given * sizeof(int64_t));
      break;
    case CHOIR_ONNX_UINT32:
    case CHOIR_ONNX_UINT64:
      given = proto->n_uint64_data;
      if (given == (size_t)count && count > 0)
        memcpy(to, proto->uint64_data, given * sizeof(int64_t));
      break;
    default:
      given = proto->n_int32_data;
      if (bits < 8) {
        const int64_t each = 8 / bits;
        if (given != (size_t)((count + each - 1) / each)) break;
        for (int64_t k = 0; k < count; ++k) {
          const uint8_t byte = (uint8_t)proto->int32_data[k / each];
          store_raw(type, &byte, k % each, to + (size_t)k * width);
        }
        return NULL;
      }
      if (given == (size_t)count)
        for (int64_t k = 0; k < count; ++k)
          store_word(type, proto->int32_data[k], to + (size_t)k * width);
  }
  if (given != (size_t)count)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: tensor '%s' has %zu elements of data for a shape "
                       "of %lld",
                       proto->name ? proto->name : "", given, (long long)count);
  return NULL;
}

// ---- Data in other files ----

static choir_status_t read_at(const char* path, uint64_t offset, void* to,
                              size_t bytes) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return CHOIR_ERROR(NOT_FOUND, "onnx: cannot open '%s', where data lies",
                       path);
  struct stat info;
  choir_status_t status = NULL;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      offset > (uint64_t)info.st_size ||
      bytes > (uint64_t)info.st_size - offset)
    status = CHOIR_ERROR(OUT_OF_RANGE,
                         "onnx: '%s' has no %zu bytes at %llu, where data of "
                         "the model should lie",
                         path, bytes, (unsigned long long)offset);
  char* at = to;
  while (!status && bytes > 0) {
    const ssize_t got =
        pread(fd, at, bytes < (1u << 30) ? bytes : 1u << 30, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      status = CHOIR_ERROR(OUT_OF_RANGE, "onnx: '%s' could not be read", path);
      break;
    }
    at += got, offset += (uint64_t)got, bytes -= (size_t)got;
  }
  close(fd);
  return status;
}

// A path beside the file, not above it.
static bool is_below(const char* path) {
  if (path[0] == '/' || path[0] == '\0') return false;
  for (const char* part = path; part; part = strchr(part, '/')) {
    if (*part == '/') ++part;
    if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || !part[2]))
      return false;
  }
  return true;
}

static choir_status_t read_external(const choir_onnx_t* onnx,
                                    const Onnx__TensorProto* proto, void* to,
                                    size_t bytes) {
  const char* location = NULL;
  uint64_t offset = 0;
  uint64_t length = bytes;
  for (size_t i = 0; i < proto->n_external_data; ++i) {
    const Onnx__StringStringEntryProto* entry = proto->external_data[i];
    if (!entry->key || !entry->value) continue;
    if (strcmp(entry->key, "location") == 0) location = entry->value;
    if (strcmp(entry->key, "offset") == 0)
      offset = strtoull(entry->value, NULL, 10);
    if (strcmp(entry->key, "length") == 0)
      length = strtoull(entry->value, NULL, 10);
  }
  if (!onnx->folder || !location || !is_below(location) || length != bytes)
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "onnx: tensor '%s' of %zu bytes has %llu at '%s'; needs as many, in a "
        "file of the model's folder%s",
        proto->name ? proto->name : "", bytes, (unsigned long long)length,
        location ? location : "", onnx->folder ? "" : ", which was not given");
  char* path = NULL;
  if (asprintf(&path, "%s/%s", onnx->folder, location) < 0)
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a path");
  choir_status_t status = read_at(path, offset, to, bytes);
  free(path);
  return status;
}

// ---- Tensors ----

static choir_status_t fill(const choir_onnx_t* onnx,
                           const Onnx__TensorProto* proto, int32_t type,
                           int64_t count, size_t width, char* to) {
  const size_t raw_bytes = (size_t)((count * bits_of(type) + 7) / 8);
  const bool is_external =
      proto->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
  if (!is_external && !proto->has_raw_data)
    return store_fields(proto, type, count, width, to);
  const bool is_plain =
      (size_t)bits_of(type) == width * 8 && type != CHOIR_ONNX_BOOL;
  if (is_external && is_plain) return read_external(onnx, proto, to, raw_bytes);
  const uint8_t* raw = proto->raw_data.data;
  uint8_t* read = NULL;
  if (is_external) {
    read = calloc(raw_bytes, 1);
    if (!read)
      return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for %zu bytes",
                         raw_bytes);
    choir_status_t status = read_external(onnx, proto, read, raw_bytes);
    if (status) {
      free(read);
      return status;
    }
    raw = read;
  } else if (proto->raw_data.len != raw_bytes) {
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "onnx: tensor '%s' has %zu bytes of data; %zu are needed",
        proto->name ? proto->name : "", proto->raw_data.len, raw_bytes);
  }
  if (is_plain) {
    memcpy(to, raw, raw_bytes);
  } else {
    for (int64_t k = 0; k < count; ++k)
      store_raw(type, raw, k, to + (size_t)k * width);
  }
  free(read);
  return NULL;
}

// What a file of so few bytes may ask for: each element of a tensor is in it,
// or in a file beside it, whose length is looked at.
static choir_status_t make(const choir_onnx_t* onnx,
                           const Onnx__TensorProto* proto, size_t n_dims,
                           const int64_t* dims, bool is_cleared,
                           choir_tensor_t** out_tensor, int32_t* out_type) {
  *out_tensor = NULL;
  *out_type = proto->data_type;
  choir_dtype_t dtype;
  CHOIR_TRY(choir_onnx_type_dtype(*out_type, &dtype));
  if (n_dims > CHOIR_MAX_NDIM)
    return CHOIR_ERROR(UNIMPLEMENTED,
                       "onnx: tensor '%s' has %zu dimensions; at most %d are "
                       "possible",
                       proto->name ? proto->name : "", n_dims, CHOIR_MAX_NDIM);
  choir_view_t view;
  CHOIR_TRY_NOTE(choir_view_make(dtype, (int32_t)n_dims, dims, &view),
                 "onnx: tensor '%s'", proto->name ? proto->name : "");
  const int64_t count = choir_view_count(&view);
  const size_t width = choir_dtype_bytes(dtype);
  const bool is_external =
      proto->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
  const uint64_t here = proto->raw_data.len * 4 + proto->n_float_data +
                        proto->n_double_data + proto->n_int32_data * 4 +
                        proto->n_int64_data + proto->n_uint64_data;
  if (!is_cleared && !is_external && (uint64_t)count > here)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: tensor '%s' has data for fewer than its %lld "
                       "elements",
                       proto->name ? proto->name : "", (long long)count);
  CHOIR_TRY(choir_device_check_memory(onnx->host, (uint64_t)count * width));
  choir_tensor_t* tensor;
  CHOIR_TRY(
      choir_tensor_create(onnx->host, dtype, view.ndim, view.shape, &tensor));
  char* to = choir_buffer_data(choir_tensor_view(tensor)->buffer);
  choir_status_t status = NULL;
  if (is_cleared && count > 0)
    memset(to, 0, (size_t)count * width);
  else if (count > 0)
    status = fill(onnx, proto, *out_type, count, width, to);
  if (status) {
    choir_tensor_release(tensor);
    return status;
  }
  *out_tensor = tensor;
  return NULL;
}

// ---- Tensors that were made ----

static int compare_made(const void* a, const void* b) {
  const void* x = ((const choir__onnx_made_t*)a)->proto;
  const void* y = ((const choir__onnx_made_t*)b)->proto;
  return (x > y) - (x < y);
}

// The entry of a message; *out_made->tensor NULL: it is new.
static choir_status_t find_made(choir_onnx_t* onnx, const void* proto,
                                choir__onnx_made_t** out_made) {
  const choir__onnx_made_t key = {.proto = proto};
  choir__onnx_made_t** found = tfind(&key, &onnx->made_by_proto, compare_made);
  *out_made = found ? *found : NULL;
  if (found) return NULL;
  choir__onnx_made_t* made = choir_arena_alloc(onnx->arena, sizeof *made);
  if (!made) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a tensor");
  *made = key;
  if (!tsearch(made, &onnx->made_by_proto, compare_made))
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a tensor");
  made->next = onnx->made;
  onnx->made = made;
  *out_made = made;
  return NULL;
}

void choir__onnx_release_made(choir_onnx_t* onnx) {
  for (choir__onnx_made_t* made = onnx->made; made; made = made->next) {
    (void)tdelete(made, &onnx->made_by_proto, compare_made);
    choir_tensor_release(made->tensor);
  }
  onnx->made = NULL;
}

choir_status_t choir__onnx_make_tensor(choir_onnx_t* onnx,
                                       Onnx__TensorProto* proto,
                                       choir_tensor_t** out_tensor,
                                       int32_t* out_type) {
  *out_tensor = NULL;
  *out_type = proto->data_type;
  choir__onnx_made_t* made;
  CHOIR_TRY(find_made(onnx, proto, &made));
  if (!made->tensor) {
    CHOIR_TRY(make(onnx, proto, proto->n_dims, proto->dims, false,
                   &made->tensor, &made->type));
    if (proto->raw_data.len > 0)
      onnx->proto_memory.free(onnx, proto->raw_data.data);
    proto->raw_data = (ProtobufCBinaryData){0};
  }
  *out_tensor = made->tensor;
  *out_type = made->type;
  return NULL;
}

static choir_status_t place_values(const choir_view_t* dense,
                                   const choir_view_t* values,
                                   const choir_view_t* places) {
  const int64_t count = choir_view_count(values);
  const int64_t all = choir_view_count(dense);
  const size_t width = choir_dtype_bytes(dense->dtype);
  const bool is_flat = places->ndim == 1;
  if (places->dtype != CHOIR_DTYPE_I64 || values->ndim != 1 ||
      places->ndim > 2 || places->ndim < 1 || places->shape[0] != count ||
      (!is_flat && places->shape[1] != dense->ndim))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: a sparse tensor's indices do not fit its values");
  const int64_t* at = choir_buffer_data(places->buffer);
  const char* from = choir_buffer_data(values->buffer);
  char* to = choir_buffer_data(dense->buffer);
  for (int64_t k = 0; k < count; ++k) {
    int64_t place = is_flat ? at[k] : 0;
    for (int32_t d = 0; !is_flat && d < dense->ndim; ++d) {
      const int64_t index = at[k * dense->ndim + d];
      if (index < 0 || index >= dense->shape[d]) place = -1;
      if (place >= 0) place = place * dense->shape[d] + index;
    }
    if (place < 0 || place >= all)
      return CHOIR_ERROR(OUT_OF_RANGE,
                         "onnx: index %lld of a sparse tensor lies outside of "
                         "its shape",
                         (long long)k);
    memcpy(to + (size_t)place * width, from + (size_t)k * width, width);
  }
  return NULL;
}

choir_status_t choir__onnx_make_sparse(choir_onnx_t* onnx,
                                       const Onnx__SparseTensorProto* proto,
                                       choir_tensor_t** out_tensor,
                                       int32_t* out_type) {
  *out_tensor = NULL;
  *out_type = CHOIR_ONNX_UNDEFINED;
  if (!proto->values || !proto->indices)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: a sparse tensor has no values or no indices");
  choir_tensor_t* values = NULL;
  choir_tensor_t* places = NULL;
  int32_t type = 0;
  choir__onnx_made_t* made;
  CHOIR_TRY(find_made(onnx, proto, &made));
  if (!made->tensor) {
    CHOIR_TRY(
        choir__onnx_make_tensor(onnx, proto->values, &values, &made->type));
    CHOIR_TRY(choir__onnx_make_tensor(onnx, proto->indices, &places, &type));
    choir_tensor_t* dense;
    CHOIR_TRY(make(onnx, proto->values, proto->n_dims, proto->dims, true,
                   &dense, &made->type));
    choir_status_t status =
        place_values(choir_tensor_view(dense), choir_tensor_view(values),
                     choir_tensor_view(places));
    if (status) {
      choir_tensor_release(dense);
      return status;
    }
    made->tensor = dense;
  }
  *out_tensor = made->tensor;
  *out_type = made->type;
  return NULL;
}
