// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/device/cuda/cuda_device.h"

// Modules are loaded, and kernels looked up, when first launched; both stay
// until the device goes.

struct cuda_module_s {
  cuda_module_t* next;
  const choir_cuda_module_t* source;
  choir__cu_module_t handle;
};

struct cuda_function_s {
  cuda_function_t* next;
  const choir_cuda_kernel_t* source;
  choir__cu_function_t handle;
};

static cuda_function_t** bucket(cuda_device_t* device,
                                const choir_cuda_kernel_t* kernel) {
  const uintptr_t address = (uintptr_t)kernel / sizeof(*kernel);
  return &device->functions[address % CUDA_FUNCTION_BUCKETS];
}

static choir_status_t load(cuda_device_t* device,
                           const choir_cuda_module_t* source,
                           choir__cu_module_t* out_handle) {
  for (cuda_module_t* module = device->modules; module; module = module->next) {
    if (module->source != source) continue;
    *out_handle = module->handle;
    return NULL;
  }
  if (!source->image) {
    return CHOIR_ERROR(UNAVAILABLE,
                       "%s: this build has no code for GPUs in %s; needs one "
                       "with --config=cuda",
                       device->who, source->name);
  }
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, sizeof(cuda_module_t),
                           "a module of a GPU", &memory));
  cuda_module_t* module = memory;
  module->source = source;
  choir_status_t status =
      CUDA_CALL(device, cuModuleLoadData, &module->handle, source->image);
  if (status) {
    choir_deallocate(device->objects, module, sizeof(*module));
    return choir_status_annotate(status, __FILE__, __LINE__, "kernels of %s",
                                 source->name);
  }
  module->next = device->modules;
  device->modules = module;
  *out_handle = module->handle;
  return NULL;
}

static choir_status_t find(cuda_device_t* device,
                           const choir_cuda_kernel_t* kernel,
                           choir__cu_function_t* out_handle) {
  cuda_function_t** first = bucket(device, kernel);
  for (cuda_function_t* one = *first; one; one = one->next) {
    if (one->source != kernel) continue;
    *out_handle = one->handle;
    return NULL;
  }
  choir__cu_module_t module = NULL;
  CHOIR_TRY(load(device, kernel->module, &module));
  choir__cu_function_t handle = NULL;
  CHOIR_TRY_NOTE(
      CUDA_CALL(device, cuModuleGetFunction, &handle, module, kernel->symbol),
      "kernel %s of %s", kernel->symbol, kernel->module->name);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(device->objects, sizeof(cuda_function_t),
                           "a kernel of a GPU", &memory));
  cuda_function_t* function = memory;
  *function = (cuda_function_t){*first, kernel, handle};
  *first = function;
  *out_handle = handle;
  return NULL;
}

void choir__cuda_modules_close(cuda_device_t* device) {
  for (int i = 0; i < CUDA_FUNCTION_BUCKETS; ++i) {
    while (device->functions[i]) {
      cuda_function_t* function = device->functions[i];
      device->functions[i] = function->next;
      choir_deallocate(device->objects, function, sizeof(*function));
    }
  }
  while (device->modules) {
    cuda_module_t* module = device->modules;
    device->modules = module->next;
    choir__cuda_warn("a module was not released",
                     CUDA_CALL(device, cuModuleUnload, module->handle));
    choir_deallocate(device->objects, module, sizeof(*module));
  }
}

choir_status_t choir__cuda_launch(choir_stream_t* stream,
                                  const choir_cuda_kernel_t* kernel,
                                  uint32_t blocks, uint32_t threads,
                                  const void* params) {
  cuda_device_t* device = (cuda_device_t*)choir_stream_device(stream);
  cuda_stream_t* mine = choir__cuda_stream_of(stream);
  choir__cu_function_t function = NULL;
  pthread_mutex_lock(&device->lock);
  choir_status_t status = find(device, kernel, &function);
  pthread_mutex_unlock(&device->lock);
  CHOIR_TRY(status);
  ++mine->seen.launches;
  // The driver only reads what these point to.
  void* pointers[] = {(void*)(uintptr_t)params};
  if (mine->segments) {
    const choir__cu_kernel_params_t launch = {.func = function,
                                              .gridDimX = blocks,
                                              .gridDimY = 1,
                                              .gridDimZ = 1,
                                              .blockDimX = threads,
                                              .blockDimY = 1,
                                              .blockDimZ = 1,
                                              .kernelParams = pointers};
    return choir__cuda_segments_launch(mine->segments, &launch);
  }
  return CUDA_CALL(device, cuLaunchKernel, function, blocks, 1, 1, threads, 1,
                   1, 0, mine->queue.handle, pointers, NULL);
}
