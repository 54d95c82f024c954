// SPDX-License-Identifier: Apache-2.0
// The MNIST CNN's training step written straight against oneDNN's C interface
// (that of version 3; version 2 has a call in between while primitives are
// made): no tensors, no dispatch, no tape. It is the yardstick for what Choir's
// own step costs around the same primitives.
//
//   dnnl_loop [--batch N] [--threads N] [--steps N] [--json] [--phases]
//             [--forward-only]
//
// Activations are fixed to channels-last and convolution weights are left to
// oneDNN, which was the quickest of the arrangements tried; the first fully
// connected layer reads the pooled image in place.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "third_party/dnnl/dnnl_v3.h"
#ifdef _OPENMP
#include <omp.h>
#endif

#define CHECK(call)                                                      \
  do {                                                                   \
    dnnl_status_t status_ = (call);                                      \
    if (status_ != dnnl_success) {                                       \
      fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, \
              (int)status_);                                             \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

enum { MAX_STEPS = 128, MAX_ARGS = 8, MAX_PARAMS = 8, MAX_DESCS = 64 };

typedef struct call_s {
  const char* phase;
  dnnl_primitive_t primitive;
  dnnl_exec_arg_t args[MAX_ARGS];
  int arg_count;
  double seconds;
} call_t;

typedef struct param_s {
  dnnl_memory_t value;  // as the forward pass wants it
  dnnl_memory_t grad;   // in the same layout
  float* momentum;
  size_t count;
} param_t;

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_prop_kind_t forward_kind = dnnl_forward_training;
static call_t calls[MAX_STEPS];
static int call_count;
static param_t params[MAX_PARAMS];
static int param_count;
static dnnl_memory_desc_t descs[MAX_DESCS];  // kept to the end, like all here
static int desc_count;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dnnl_memory_t memory_of(const_dnnl_memory_desc_t md) {
  const size_t bytes = (dnnl_memory_desc_get_size(md) + 63) / 64 * 64;
  void* data = aligned_alloc(64, bytes ? bytes : 64);
  if (!data) exit(1);
  memset(data, 0, bytes);
  dnnl_memory_t memory;
  CHECK(dnnl_memory_create(&memory, md, engine, data));
  return memory;
}

static float* data_of(dnnl_memory_t memory) {
  void* data;
  CHECK(dnnl_memory_get_data_handle(memory, &data));
  return data;
}

static size_t bytes_of(dnnl_memory_t memory) {
  const_dnnl_memory_desc_t md;
  CHECK(dnnl_memory_get_memory_desc(memory, &md));
  return dnnl_memory_desc_get_size(md);
}

static dnnl_memory_desc_t desc(int ndim, const int64_t* shape,
                               dnnl_format_tag_t tag) {
  dnnl_memory_desc_t* md = &descs[desc_count++];
  CHECK(dnnl_memory_desc_create_with_tag(md, ndim, shape, dnnl_f32, tag));
  return *md;
}

static const_dnnl_memory_desc_t wanted(dnnl_primitive_desc_t pd,
                                       dnnl_query_t what) {
  const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, what, 0);
  if (!md) exit(1);
  return md;
}

static void fill(dnnl_memory_t memory, float scale) {
  static unsigned state = 1;
  float* data = data_of(memory);
  const size_t count = bytes_of(memory) / sizeof(float);
  for (size_t i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    data[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
  }
}

// Appends one call; args are (index, memory) pairs ended by 0.
static void add_call(const char* phase, dnnl_primitive_desc_t pd,
                     const int* indices, const dnnl_memory_t* memories,
                     int count) {
  call_t* call = &calls[call_count++];
  call->phase = phase;
  CHECK(dnnl_primitive_create(&call->primitive, pd));
  for (int i = 0; i < count; i++) {
    call->args[i].arg = indices[i];
    call->args[i].memory = memories[i];
  }
  call->arg_count = count;
}

static dnnl_memory_t reorder(const char* phase, dnnl_memory_t from,
                             const_dnnl_memory_desc_t to) {
  const_dnnl_memory_desc_t md;
  CHECK(dnnl_memory_get_memory_desc(from, &md));
  if (dnnl_memory_desc_equal(md, to)) return from;
  dnnl_memory_t result = memory_of(to);
  dnnl_primitive_desc_t pd;
  CHECK(dnnl_reorder_primitive_desc_create(&pd, md, engine, to, engine, NULL));
  const int indices[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
  const dnnl_memory_t memories[] = {from, result};
  add_call(phase, pd, indices, memories, 2);
  return result;
}

static param_t* add_param(const_dnnl_memory_desc_t md, float scale) {
  param_t* param = &params[param_count++];
  param->value = memory_of(md);
  param->grad = memory_of(md);
  fill(param->value, scale);
  param->count = dnnl_memory_desc_get_size(md) / sizeof(float);
  param->momentum = calloc(param->count, sizeof(float));
  return param;
}

// ---- Layers: the forward call now, the backward calls on request ----

typedef struct layer_s {
  char names[4][24];
  dnnl_memory_t src, dst, workspace;
  dnnl_primitive_desc_t forward;
  dnnl_dims_t weight_shape;  // of a convolution
  param_t* weights;
  param_t* bias;
} layer_t;

static void name_layer(layer_t* layer, const char* name) {
  snprintf(layer->names[0], sizeof(layer->names[0]), "%s fwd", name);
  snprintf(layer->names[1], sizeof(layer->names[1]), "%s bwd_d", name);
  snprintf(layer->names[2], sizeof(layer->names[2]), "%s bwd_w", name);
  snprintf(layer->names[3], sizeof(layer->names[3]), "%s reorder", name);
}

static void conv_forward(layer_t* layer, const char* name, dnnl_memory_t src,
                         const int64_t* weight_shape,
                         const int64_t* dst_shape) {
  name_layer(layer, name);
  layer->src = src;
  memcpy(layer->weight_shape, weight_shape, 4 * sizeof(weight_shape[0]));
  const_dnnl_memory_desc_t src_md;
  CHECK(dnnl_memory_get_memory_desc(src, &src_md));
  const dnnl_memory_desc_t w = desc(4, weight_shape, dnnl_format_tag_any);
  const dnnl_memory_desc_t b = desc(1, weight_shape, dnnl_x);
  const dnnl_memory_desc_t dst = desc(4, dst_shape, dnnl_nhwc);
  const dnnl_dims_t ones = {1, 1}, zeros = {0, 0};
  dnnl_post_ops_t ops;
  dnnl_primitive_attr_t attr;
  CHECK(dnnl_post_ops_create(&ops));
  CHECK(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0));
  CHECK(dnnl_primitive_attr_create(&attr));
  CHECK(dnnl_primitive_attr_set_post_ops(attr, ops));
  CHECK(dnnl_convolution_forward_primitive_desc_create(
      &layer->forward, engine, forward_kind, dnnl_convolution_direct, src_md, w,
      b, dst, ones, zeros, zeros, zeros, attr));
  CHECK(dnnl_post_ops_destroy(ops));
  CHECK(dnnl_primitive_attr_destroy(attr));
  layer->weights =
      add_param(wanted(layer->forward, dnnl_query_weights_md), 0.1f);
  layer->bias = add_param(b, 0.1f);
  layer->dst = memory_of(dst);
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                         DNNL_ARG_DST};
  const dnnl_memory_t memories[] = {src, layer->weights->value,
                                    layer->bias->value, layer->dst};
  add_call(layer->names[0], layer->forward, indices, memories, 4);
}

static dnnl_memory_t conv_backward(layer_t* layer, dnnl_memory_t diff_dst,
                                   int want_data) {
  const_dnnl_memory_desc_t src, dst, weights, bias;
  CHECK(dnnl_memory_get_memory_desc(layer->src, &src));
  CHECK(dnnl_memory_get_memory_desc(layer->dst, &dst));
  CHECK(dnnl_memory_get_memory_desc(layer->weights->value, &weights));
  CHECK(dnnl_memory_get_memory_desc(layer->bias->value, &bias));
  const dnnl_memory_desc_t any =
      desc(4, layer->weight_shape, dnnl_format_tag_any);
  const dnnl_dims_t ones = {1, 1}, zeros = {0, 0};
  dnnl_primitive_desc_t pd;
  CHECK(dnnl_convolution_backward_weights_primitive_desc_create(
      &pd, engine, dnnl_convolution_direct, src, any, bias, dst, ones, zeros,
      zeros, zeros, layer->forward, NULL));
  const_dnnl_memory_desc_t grad = wanted(pd, dnnl_query_diff_weights_md);
  dnnl_memory_t raw = dnnl_memory_desc_equal(grad, weights)
                          ? layer->weights->grad
                          : memory_of(grad);
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                         DNNL_ARG_DIFF_BIAS};
  const dnnl_memory_t memories[] = {layer->src, diff_dst, raw,
                                    layer->bias->grad};
  add_call(layer->names[2], pd, indices, memories, 4);
  if (raw != layer->weights->grad) {
    dnnl_primitive_desc_t back;
    CHECK(dnnl_reorder_primitive_desc_create(&back, grad, engine, weights,
                                             engine, NULL));
    const int from_to[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    const dnnl_memory_t pair[] = {raw, layer->weights->grad};
    add_call(layer->names[3], back, from_to, pair, 2);
  }
  if (!want_data) return NULL;
  CHECK(dnnl_convolution_backward_data_primitive_desc_create(
      &pd, engine, dnnl_convolution_direct, src, any, dst, ones, zeros, zeros,
      zeros, layer->forward, NULL));
  dnnl_memory_t diff_src = memory_of(src);
  dnnl_memory_t w = reorder(layer->names[3], layer->weights->value,
                            wanted(pd, dnnl_query_weights_md));
  const int data_indices[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS,
                              DNNL_ARG_DIFF_SRC};
  const dnnl_memory_t data_memories[] = {diff_dst, w, diff_src};
  add_call(layer->names[1], pd, data_indices, data_memories, 3);
  return diff_src;
}

static void pool_forward(layer_t* layer, const char* name, dnnl_memory_t src,
                         const int64_t* dst_shape) {
  name_layer(layer, name);
  layer->src = src;
  const_dnnl_memory_desc_t src_md;
  CHECK(dnnl_memory_get_memory_desc(src, &src_md));
  const dnnl_memory_desc_t dst = desc(4, dst_shape, dnnl_nhwc);
  const dnnl_dims_t twos = {2, 2}, zeros = {0, 0};
  CHECK(dnnl_pooling_forward_primitive_desc_create(
      &layer->forward, engine, forward_kind, dnnl_pooling_max, src_md, dst,
      twos, twos, zeros, zeros, zeros, NULL));
  layer->dst = memory_of(dst);
  // Where the maxima were is for the backward pass alone.
  const int training = forward_kind == dnnl_forward_training;
  if (training)
    layer->workspace =
        memory_of(wanted(layer->forward, dnnl_query_workspace_md));
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_WORKSPACE};
  const dnnl_memory_t memories[] = {src, layer->dst, layer->workspace};
  add_call(layer->names[0], layer->forward, indices, memories, 2 + training);
}

static dnnl_memory_t pool_backward(layer_t* layer, dnnl_memory_t diff_dst) {
  const_dnnl_memory_desc_t src, dst;
  CHECK(dnnl_memory_get_memory_desc(layer->src, &src));
  CHECK(dnnl_memory_get_memory_desc(layer->dst, &dst));
  const dnnl_dims_t twos = {2, 2}, zeros = {0, 0};
  dnnl_primitive_desc_t pd;
  CHECK(dnnl_pooling_backward_primitive_desc_create(
      &pd, engine, dnnl_pooling_max, src, dst, twos, twos, zeros, zeros, zeros,
      layer->forward, NULL));
  dnnl_memory_t diff_src = memory_of(src);
  const int indices[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC,
                         DNNL_ARG_WORKSPACE};
  const dnnl_memory_t memories[] = {diff_dst, diff_src, layer->workspace};
  add_call(layer->names[1], pd, indices, memories, 3);
  return diff_src;
}

static dnnl_memory_t relu_backward(const char* phase, dnnl_memory_t dst,
                                   dnnl_memory_t diff_dst) {
  const_dnnl_memory_desc_t md;
  CHECK(dnnl_memory_get_memory_desc(dst, &md));
  dnnl_primitive_desc_t forward, pd;
  CHECK(dnnl_eltwise_forward_primitive_desc_create(
      &forward, engine, dnnl_forward_training,
      dnnl_eltwise_relu_use_dst_for_bwd, md, md, 0, 0, NULL));
  CHECK(dnnl_eltwise_backward_primitive_desc_create(
      &pd, engine, dnnl_eltwise_relu_use_dst_for_bwd, md, md, md, 0, 0, forward,
      NULL));
  // In place: the gradient of the pooled image is of no further use.
  const int indices[] = {DNNL_ARG_DST, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC};
  const dnnl_memory_t memories[] = {dst, diff_dst, diff_dst};
  add_call(phase, pd, indices, memories, 3);
  return diff_dst;
}

// `src_shape` is that of src: (n, c) or an image's.
static void linear_forward(layer_t* layer, const char* name, dnnl_memory_t src,
                           int ndim, const int64_t* src_shape, int64_t outputs,
                           int relu) {
  name_layer(layer, name);
  layer->src = src;
  const_dnnl_memory_desc_t src_md;
  CHECK(dnnl_memory_get_memory_desc(src, &src_md));
  dnnl_dims_t shape = {0};
  memcpy(shape, src_shape, (size_t)ndim * sizeof(shape[0]));
  const dnnl_dims_t dst_shape = {shape[0], outputs};
  shape[0] = outputs;
  // The order of the weights follows the source, so nothing is reordered.
  const dnnl_memory_desc_t w =
      desc(ndim, shape, ndim == 4 ? dnnl_acdb : dnnl_ab);
  const dnnl_dims_t bias_shape = {outputs};
  const dnnl_memory_desc_t b = desc(1, bias_shape, dnnl_x);
  const dnnl_memory_desc_t dst = desc(2, dst_shape, dnnl_nc);
  dnnl_primitive_attr_t attr = NULL;
  if (relu) {
    dnnl_post_ops_t ops;
    CHECK(dnnl_post_ops_create(&ops));
    CHECK(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0));
    CHECK(dnnl_primitive_attr_create(&attr));
    CHECK(dnnl_primitive_attr_set_post_ops(attr, ops));
    CHECK(dnnl_post_ops_destroy(ops));
  }
  CHECK(dnnl_inner_product_forward_primitive_desc_create(
      &layer->forward, engine, forward_kind, src_md, w, b, dst, attr));
  layer->weights = add_param(w, 0.05f);
  layer->bias = add_param(b, 0.05f);
  layer->dst = memory_of(dst);
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                         DNNL_ARG_DST};
  const dnnl_memory_t memories[] = {src, layer->weights->value,
                                    layer->bias->value, layer->dst};
  add_call(layer->names[0], layer->forward, indices, memories, 4);
}

static dnnl_memory_t linear_backward(layer_t* layer, dnnl_memory_t diff_dst) {
  const_dnnl_memory_desc_t src, dst, weights, bias;
  CHECK(dnnl_memory_get_memory_desc(layer->src, &src));
  CHECK(dnnl_memory_get_memory_desc(layer->dst, &dst));
  CHECK(dnnl_memory_get_memory_desc(layer->weights->value, &weights));
  CHECK(dnnl_memory_get_memory_desc(layer->bias->value, &bias));
  dnnl_primitive_desc_t pd;
  CHECK(dnnl_inner_product_backward_weights_primitive_desc_create(
      &pd, engine, src, weights, bias, dst, layer->forward, NULL));
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                         DNNL_ARG_DIFF_BIAS};
  const dnnl_memory_t memories[] = {layer->src, diff_dst, layer->weights->grad,
                                    layer->bias->grad};
  add_call(layer->names[2], pd, indices, memories, 4);
  CHECK(dnnl_inner_product_backward_data_primitive_desc_create(
      &pd, engine, src, weights, dst, layer->forward, NULL));
  dnnl_memory_t diff_src = memory_of(src);
  const int data_indices[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS,
                              DNNL_ARG_DIFF_SRC};
  const dnnl_memory_t data_memories[] = {diff_dst, layer->weights->value,
                                         diff_src};
  add_call(layer->names[1], pd, data_indices, data_memories, 3);
  return diff_src;
}

// ---- The plain loops: loss and optimizer ----

static float loss_and_gradient(const float* p, const int* labels, float* dx,
                               int64_t batch, int64_t classes) {
  float loss = 0;
  for (int64_t n = 0; n < batch; n++) {
    for (int64_t c = 0; c < classes; c++) {
      const float target = c == labels[n] ? 1.0f : 0.0f;
      dx[n * classes + c] = (p[n * classes + c] - target) / (float)batch;
    }
    loss -= logf(p[n * classes + labels[n]]);
  }
  return loss / (float)batch;
}

#if defined(__x86_64__)
#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FAST
#endif

FAST static void sgd(float* p, const float* g, float* v, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float grad = g[i] + 1e-5f * p[i];
    v[i] = 0.9f * v[i] + grad;
    p[i] -= 1e-4f * v[i];
  }
}

typedef struct net_s {
  layer_t conv1, pool1, conv2, pool2, ip1, ip2;
  dnnl_memory_t p, dlogits;  // probabilities, gradient of the scores
} net_t;

static void add_forward(net_t* net, dnnl_memory_t x, int64_t batch) {
  const dnnl_dims_t w1 = {20, 1, 5, 5}, y1 = {batch, 20, 24, 24};
  const dnnl_dims_t p1 = {batch, 20, 12, 12};
  const dnnl_dims_t w2 = {50, 20, 5, 5}, y2 = {batch, 50, 8, 8};
  const dnnl_dims_t p2 = {batch, 50, 4, 4};
  conv_forward(&net->conv1, "conv1", x, w1, y1);
  pool_forward(&net->pool1, "pool1", net->conv1.dst, p1);
  conv_forward(&net->conv2, "conv2", net->pool1.dst, w2, y2);
  pool_forward(&net->pool2, "pool2", net->conv2.dst, p2);
  const dnnl_dims_t h1 = {batch, 500};
  linear_forward(&net->ip1, "ip1", net->pool2.dst, 4, p2, 500, 1);
  linear_forward(&net->ip2, "ip2", net->ip1.dst, 2, h1, 10, 0);
}

static void add_softmax(net_t* net) {
  const_dnnl_memory_desc_t logits_md;
  CHECK(dnnl_memory_get_memory_desc(net->ip2.dst, &logits_md));
  dnnl_primitive_desc_t spd;
  CHECK(dnnl_softmax_forward_primitive_desc_create(
      &spd, engine, dnnl_forward_training, dnnl_softmax_accurate, logits_md,
      logits_md, 1, NULL));
  net->p = memory_of(logits_md);
  net->dlogits = memory_of(logits_md);
  const int indices[] = {DNNL_ARG_SRC, DNNL_ARG_DST};
  const dnnl_memory_t memories[] = {net->ip2.dst, net->p};
  add_call("loss", spd, indices, memories, 2);
}

static void add_backward(net_t* net) {
  dnnl_memory_t d = linear_backward(&net->ip2, net->dlogits);
  d = relu_backward("ip1 relu bwd", net->ip1.dst, d);
  d = linear_backward(&net->ip1, d);
  d = relu_backward("relu2 bwd", net->pool2.dst, d);
  d = pool_backward(&net->pool2, d);
  d = conv_backward(&net->conv2, d, 1);
  d = relu_backward("relu1 bwd", net->pool1.dst, d);
  d = pool_backward(&net->pool1, d);
  conv_backward(&net->conv1, d, 0);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  int64_t batch = 64;
  int threads = 1, steps = 60, json = 0, phases = 0, forward_only = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--batch") && i + 1 < argc)
      batch = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
      threads = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--steps") && i + 1 < argc)
      steps = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--json"))
      json = 1;
    else if (!strcmp(argv[i], "--phases"))
      phases = 1;
    else if (!strcmp(argv[i], "--forward-only"))
      forward_only = 1;
    else {
      fprintf(stderr,
              "usage: dnnl_loop [--batch N] [--threads N] [--steps N] "
              "[--json] [--phases] [--forward-only]\n");
      return 2;
    }
  }
  if (batch < 1 || threads < 1 || steps < 1) return 2;
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
  CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
  CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));

  const dnnl_dims_t x_shape = {batch, 1, 28, 28};
  const dnnl_memory_desc_t x_md = desc(4, x_shape, dnnl_nhwc);
  dnnl_memory_t x = memory_of(x_md);
  fill(x, 1.0f);
  int* labels = calloc((size_t)batch, sizeof(int));
  for (int64_t n = 0; n < batch; n++) labels[n] = (int)(n % 10);

  if (forward_only) forward_kind = dnnl_forward_inference;
  static net_t net;
  add_forward(&net, x, batch);
  if (!forward_only) add_softmax(&net);
  // Before the backward pass comes the plain loop of the loss.
  const int forward_count = call_count;
  if (!forward_only) add_backward(&net);
  const int update_count = forward_only ? 0 : param_count;

  double* times = calloc((size_t)steps, sizeof(double));
  double loss_seconds = 0, sgd_seconds = 0;
  float loss = 0;
  const int warm = 8;
  for (int step = -warm; step < steps; step++) {
    const double start = now();
    double mark = start;
    for (int i = 0; i < call_count; i++) {
      if (i == forward_count) {
        loss = loss_and_gradient(data_of(net.p), labels, data_of(net.dlogits),
                                 batch, 10);
        if (phases) {
          const double t = now();
          if (step >= 0) loss_seconds += t - mark;
          mark = t;
        }
      }
      CHECK(dnnl_primitive_execute(calls[i].primitive, stream,
                                   calls[i].arg_count, calls[i].args));
      if (phases) {
        const double t = now();
        if (step >= 0) calls[i].seconds += t - mark;
        mark = t;
      }
    }
    for (int i = 0; i < update_count; i++)
      sgd(data_of(params[i].value), data_of(params[i].grad), params[i].momentum,
          (int64_t)params[i].count);
    const double end = now();
    if (step >= 0) sgd_seconds += end - mark;
    if (step >= 0) times[step] = end - start;
  }
  qsort(times, (size_t)steps, sizeof(double), compare);
  const double median = times[steps / 2];
  if (phases) {
    for (int i = 0; i < call_count; i++)
      printf("%-14s %8.1f us\n", calls[i].phase,
             1e6 * calls[i].seconds / steps);
    printf("%-14s %8.1f us\n", "loss", 1e6 * loss_seconds / steps);
    printf("%-14s %8.1f us\n", "sgd", 1e6 * sgd_seconds / steps);
  }
  if (json)
    printf(
        "{\"name\": \"dnnl_loop\", \"batch\": %lld, \"threads\": %d, "
        "\"step_ms\": %.4f, \"step_ms_best\": %.4f, "
        "\"images_per_s\": %.1f}\n",
        (long long)batch, threads, 1e3 * median, 1e3 * times[0],
        (double)batch / median);
  else
    printf(
        "batch %lld threads %d: %.3f ms a step (best %.3f), %.0f images/s, "
        "loss %.4f\n",
        (long long)batch, threads, 1e3 * median, 1e3 * times[0],
        (double)batch / median, (double)loss);
  return 0;
}
