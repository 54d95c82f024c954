// SPDX-License-Identifier: Apache-2.0
// Times ops on their own: one line a case with the kernel that ran, the median
// of many runs, half the distance between the quartiles, and what that is in
// flops and bytes. Compare runs only by ratios taken in turns: the speed of a
// shared machine wanders.
//
//   bench_ops [--op NAME] [--net NAME [--batch N]] [--device NAME]
//             [--threads N] [--seconds S] [--dtype NAME] [--json]
//
// Cases are the op list's own; --net takes those of a training step of
// mnist_cnn, mlp, resnet20, gpt384 or gpt768 instead (or attention or rotary
// alone, of several nets, or vocabulary, GPT-2's loss), says how often each
// comes in a step, and adds them up. --seconds: for one case. --dtype: of
// floats, f32 unless told otherwise.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/net_ops.h"
#include "core/clock.h"
#include "core/random.h"
#include "core/stage.h"
#include "tensor/op_def.h"

enum { MAX_SAMPLES = 400, MAX_SOURCES = CHOIR_MAX_OPERANDS };

typedef struct options_s {
  const char* op;
  const net_ops_t* net;  // NULL: the op list's cases
  int batch;             // 0: the network's
  bool json;
  const char* device;
  int threads;
  double seconds;  // for one case
  choir_dtype_t dtype;
} options_t;

static int fail(choir_status_t status) {
  fprintf(stderr, "bench_ops: %s (%s)\n", choir_status_message(status),
          choir_status_origin(status));
  choir_status_free(status);
  return 1;
}

// ---- Problems ----

typedef struct problem_s {
  const choir_op_def_t* def;
  choir_op_t op;
  choir_tensor_t* srcs[MAX_SOURCES];
  int32_t src_count;
  choir_tensor_t* dsts[CHOIR_OP_MAX_RESULTS];
  _Alignas(8) char attrs[256];
} problem_t;

static void release(problem_t* problem) {
  for (int32_t i = 0; i < problem->src_count; i++)
    choir_tensor_release(problem->srcs[i]);
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; i++)
    choir_tensor_release(problem->dsts[i]);
}

static choir_op_domain_t domain_of(const choir_op_def_t* def, int32_t index) {
  const int32_t known =
      (int32_t)(sizeof(def->domains) / sizeof(def->domains[0]));
  return index < known ? def->domains[index] : CHOIR_DOMAIN_ANY;
}

// Numbers that the op takes, the same ones on every run.
static void fill_elements(char* data, const choir_view_t* view,
                          choir_op_domain_t domain, int64_t classes,
                          uint32_t stream) {
  const choir_random_key_t key = {1, stream, 0};
  const size_t bytes = choir_dtype_bytes(view->dtype);
  const int64_t count = choir_view_count(view);
  for (int64_t i = 0; i < count; i++) {
    const uint32_t word = choir_random_word(key, 0, (uint64_t)i);
    double value = (double)choir_random_to_normal(word);
    if (domain == CHOIR_DOMAIN_POSITIVE || domain == CHOIR_DOMAIN_PROBABILITY)
      value = 0.5 + (double)choir_random_to_uniform(word);
    if (domain == CHOIR_DOMAIN_LABELS || domain == CHOIR_DOMAIN_INDICES)
      value = (double)(word % classes);
    if (domain == CHOIR_DOMAIN_CONDITION) value = word % 2;
    choir_element_store(data + (size_t)i * bytes, view->dtype, value);
  }
}

static choir_status_t fill(choir_tensor_t* tensor, choir_op_domain_t domain,
                           int64_t classes, uint32_t number) {
  const choir_view_t* view = choir_tensor_view(tensor);
  const size_t bytes =
      (size_t)choir_view_count(view) * choir_dtype_bytes(view->dtype);
  char* elements = malloc(bytes);
  if (!elements)
    return CHOIR_ERROR(OUT_OF_MEMORY, "fill: no memory for %zu bytes", bytes);
  fill_elements(elements, view, domain, classes, number);
  choir_device_t* device = choir_buffer_device(view->buffer);
  choir_status_t status = choir_buffer_write(
      view->buffer, choir_device_stream(device), 0, elements, bytes);
  free(elements);
  return status;
}

// Argmax indices of pooled images: those of the smallest images that they can
// be of.
static choir_status_t make_argmax(const problem_t* problem,
                                  choir_device_t* device, const int64_t* shape,
                                  choir_tensor_t** out) {
  const choir_pool2d_attrs_t* pool = (const void*)problem->attrs;
  if (problem->op != CHOIR_OP_MAX_POOL2D_GRAD) {
    const choir_conv2d_max_pool2d_attrs_t* both = (const void*)problem->attrs;
    pool = &both->pool;
  }
  int64_t size[] = {shape[0], shape[1], 0, 0};
  for (int k = 0; k < 2; k++)
    size[2 + k] = (shape[2 + k] - 1) * pool->stride[k] + pool->kernel[k] -
                  pool->padding[k] -
                  (pool->pad_mode ? pool->padding_after[k] : pool->padding[k]);
  choir_view_t view;
  CHOIR_TRY(choir_view_make(CHOIR_DTYPE_F32, 4, size, &view));
  choir_view_set_channels_last(&view);
  choir_tensor_t* image;
  CHOIR_TRY(choir_tensor_create_layout(device, &view, &image));
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {NULL};
  choir_status_t status = fill(image, CHOIR_DOMAIN_ANY, 1, 1);
  if (!status)
    status = choir_op_run(choir_device_stream(device), CHOIR_OP_MAX_POOL2D,
                          &image, 1, pool, false, results);
  choir_tensor_release(image);
  choir_tensor_release(results[0]);
  *out = results[1];
  return status;
}

// How many numbers a label or an index chooses from: columns, or what source 0
// has along the attribute "axis".
static int64_t choices(const problem_t* problem, choir_op_domain_t domain) {
  const choir_view_t* first = choir_tensor_view(problem->srcs[0]);
  if (first->ndim == 0) return 1;
  if (domain != CHOIR_DOMAIN_INDICES) return first->shape[first->ndim - 1];
  return first->shape[((const choir_gather_attrs_t*)problem->attrs)->axis];
}

static choir_status_t make_source(problem_t* problem, choir_device_t* device,
                                  choir_dtype_t floats, const int64_t* shape,
                                  int32_t ndim) {
  const int32_t index = problem->src_count;
  const choir_op_domain_t domain = domain_of(problem->def, index);
  const bool is_number =
      domain == CHOIR_DOMAIN_LABELS || domain == CHOIR_DOMAIN_INDICES;
  const choir_dtype_t dtype = is_number ? CHOIR_DTYPE_I64
                              : domain == CHOIR_DOMAIN_CONDITION
                                  ? CHOIR_DTYPE_BOOL
                                  : floats;
  if (domain == CHOIR_DOMAIN_ARGMAX) {
    CHOIR_TRY(make_argmax(problem, device, shape, &problem->srcs[index]));
    problem->src_count++;
    return NULL;
  }
  choir_view_t view;
  CHOIR_TRY(choir_view_make(dtype, ndim, shape, &view));
  // Four dimensions are an image's, but for these.
  const choir_op_t op = problem->def->op;
  const bool is_of_heads = op == CHOIR_OP_ATTENTION ||
                           op == CHOIR_OP_ATTENTION_GRAD ||
                           op == CHOIR_OP_ATTENTION_MASK_GRAD ||
                           op == CHOIR_OP_ROTARY || op == CHOIR_OP_ROTARY_GRAD;
  if (ndim == 4 && !is_of_heads) choir_view_set_channels_last(&view);
  CHOIR_TRY(choir_tensor_create_layout(device, &view, &problem->srcs[index]));
  problem->src_count++;
  return fill(problem->srcs[index], domain, choices(problem, domain),
              (uint32_t)index);
}

static choir_status_t set_attrs(problem_t* problem, const char* text) {
  char copy[256];
  snprintf(copy, sizeof(copy), "%s", text ? text : "");
  choir_struct_init(problem->def->attrs, problem->attrs);
  char* rest;
  for (char* item = strtok_r(copy, " ", &rest); item;
       item = strtok_r(NULL, " ", &rest)) {
    char* value = strchr(item, '=');
    if (!value) continue;
    *value++ = '\0';
    CHOIR_TRY(
        choir_struct_set(problem->def->attrs, problem->attrs, item, value));
  }
  return NULL;
}

static choir_status_t make_problem(choir_device_t* device, choir_dtype_t floats,
                                   choir_op_t op,
                                   const choir_op_case_t* op_case,
                                   problem_t* out) {
  memset(out, 0, sizeof(*out));
  out->op = op;
  out->def = choir__op_def(op);
  if (out->def->attrs) CHOIR_TRY(set_attrs(out, op_case->attrs));
  const char* at = op_case->shapes;
  for (;;) {
    int64_t shape[CHOIR_MAX_NDIM];
    int32_t ndim = 0;
    while (*at && *at != ';') {
      char* end;
      shape[ndim++] = strtoll(at, &end, 10);
      at = *end == ',' ? end + 1 : end;
    }
    CHOIR_TRY(make_source(out, device, floats, shape, ndim));
    if (!*at) return NULL;
    at++;
  }
}

// ---- Timing ----

// Sees which kernel the device was given.
typedef struct watch_s {
  choir_stage_t stage;
  const char* kernel;
  choir_cost_t cost;
} watch_t;

static choir_status_t watch_submit(choir_stage_t* stage, choir_stream_t* stream,
                                   const choir_record_t* record) {
  watch_t* watch = (watch_t*)stage;
  watch->kernel = record->kernel->name;
  watch->cost = choir_record_cost(record);
  return choir_stage_forward(stage, stream, record);
}

typedef struct result_s {
  const char* kernel;
  choir_cost_t cost;
  double median;
  double spread;  // half the distance between the quartiles
  int samples;
} result_t;

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// The calls come one after the other; what they queue is waited for at the end.
static choir_status_t call(problem_t* problem, choir_stream_t* stream) {
  const void* attrs = problem->def->attrs ? problem->attrs : NULL;
  if (problem->def->alias) {
    // The last result may be a view of the source: make it anew, as a layer
    // does.
    choir_tensor_release(problem->dsts[0]);
    problem->dsts[0] = NULL;
  }
  return choir_op_run(stream, problem->op, problem->srcs, problem->src_count,
                      attrs, false, problem->dsts);
}

static choir_status_t run(problem_t* problem, choir_stream_t* stream,
                          int repeats) {
  for (int i = 0; i < repeats; i++) CHOIR_TRY(call(problem, stream));
  return choir_stream_synchronize(stream);
}

static choir_status_t measure(problem_t* problem, choir_device_t* device,
                              double seconds, result_t* out) {
  choir_stream_t* stream = choir_device_stream(device);
  static double samples[MAX_SAMPLES];
  watch_t watch = {.stage = {.submit = watch_submit, .sees_kernels = true},
                   .kernel = "view"};
  choir_stream_push_stage(stream, &watch.stage);
  choir_status_t status = run(problem, stream, 1);
  choir_stream_pop_stage(stream, &watch.stage);
  if (status) return status;
  // Destinations are there from now on. The host's wait for a GPU takes some
  // microseconds, so more calls share one.
  const double enough = choir_device_is_host(device) ? 20e-6 : 1e-3;
  int repeats = 1;
  for (;;) {
    const double start = choir_clock_seconds();
    CHOIR_TRY(run(problem, stream, repeats));
    if (choir_clock_seconds() - start > enough || repeats > 100000) break;
    repeats *= 4;
  }
  int count = 0;
  const double begin = choir_clock_seconds();
  while (count < MAX_SAMPLES &&
         (count < 5 || choir_clock_seconds() - begin < seconds)) {
    const double start = choir_clock_seconds();
    CHOIR_TRY(run(problem, stream, repeats));
    samples[count++] = (choir_clock_seconds() - start) / repeats;
  }
  qsort(samples, (size_t)count, sizeof(double), compare);
  out->kernel = watch.kernel;
  out->cost = watch.cost;
  out->median = samples[count / 2];
  out->spread = (samples[count * 3 / 4] - samples[count / 4]) / 2;
  out->samples = count;
  return NULL;
}

static void print_result(const options_t* options, const char* op,
                         const choir_op_case_t* problem, int a_step,
                         const result_t* result) {
  const char* attrs = problem->attrs ? problem->attrs : "";
  const double gflops = result->cost.flops / result->median * 1e-9;
  const double gbytes = result->cost.bytes / result->median * 1e-9;
  if (options->json)
    printf(
        "{\"op\": \"%s\", \"kernel\": \"%s\", \"shapes\": \"%s\", "
        "\"attrs\": \"%s\", \"dtype\": \"%s\", \"a_step\": %d, "
        "\"device\": \"%s\", "
        "\"threads\": %d, "
        "\"median_us\": %.3f, "
        "\"spread_us\": %.3f, \"samples\": %d, \"gflops\": %.2f, "
        "\"gbytes\": %.2f}\n",
        op, result->kernel, problem->shapes, attrs,
        choir_dtype_name(options->dtype), a_step, options->device,
        options->threads, 1e6 * result->median, 1e6 * result->spread,
        result->samples, gflops, gbytes);
  else
    printf("%-28s %-34s %-24s %9.2f us +- %7.2f %8.2f GFLOP/s %7.2f GB/s\n",
           result->kernel, problem->shapes, attrs, 1e6 * result->median,
           1e6 * result->spread, gflops, gbytes);
}

static choir_status_t bench_case(const options_t* options,
                                 choir_device_t* device, choir_op_t op,
                                 const choir_op_case_t* op_case, int a_step,
                                 double* total) {
  problem_t problem;
  result_t result = {.kernel = "none"};
  choir_status_t status =
      make_problem(device, options->dtype, op, op_case, &problem);
  if (!status) status = measure(&problem, device, options->seconds, &result);
  if (!status) {
    print_result(options, choir_op_name(op), op_case, a_step, &result);
    *total += a_step * result.median;
  }
  release(&problem);
  return status;
}

static choir_status_t bench_net(const options_t* options,
                                choir_device_t* device) {
  const int batch = options->batch ? options->batch : options->net->batch;
  double total = 0;
  for (int i = 0; i < options->net->count; i++) {
    const net_op_t* op = &options->net->ops[i];
    if (options->op && strcmp(options->op, choir_op_name(op->op)) != 0)
      continue;
    char shapes[128] = "";
    size_t used = 0;
    for (const char* at = op->shapes; *at && used < sizeof(shapes); at++)
      used +=
          (size_t)snprintf(shapes + used, sizeof(shapes) - used,
                           *at == 'N' ? "%d" : "%c", *at == 'N' ? batch : *at);
    const choir_op_case_t op_case = {shapes, op->attrs};
    CHOIR_TRY(
        bench_case(options, device, op->op, &op_case, op->a_step, &total));
  }
  if (!options->json) printf("sum of a step %.3f ms\n", 1e3 * total);
  return NULL;
}

static choir_status_t bench_all(const options_t* options,
                                choir_device_t* device) {
  if (options->net) return bench_net(options, device);
  double total = 0;
  for (int op = 0; op < CHOIR_OP_COUNT; op++) {
    const choir_op_def_t* def = choir__op_def((choir_op_t)op);
    if (!def || (options->op && strcmp(options->op, def->name) != 0)) continue;
    for (const choir_op_case_t* c = def->cases; c && c->shapes; c++)
      CHOIR_TRY(bench_case(options, device, (choir_op_t)op, c, 1, &total));
  }
  return NULL;
}

int main(int argc, char** argv) {
  options_t options = {.device = "cpu", .threads = 1, .seconds = 0.2};
  for (int i = 1; i < argc; i++) {
    const bool has_value = i + 1 < argc;
    if (!strcmp(argv[i], "--op") && has_value) {
      options.op = argv[++i];
    } else if (!strcmp(argv[i], "--device") && has_value) {
      options.device = argv[++i];
    } else if (!strcmp(argv[i], "--threads") && has_value) {
      options.threads = atoi(argv[++i]);
    } else if (!strcmp(argv[i], "--seconds") && has_value) {
      options.seconds = atof(argv[++i]);
    } else if (!strcmp(argv[i], "--batch") && has_value) {
      options.batch = atoi(argv[++i]);
    } else if (!strcmp(argv[i], "--net") && has_value) {
      options.net = net_ops_find(argv[++i]);
      if (!options.net) {
        fprintf(stderr, "bench_ops: --net: there is no '%s'\n", argv[i]);
        return 2;
      }
    } else if (!strcmp(argv[i], "--dtype") && has_value) {
      choir_status_t status = choir_dtype_parse(argv[++i], &options.dtype);
      if (status) {
        fail(status);
        return 2;
      }
    } else if (!strcmp(argv[i], "--json")) {
      options.json = true;
    } else {
      fprintf(stderr,
              "usage: bench_ops [--op NAME] [--net NAME [--batch N]] "
              "[--device NAME] [--threads N] [--seconds S] [--dtype NAME] "
              "[--json]\n");
      return 2;
    }
  }
  const choir_device_options_t device_options = {.threads = options.threads};
  choir_device_t* device;
  choir_status_t status =
      choir_device_create(options.device, &device_options, &device);
  if (status) return fail(status);
  status = bench_all(&options, device);
  choir_device_release(device);
  return status ? fail(status) : 0;
}
