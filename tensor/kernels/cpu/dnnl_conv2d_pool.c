// SPDX-License-Identifier: Apache-2.0
// A convolution of bf16 by oneDNN and the max pooling of its result, a block of
// images after the other: what stands between the two is never held for the
// whole batch, and stays in the L2 cache. oneDNN gives an image the same bits
// in a batch of any size, so these are the bits of the two kernels one after
// the other.
#include "tensor/kernels/cpu/cpu_internal.h"
#include "tensor/kernels/cpu/cpu_kernels.h"
#include "tensor/kernels/cpu/dnnl_conv2d.h"

// Of the convolution's result, for each thread.
#define BLOCK_BYTES (128 * 1024)

// The two records of one block.
typedef struct pair_s {
  choir_view_t conv_operands[4];  // x, W, b, image
  choir_view_t pool_operands[3];  // image, y, argmax indices
  choir_record_t conv, pool;
} pair_t;

// Of the whole batch; the image has no memory yet.
static bool make_pair(const choir_record_t* record, pair_t* pair) {
  const choir_conv2d_max_pool2d_attrs_t* attrs = record->attrs;
  const choir_view_t* o = record->operands;  // x, W, b; y, argmax indices
  choir_view_t image;
  choir_status_t status =
      choir__op_infer(CHOIR_OP_CONV2D, o, 3, &attrs->conv, &image);
  choir_status_free(status);
  if (status) return false;
  for (int i = 0; i < 3; i++) pair->conv_operands[i] = o[i];
  pair->conv_operands[3] = pair->pool_operands[0] = image;
  pair->pool_operands[1] = o[3];
  pair->pool_operands[2] = o[4];
  pair->conv = (choir_record_t){.operation = choir__operation(CHOIR_OP_CONV2D),
                                .kernel = &choir__cpu_conv2d.kernel,
                                .operands = pair->conv_operands,
                                .src_count = 3,
                                .dst_count = 1,
                                .attrs = &attrs->conv,
                                .attrs_bytes = sizeof attrs->conv,
                                .is_part = record->is_part};
  pair->pool =
      (choir_record_t){.operation = choir__operation(CHOIR_OP_MAX_POOL2D),
                       .kernel = &choir__cpu_max_pool2d.kernel,
                       .operands = pair->pool_operands,
                       .src_count = 1,
                       .dst_count = 2,
                       .attrs = &attrs->pool,
                       .attrs_bytes = sizeof attrs->pool};
  return true;
}

// bf16 alone: in f32 bits may follow the algorithm that oneDNN takes.
static bool supports(const choir_record_t* record) {
  pair_t pair;
  return choir_record_src(record, 0)->dtype == CHOIR_DTYPE_BF16 &&
         !record->accumulate && make_pair(record, &pair) &&
         choir__cpu_conv2d.supports(&pair.conv) &&
         choir__cpu_max_pool2d.supports(&pair.pool);
}

// How many images to take at once. Blocks are equal, but for the last one.
static int64_t block_of(const choir_view_t* image, choir_stream_t* stream) {
  const int64_t samples = image->shape[0];
  const int64_t bytes = choir_view_count(image) / samples *
                        (int64_t)choir_dtype_bytes(image->dtype);
  const int64_t fit = BLOCK_BYTES * choir__cpu_threads(stream) / bytes;
  const int64_t most = fit < 1 ? 1 : fit;
  const int64_t blocks = (samples + most - 1) / most;
  return (samples + blocks - 1) / blocks;
}

// Image `first` of an operand on, `count` of them.
static void move_to(choir_view_t* view, const choir_view_t* whole,
                    int64_t first, int64_t count) {
  view->offset = whole->offset + first * whole->strides[0];
  view->shape[0] = count;
}

// A run of equal blocks from image `first` on.
typedef struct blocks_run_s {
  const choir_record_t* record;
  choir_stream_t* stream;
  pair_t pair;
  int64_t first, size;
} blocks_run_t;

static choir_status_t finish_block(void* context, int64_t block) {
  blocks_run_t* run = context;
  const int64_t at = run->first + block * run->size;
  for (int32_t i = 0; i < 2; i++)
    move_to(&run->pair.pool_operands[1 + i], choir_record_dst(run->record, i),
            at, run->size);
  CHOIR_TRY(choir__dnnl_conv2d_activate(&run->pair.conv, run->stream));
  return run->pair.pool.kernel->run(&run->pair.pool, run->stream);
}

static choir_status_t run_blocks(blocks_run_t* run, int64_t count) {
  const choir_view_t* x = choir_record_src(run->record, 0);
  choir_view_t* operands = run->pair.conv_operands;
  move_to(&operands[0], x, run->first, run->size);
  operands[3].shape[0] = run->pair.pool_operands[0].shape[0] = run->size;
  const size_t strides[] = {
      (size_t)(run->size * x->strides[0]) * choir_dtype_bytes(x->dtype), 0, 0,
      0};
  return choir__dnnl_conv2d_blocks(
      &run->pair.conv, run->stream,
      &(choir__dnnl_blocks_t){.count = count,
                              .strides = strides,
                              .after = finish_block,
                              .context = run});
}

static choir_status_t run_all(blocks_run_t* run, int64_t samples) {
  const int64_t count = samples / run->size;
  CHOIR_TRY(run_blocks(run, count));
  run->first = count * run->size;
  run->size = samples - run->first;
  return run->size > 0 ? run_blocks(run, 1) : NULL;
}

static choir_status_t run(const choir_record_t* record,
                          choir_stream_t* stream) {
  blocks_run_t all = {.record = record, .stream = stream};
  if (!make_pair(record, &all.pair))
    return CHOIR_ERROR(INTERNAL, "%s: shapes do not fit", record->kernel->name);
  choir_view_t* image = &all.pair.conv_operands[3];
  const int64_t samples = image->shape[0];
  all.size = block_of(image, stream);
  choir_view_t layout = *image;
  layout.shape[0] = all.size;
  choir_tensor_t* scratch = NULL;
  CHOIR_TRY(choir_tensor_create_layout(choir_stream_device(stream), &layout,
                                       &scratch));
  *image = all.pair.pool_operands[0] = *choir_tensor_view(scratch);
  choir_status_t status = run_all(&all, samples);
  choir_tensor_release(scratch);
  return status;
}

const choir_op_kernel_t choir__cpu_conv2d_max_pool2d_dnnl = CHOIR_OP_KERNEL(
    CHOIR_OP_CONV2D_MAX_POOL2D, "conv2d_max_pool2d", "dnnl", run, supports);
