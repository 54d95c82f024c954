// SPDX-License-Identifier: Apache-2.0
#include "core/device/cuda/cuda_gpus.h"

#include <stdio.h>
#include <string.h>

#include "core/gpu.h"

// What CUDA 13 runs on. The driver must be of that CUDA too: it loads what the
// toolkit's compiler made.
enum { MIN_MAJOR = 7, MIN_MINOR = 5, MIN_CUDA = 13000 };

static choir_status_t start(const choir__cuda_driver_t** out_driver,
                            int32_t* out_version) {
  *out_version = 0;
  CHOIR_TRY(choir__cuda_driver(out_driver));
  const choir__cuda_driver_t* driver = *out_driver;
  const choir__cu_result_t result = driver->cuInit(0);
  if (result != CHOIR__CU_SUCCESS) {
    const char* name = NULL;
    const char* text = NULL;
    (void)driver->cuGetErrorName(result, &name);
    (void)driver->cuGetErrorString(result, &text);
    return CHOIR_ERROR(UNAVAILABLE,
                       "cuda: the NVIDIA driver does not start (cuInit: %s, "
                       "%s); needs a GPU of compute capability %d.%d or newer",
                       name ? name : "an unknown error",
                       text ? text : "without a text", MIN_MAJOR, MIN_MINOR);
  }
  int version = 0;
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, "cuda", cuDriverGetVersion, &version));
  if (version < MIN_CUDA) {
    return CHOIR_ERROR(UNAVAILABLE,
                       "cuda: the NVIDIA driver is for CUDA %d.%d; needs one "
                       "for CUDA %d.%d or newer",
                       version / 1000, version % 1000 / 10, MIN_CUDA / 1000,
                       MIN_CUDA % 1000 / 10);
  }
  *out_version = version;
  return NULL;
}

static choir_status_t count_gpus(const choir__cuda_driver_t** out_driver,
                                 int32_t* out_count) {
  *out_count = 0;
  int32_t version = 0;
  CHOIR_TRY(start(out_driver, &version));
  int count = 0;
  CHOIR_TRY(CHOIR__CUDA_CALL(*out_driver, "cuda", cuDeviceGetCount, &count));
  *out_count = count;
  return NULL;
}

static choir_status_t find(int32_t index,
                           const choir__cuda_driver_t** out_driver,
                           choir__cu_gpu_t* out_gpu,
                           choir_gpu_info_t* out_info) {
  memset(out_info, 0, sizeof(*out_info));
  int32_t count = 0;
  CHOIR_TRY(count_gpus(out_driver, &count));
  const choir__cuda_driver_t* driver = *out_driver;
  if (count == 0) {
    return CHOIR_ERROR(UNAVAILABLE,
                       "cuda: the NVIDIA driver shows no GPU; needs one of "
                       "compute capability %d.%d or newer",
                       MIN_MAJOR, MIN_MINOR);
  }
  if (index < 0 || index >= count) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "cuda: GPU %d asked for; this machine has %d, needs a "
                       "number from 0 to %d",
                       (int)index, (int)count, (int)count - 1);
  }
  char who[24];
  snprintf(who, sizeof(who), "cuda:%d", (int)index);
  size_t total = 0;
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, who, cuDeviceGet, out_gpu, index));
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, who, cuDeviceGetName, out_info->name,
                             (int)sizeof(out_info->name), *out_gpu));
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, who, cuDeviceGetAttribute,
                             &out_info->major, CHOIR__CU_ATTRIBUTE_MAJOR,
                             *out_gpu));
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, who, cuDeviceGetAttribute,
                             &out_info->minor, CHOIR__CU_ATTRIBUTE_MINOR,
                             *out_gpu));
  CHOIR_TRY(
      CHOIR__CUDA_CALL(driver, who, cuDeviceTotalMem_v2, &total, *out_gpu));
  out_info->total_bytes = total;
  out_info->is_supported =
      out_info->major > MIN_MAJOR ||
      (out_info->major == MIN_MAJOR && out_info->minor >= MIN_MINOR);
  return NULL;
}

choir_status_t choir__cuda_gpu_open(int32_t index,
                                    const choir__cuda_driver_t** out_driver,
                                    choir__cu_gpu_t* out_gpu) {
  choir_gpu_info_t info;
  CHOIR_TRY(find(index, out_driver, out_gpu, &info));
  if (info.is_supported) return NULL;
  return CHOIR_ERROR(UNAVAILABLE,
                     "cuda: GPU %d, %s, has compute capability %d.%d; needs "
                     "%d.%d or newer, as CUDA 13 does",
                     (int)index, info.name, (int)info.major, (int)info.minor,
                     MIN_MAJOR, MIN_MINOR);
}

choir_status_t choir_gpu_driver_version(int32_t* out_version) {
  const choir__cuda_driver_t* driver = NULL;
  return start(&driver, out_version);
}

choir_status_t choir_gpu_count(int32_t* out_count) {
  const choir__cuda_driver_t* driver = NULL;
  return count_gpus(&driver, out_count);
}

choir_status_t choir_gpu_info(int32_t index, choir_gpu_info_t* out_info) {
  const choir__cuda_driver_t* driver = NULL;
  choir__cu_gpu_t gpu = 0;
  return find(index, &driver, &gpu, out_info);
}

static choir_status_t ask_memory(const choir__cuda_driver_t* driver,
                                 const char* who, choir__cu_context_t context,
                                 size_t* out_free, size_t* out_total) {
  CHOIR_TRY(CHOIR__CUDA_CALL(driver, who, cuCtxPushCurrent_v2, context));
  choir_status_t status =
      CHOIR__CUDA_CALL(driver, who, cuMemGetInfo_v2, out_free, out_total);
  (void)driver->cuCtxPopCurrent_v2(&context);
  return status;
}

choir_status_t choir_gpu_memory(int32_t index, uint64_t* out_free_bytes,
                                uint64_t* out_total_bytes) {
  *out_free_bytes = 0;
  *out_total_bytes = 0;
  const choir__cuda_driver_t* driver = NULL;
  choir__cu_gpu_t gpu = 0;
  CHOIR_TRY(choir__cuda_gpu_open(index, &driver, &gpu));
  char who[24];
  snprintf(who, sizeof(who), "cuda:%d", (int)index);
  choir__cu_context_t context = NULL;
  CHOIR_TRY(
      CHOIR__CUDA_CALL(driver, who, cuDevicePrimaryCtxRetain, &context, gpu));
  size_t unused = 0;
  size_t total = 0;
  choir_status_t status = ask_memory(driver, who, context, &unused, &total);
  status = choir_status_join(
      status, CHOIR__CUDA_CALL(driver, who, cuDevicePrimaryCtxRelease_v2, gpu));
  if (status) return status;
  *out_free_bytes = unused;
  *out_total_bytes = total;
  return NULL;
}
