// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor/cuda_on_host.h"

#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tests/tensor/cuda_words_on_host.h"

// One list of kernels for each .cu file.
#define X(name) static choir::testing::HostKernels name##_kernels;
#include "tensor/kernels/cuda/modules.def"
#undef X

#define CHOIR__FILE elementwise_kernels
#include "tensor/kernels/cuda/cuda_elementwise.cu"
#undef CHOIR__FILE
#define CHOIR__FILE optimizer_kernels
#include "tensor/kernels/cuda/cuda_optimizer.cu"
#undef CHOIR__FILE
#define CHOIR__FILE reduce_kernels
#include "tensor/kernels/cuda/cuda_reduce.cu"
#undef CHOIR__FILE
#define CHOIR__FILE rows_kernels
#include "tensor/kernels/cuda/cuda_rows.cu"
#undef CHOIR__FILE
#define CHOIR__FILE move_kernels
#include "tensor/kernels/cuda/cuda_move.cu"
#undef CHOIR__FILE
#define CHOIR__FILE random_kernels
#include "tensor/kernels/cuda/cuda_random.cu"
#undef CHOIR__FILE
#define CHOIR__FILE pool2d_kernels
#include "tensor/kernels/cuda/cuda_pool2d.cu"
#undef CHOIR__FILE
#define CHOIR__FILE batch_norm_kernels
#include "tensor/kernels/cuda/cuda_batch_norm.cu"
#undef CHOIR__FILE
#define CHOIR__FILE chain_kernels
#include "tensor/kernels/cuda/cuda_chain.cu"
#undef CHOIR__FILE
#define CHOIR__FILE index_map_kernels
#include "tensor/kernels/cuda/cuda_index_map.cu"
#undef CHOIR__FILE

namespace choir {
namespace testing {

void CudaKernelsOnHost(bool is_on) {
#define X(name) \
  choir__cuda_##name##_module.image = is_on ? &name##_kernels : nullptr;
#include "tensor/kernels/cuda/modules.def"
#undef X
}

}  // namespace testing
}  // namespace choir
