// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CHOIR_H_
#define CHOIR_CHOIR_H_

// The whole of Choir's C API: the public headers of every layer, lowest first.

#include "core/allocator.h"
#include "core/base.h"
#include "core/callback.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/field.h"
#include "core/gpu.h"
#include "core/graph.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/profile.h"
#include "core/random.h"
#include "core/record.h"
#include "core/record_list.h"
#include "core/scalar.h"
#include "core/stage.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/view.h"

#include "tensor/gpu_parts.h"
#include "tensor/ops.h"
#include "tensor/optimizers.h"
#include "tensor/tensor.h"

#include "autograd/functions.h"
#include "autograd/scope.h"

#include "model/initializer.h"
#include "model/kv_cache.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/param_set.h"
#include "model/sync_batch_norm.h"
#include "model/updater.h"

#include "onnx/onnx.h"

#include "opt/optimizer.h"
#include "opt/schedule.h"

#include "io/byte_pairs.h"
#include "io/checkpoint.h"
#include "io/dataset.h"
#include "io/idx.h"
#include "io/loader.h"
#include "io/partition.h"
#include "io/shares.h"
#include "io/tokens.h"

#include "dist/comm.h"
#include "dist/dist_opt.h"
#include "dist/launch.h"
#include "dist/plan.h"
#include "dist/strategy.h"
#include "dist/timeline.h"
#include "dist/training.h"

#endif  // CHOIR_CHOIR_H_
