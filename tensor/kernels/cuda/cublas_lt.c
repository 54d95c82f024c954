// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cuda/cublas_lt.h"

#include "core/library_backend.h"
#include "core/log.h"
#include "tensor/gpu_parts_internal.h"
#include "tensor/kernels/cuda/cuda_kernels.h"

static choir__cublas_table_t machine_table;

static const choir_library_symbol_t symbols[] = {
#define SYMBOL(type, symbol, parameters) {#symbol, &machine_table.symbol},
    CHOIR__CUBLAS_SYMBOLS(SYMBOL)
#undef SYMBOL
};

static choir_library_t library = {
    .who = "cuBLASLt",
    .needs = "cuBLAS of CUDA 13",
    // $CHOIR_CUBLASLT_LIBRARY: a file that is loaded in place of
    // libcublasLt.so.13. Not set: the system's loader finds it, or it is in the
    // toolkit's folder.
    .variable = "CHOIR_CUBLASLT_LIBRARY",
    .without = "products of matrices on GPUs run on the host",
    .files = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"},
    .table = &machine_table,
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(symbols[0]),
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

bool choir__cublas_is_there(void) { return choir__library_is_there(&library); }

choir_status_t choir__gpu_part_cublaslt(choir_gpu_part_t* part) {
  (void)part;
  const void* table = NULL;
  return choir__library_open(&library, &table);
}

void choir__cublas_replace(const choir__cublas_table_t* table) {
  choir__library_replace(&library, table);
}

choir_status_t choir__cublas_status(const choir__cublas_t* cublas,
                                    choir__cublas_result_t result,
                                    const char* symbol) {
  if (result == CHOIR__CUBLAS_SUCCESS) return NULL;
  const char* name = cublas->table->cublasLtGetStatusName(result);
  const char* text = cublas->table->cublasLtGetStatusString(result);
  if (result == CHOIR__CUBLAS_ALLOC_FAILED)
    return CHOIR_ERROR(OUT_OF_MEMORY, "%s: %s: %s, %s", cublas->who, symbol,
                       name, text);
  return CHOIR_ERROR(INTERNAL, "%s: %s: %s (%d), %s", cublas->who, symbol, name,
                     (int)result, text);
}

// ---- The library on a device ----

static choir_status_t open_cublas(choir_device_t* device, void** out_state) {
  *out_state = NULL;
  const void* table = NULL;
  CHOIR_TRY(choir__library_open(&library, &table));
  const choir_allocator_t objects = choir_device_allocator(device);
  void* memory = NULL;
  CHOIR_TRY(
      choir_allocate(objects, sizeof(choir__cublas_t), "cuBLASLt", &memory));
  choir__cublas_t* cublas = memory;
  cublas->who = choir__cuda_who(device);
  cublas->objects = objects;
  cublas->table = table;
  cublas->tf32 = choir__cuda_allows_tf32();
  choir_status_t status =
      CHOIR__CUBLAS_CALL(cublas, cublasLtCreate, &cublas->handle);
  if (status) {
    choir_deallocate(objects, cublas, sizeof(*cublas));
    return status;
  }
  pthread_mutex_init(&cublas->lock, NULL);
  *out_state = cublas;
  return NULL;
}

static void close_cublas(choir_device_t* device, void* state) {
  (void)device;
  choir__cublas_t* cublas = state;
  choir__cuda_plan_t* plan;
  while ((plan = choir__cuda_plans_take(&cublas->plans)))
    choir__cublas_plan_destroy(cublas, plan);
  choir_status_t status =
      CHOIR__CUBLAS_CALL(cublas, cublasLtDestroy, cublas->handle);
  if (status)
    choir_log(CHOIR_LOG_WARNING, "tensor", "cuBLASLt was not released: %s",
              choir_status_message(status));
  choir_status_free(status);
  pthread_mutex_destroy(&cublas->lock);
  choir_deallocate(cublas->objects, cublas, sizeof(*cublas));
}

static const choir_cuda_attachment_t attachment = {open_cublas, close_cublas};

choir_status_t choir__cublas_of(choir_device_t* device,
                                choir__cublas_t** out_cublas) {
  void* state = NULL;
  *out_cublas = NULL;
  CHOIR_TRY(choir__cuda_attach(device, &attachment, &state));
  *out_cublas = state;
  return NULL;
}
