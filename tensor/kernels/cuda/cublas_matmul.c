// SPDX-License-Identifier: Apache-2.0
// Products of matrices by cuBLASLt. It counts by columns: rows of ours that are
// dense are columns of the transpose, so that c by rows is computed as c^T =
// b^T a^T. What was made for a problem is kept: descriptors and the first
// algorithm that the heuristics name, so that a problem is always computed in
// the same way.
#include "core/log.h"
#include "tensor/host_fallback_internal.h"
#include "tensor/kernels/cuda/cublas_lt.h"
#include "tensor/kernels/cuda/cuda_kernels.h"
#include "tensor/kernels/nest.h"
#include "tensor/kernels/product.h"

// Memory that an algorithm may ask for. Those of Hopper want up to this.
#define WORKSPACE_BYTES ((uint64_t)32 << 20)
// More is worth nothing to any algorithm.
#define MOST_ALIGNMENT 256

_Static_assert(sizeof(struct choir__cublas_algo_s) == 64, "as cuBLASLt has it");

// ---- Problems ----

// One of a, b, c: where it begins, and how far the next matrix is.
typedef struct operand_s {
  choir__matrix_t matrix;
  choir_dtype_t dtype;
  char* data;
  int64_t batch_stride;             // elements; 0: the same matrix each time
  int64_t strides[CHOIR_MAX_NDIM];  // of problem_t's loops
  uint32_t alignment;  // bytes, of all its matrices that begin a call
} operand_t;

typedef struct problem_s {
  choir_op_t op;
  const choir_record_t* record;
  choir_dtype_t dtype;  // of the factors
  int64_t m, n, k;
  operand_t a, b, c;
  char* bias;  // NULL: none
  uint32_t bias_alignment;
  int64_t batch;  // matrices of one call
  int64_t calls;  // these, over the sizes of `loops`
  int32_t loop_count;
  int64_t loops[CHOIR_MAX_NDIM];
} problem_t;

static void place(const problem_t* problem, const choir_view_t* view,
                  const choir__matrix_t* matrix, operand_t* operand) {
  operand->matrix = *matrix;
  operand->dtype = view->dtype;
  operand->data = choir__cuda_data(view);
  uint64_t bits = (uintptr_t)operand->data;
  for (int32_t k = 0; k < problem->loop_count; ++k)
    bits |= (uint64_t)operand->strides[k] * choir_dtype_bytes(view->dtype);
  operand->alignment = choir__cuda_alignment(bits, MOST_ALIGNMENT);
}

// The last of the leading dimensions, merged as far as they can be, is the
// batch of a call, unless results would lie one inside the other.
static void share_out(problem_t* problem, const choir__product_t* product) {
  const choir__matrix_t* c = &product->c;
  const choir_view_t* operands[3] = {choir_record_dst(problem->record, 0),
                                     choir_record_src(problem->record, 0),
                                     choir_record_src(problem->record, 1)};
  choir_view_t leading[3];
  const choir_view_t* views[3];
  for (int i = 0; i < 3; ++i) {
    leading[i] = *operands[i];
    leading[i].ndim = product->is_whole ? 0 : operands[i]->ndim - 2;
    views[i] = &leading[i];
  }
  choir__nest_t nest;
  // The result repeats nothing, and the sources were broadcast to it.
  (void)choir__nest_make(views, 3, &nest);
  operand_t* placed[3] = {&problem->c, &problem->a, &problem->b};
  const int32_t last = nest.ndim - 1;
  const int64_t lines = c->transposed ? problem->n : problem->m;
  const int64_t width = c->transposed ? problem->m : problem->n;
  const bool is_batch = nest.shape[last] > 1 && nest.shape[last] <= INT32_MAX &&
                        nest.strides[0][last] >= (lines - 1) * c->ld + width;
  problem->batch = is_batch ? nest.shape[last] : 1;
  problem->loop_count = is_batch ? last : nest.ndim;
  problem->calls = 1;
  for (int32_t k = 0; k < problem->loop_count; ++k) {
    problem->loops[k] = nest.shape[k];
    problem->calls *= nest.shape[k];
  }
  for (int i = 0; i < 3; ++i) {
    placed[i]->batch_stride = is_batch ? nest.strides[i][last] : 0;
    for (int32_t k = 0; k < problem->loop_count; ++k)
      placed[i]->strides[k] = nest.shape[k] > 1 ? nest.strides[i][k] : 0;
  }
}

static void describe(choir_op_t op, const choir_record_t* record,
                     const choir__product_t* product, problem_t* out_problem) {
  *out_problem = (problem_t){.op = op,
                             .record = record,
                             .dtype = choir_record_src(record, 0)->dtype,
                             .m = product->m,
                             .n = product->n,
                             .k = product->k};
  share_out(out_problem, product);
  place(out_problem, choir_record_src(record, 0), &product->a, &out_problem->a);
  place(out_problem, choir_record_src(record, 1), &product->b, &out_problem->b);
  place(out_problem, choir_record_dst(record, 0), &product->c, &out_problem->c);
  if (op == CHOIR_OP_LINEAR) {
    out_problem->bias = choir__cuda_data(choir_record_src(record, 2));
    out_problem->bias_alignment =
        choir__cuda_alignment((uintptr_t)out_problem->bias, MOST_ALIGNMENT);
  }
}

static void key_of(const problem_t* problem, choir__key_t* out_key) {
  const operand_t* operands[3] = {&problem->a, &problem->b, &problem->c};
  out_key->count = 0;
  choir__key_add(out_key, problem->op);
  choir__key_add(out_key, problem->m);
  choir__key_add(out_key, problem->n);
  choir__key_add(out_key, problem->k);
  choir__key_add(out_key, problem->batch);
  choir__key_add(out_key, problem->bias_alignment);
  for (int i = 0; i < 3; ++i) {
    choir__key_add(out_key, operands[i]->dtype);
    choir__key_add(out_key, operands[i]->matrix.ld);
    choir__key_add(out_key, operands[i]->matrix.transposed);
    choir__key_add(out_key, operands[i]->batch_stride);
    choir__key_add(out_key, operands[i]->alignment);
  }
}

// ---- Plans ----

typedef struct plan_s {
  choir__cuda_plan_t base;
  choir__cublas_desc_t desc;
  // By columns, as the library has them: c (rows, columns) = left right.
  choir__cublas_layout_t left, right, result;
  choir__cublas_algo_t algo;
  size_t workspace_bytes;
  bool has_algorithm;
  const char* bias;  // what the descriptor has
} plan_t;

static choir__cublas_dtype_t dtype_of(choir_dtype_t dtype) {
  switch (dtype) {
    case CHOIR_DTYPE_F64:
      return CHOIR__CUBLAS_R_64F;
    case CHOIR_DTYPE_F16:
      return CHOIR__CUBLAS_R_16F;
    case CHOIR_DTYPE_BF16:
      return CHOIR__CUBLAS_R_16BF;
    default:
      return CHOIR__CUBLAS_R_32F;
  }
}

// Sums are in f32, or f64 of that. TF32 rounds the factors to ten bits.
static choir__cublas_compute_t compute_of(const choir__cublas_t* cublas,
                                          choir_dtype_t dtype) {
  if (dtype == CHOIR_DTYPE_F64) return CHOIR__CUBLAS_COMPUTE_64F;
  return dtype == CHOIR_DTYPE_F32 && cublas->tf32
             ? CHOIR__CUBLAS_COMPUTE_32F_FAST_TF32
             : CHOIR__CUBLAS_COMPUTE_32F;
}

void choir__cublas_plan_destroy(const choir__cublas_t* cublas,
                                choir__cuda_plan_t* base) {
  plan_t* plan = (plan_t*)base;
  if (!plan) return;
  const choir__cublas_table_t* table = cublas->table;
  // Nothing but host memory: none of these can fail.
  if (plan->desc) (void)table->cublasLtMatmulDescDestroy(plan->desc);
  if (plan->left) (void)table->cublasLtMatrixLayoutDestroy(plan->left);
  if (plan->right) (void)table->cublasLtMatrixLayoutDestroy(plan->right);
  if (plan->result) (void)table->cublasLtMatrixLayoutDestroy(plan->result);
  choir_deallocate(cublas->objects, plan, sizeof(*plan));
}

static choir_status_t set_desc(const choir__cublas_t* cublas,
                               choir__cublas_desc_t desc,
                               choir__cublas_desc_attr_t attr,
                               const void* value, size_t bytes) {
  return CHOIR__CUBLAS_CALL(cublas, cublasLtMatmulDescSetAttribute, desc, attr,
                            value, bytes);
}

static choir_status_t make_layout(const choir__cublas_t* cublas,
                                  const problem_t* problem,
                                  const operand_t* operand, int64_t rows,
                                  int64_t columns,
                                  choir__cublas_layout_t* out_layout) {
  CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatrixLayoutCreate, out_layout,
                               dtype_of(operand->dtype), (uint64_t)rows,
                               (uint64_t)columns, operand->matrix.ld));
  if (problem->batch == 1) return NULL;
  const int32_t count = (int32_t)problem->batch;
  CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatrixLayoutSetAttribute,
                               *out_layout, CHOIR__CUBLAS_LAYOUT_BATCH_COUNT,
                               &count, sizeof(count)));
  return CHOIR__CUBLAS_CALL(cublas, cublasLtMatrixLayoutSetAttribute,
                            *out_layout, CHOIR__CUBLAS_LAYOUT_BATCH_OFFSET,
                            &operand->batch_stride,
                            sizeof(operand->batch_stride));
}

// The factors in the library's order.
static const operand_t* left_of(const problem_t* problem) {
  return problem->c.matrix.transposed ? &problem->a : &problem->b;
}
static const operand_t* right_of(const problem_t* problem) {
  return problem->c.matrix.transposed ? &problem->b : &problem->a;
}

static choir_status_t set_bias(const choir__cublas_t* cublas, plan_t* plan,
                               const char* bias) {
  if (plan->bias == bias) return NULL;
  CHOIR_TRY(set_desc(cublas, plan->desc, CHOIR__CUBLAS_DESC_BIAS_POINTER, &bias,
                     sizeof(bias)));
  plan->bias = bias;
  return NULL;
}

static choir_status_t make_descriptors(const choir__cublas_t* cublas,
                                       const problem_t* problem, plan_t* plan) {
  const operand_t* left = left_of(problem);
  const operand_t* right = right_of(problem);
  const bool by_columns = problem->c.matrix.transposed;
  const int64_t rows = by_columns ? problem->m : problem->n;
  const int64_t columns = by_columns ? problem->n : problem->m;
  const int64_t inner = problem->k;
  const bool turn_left = left->matrix.transposed != by_columns;
  const bool turn_right = right->matrix.transposed != by_columns;
  CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatmulDescCreate, &plan->desc,
                               compute_of(cublas, problem->dtype),
                               problem->dtype == CHOIR_DTYPE_F64
                                   ? CHOIR__CUBLAS_R_64F
                                   : CHOIR__CUBLAS_R_32F));
  const int32_t ops[2] = {turn_left ? CHOIR__CUBLAS_OP_T : CHOIR__CUBLAS_OP_N,
                          turn_right ? CHOIR__CUBLAS_OP_T : CHOIR__CUBLAS_OP_N};
  CHOIR_TRY(set_desc(cublas, plan->desc, CHOIR__CUBLAS_DESC_TRANSA, &ops[0],
                     sizeof(ops[0])));
  CHOIR_TRY(set_desc(cublas, plan->desc, CHOIR__CUBLAS_DESC_TRANSB, &ops[1],
                     sizeof(ops[1])));
  if (problem->bias) {
    const uint32_t epilogue = CHOIR__CUBLAS_EPILOGUE_BIAS;
    CHOIR_TRY(set_desc(cublas, plan->desc, CHOIR__CUBLAS_DESC_EPILOGUE,
                       &epilogue, sizeof(epilogue)));
    // The heuristics look at its alignment.
    CHOIR_TRY(set_bias(cublas, plan, problem->bias));
  }
  CHOIR_TRY(make_layout(cublas, problem, left, turn_left ? inner : rows,
                        turn_left ? rows : inner, &plan->left));
  CHOIR_TRY(make_layout(cublas, problem, right, turn_right ? columns : inner,
                        turn_right ? inner : columns, &plan->right));
  return make_layout(cublas, problem, &problem->c, rows, columns,
                     &plan->result);
}

// Partial sums of a split may only be added up in f32 and in a step of their
// own, in one order: neither in turns in the result, nor rounded to it.
static choir_status_t set_wish(const choir__cublas_t* cublas,
                               const problem_t* problem,
                               choir__cublas_wish_t wish) {
  const uint64_t bytes = WORKSPACE_BYTES;
  CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatmulPreferenceSetAttribute,
                               wish, CHOIR__CUBLAS_WISH_WORKSPACE_BYTES, &bytes,
                               sizeof(bytes)));
  const struct {
    choir__cublas_wish_attr_t attr;
    uint32_t value;
  } wishes[] = {
      {CHOIR__CUBLAS_WISH_REDUCTION_MASK, CHOIR__CUBLAS_REDUCTION_COMPUTE_TYPE},
      {CHOIR__CUBLAS_WISH_ALIGNMENT_A, left_of(problem)->alignment},
      {CHOIR__CUBLAS_WISH_ALIGNMENT_B, right_of(problem)->alignment},
      {CHOIR__CUBLAS_WISH_ALIGNMENT_C, problem->c.alignment},
      {CHOIR__CUBLAS_WISH_ALIGNMENT_D, problem->c.alignment},
  };
  for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); ++i)
    CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatmulPreferenceSetAttribute,
                                 wish, wishes[i].attr, &wishes[i].value,
                                 sizeof(wishes[i].value)));
  return NULL;
}

static choir_status_t choose(const choir__cublas_t* cublas,
                             const problem_t* problem, plan_t* plan) {
  choir__cublas_wish_t wish = NULL;
  CHOIR_TRY(CHOIR__CUBLAS_CALL(cublas, cublasLtMatmulPreferenceCreate, &wish));
  choir__cublas_found_t found;
  int count = 0;
  choir__cublas_result_t result = CHOIR__CUBLAS_SUCCESS;
  choir_status_t status = set_wish(cublas, problem, wish);
  if (!status)
    result = cublas->table->cublasLtMatmulAlgoGetHeuristic(
        cublas->handle, plan->desc, plan->left, plan->right, plan->result,
        plan->result, wish, 1, &found, &count);
  (void)cublas->table->cublasLtMatmulPreferenceDestroy(wish);
  CHOIR_TRY(status);
  if (result != CHOIR__CUBLAS_NOT_SUPPORTED)
    CHOIR_TRY(
        choir__cublas_status(cublas, result, "cublasLtMatmulAlgoGetHeuristic"));
  plan->has_algorithm = result == CHOIR__CUBLAS_SUCCESS && count > 0 &&
                        found.state == CHOIR__CUBLAS_SUCCESS;
  if (plan->has_algorithm) {
    plan->algo = found.algo;
    plan->workspace_bytes = found.workspaceSize;
    return NULL;
  }
  char text[160];
  choir_log(CHOIR_LOG_WARNING, "tensor",
            "%s: cuBLASLt has no algorithm for %s to %s; it runs on the host",
            cublas->who, choir_op_name(problem->op),
            choir_view_print(choir_record_dst(problem->record, 0), text,
                             sizeof(text)));
  return NULL;
}

// The problem's plan, made if there is none. Under the lock.
static choir_status_t take_plan(choir__cublas_t* cublas,
                                const problem_t* problem, plan_t** out_plan) {
  choir__key_t key;
  key_of(problem, &key);
  *out_plan = (plan_t*)choir__cuda_plans_find(&cublas->plans, &key);
  if (*out_plan) return NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(cublas->objects, sizeof(plan_t), "cuBLASLt plan",
                           &memory));
  plan_t* plan = memory;
  plan->base.key = key;
  choir_status_t status = make_descriptors(cublas, problem, plan);
  if (!status) status = choose(cublas, problem, plan);
  if (status) {
    choir__cublas_plan_destroy(cublas, &plan->base);
    return status;
  }
  choir__cublas_plan_destroy(
      cublas, choir__cuda_plans_keep(&cublas->plans, &plan->base));
  *out_plan = plan;
  return NULL;
}

// ---- Runs ----

// Where the matrices of call number `index` begin.
static char* start_of(const problem_t* problem, const operand_t* operand,
                      int64_t index) {
  int64_t offset = 0;
  for (int32_t k = problem->loop_count - 1; k >= 0; --k) {
    offset += index % problem->loops[k] * operand->strides[k];
    index /= problem->loops[k];
  }
  return operand->data + offset * (int64_t)choir_dtype_bytes(operand->dtype);
}

static choir_status_t launch(const choir__cublas_t* cublas,
                             const problem_t* problem, const plan_t* plan,
                             void* workspace, struct CUstream_st* stream) {
  const float floats[2] = {1, problem->record->accumulate ? 1 : 0};
  const double doubles[2] = {floats[0], floats[1]};
  const bool is_double = problem->dtype == CHOIR_DTYPE_F64;
  const void* alpha = is_double ? (const void*)&doubles[0] : &floats[0];
  const void* beta = is_double ? (const void*)&doubles[1] : &floats[1];
  for (int64_t i = 0; i < problem->calls; ++i) {
    char* c = start_of(problem, &problem->c, i);
    CHOIR_TRY(CHOIR__CUBLAS_CALL(
        cublas, cublasLtMatmul, cublas->handle, plan->desc, alpha,
        start_of(problem, left_of(problem), i), plan->left,
        start_of(problem, right_of(problem), i), plan->right, beta, c,
        plan->result, c, plan->result, &plan->algo, workspace,
        plan->workspace_bytes, stream));
  }
  return NULL;
}

// *out_done: false when the library has no algorithm for it.
static choir_status_t multiply(choir__cublas_t* cublas,
                               const problem_t* problem, choir_stream_t* stream,
                               bool* out_done) {
  plan_t* plan = NULL;
  CHOIR_TRY(take_plan(cublas, problem, &plan));
  *out_done = plan->has_algorithm;
  if (!plan->has_algorithm) return NULL;
  if (problem->bias) CHOIR_TRY(set_bias(cublas, plan, problem->bias));
  void* workspace = NULL;
  CHOIR_TRY_NOTE(choir__cuda_scratch(stream, plan->workspace_bytes, &workspace),
                 "workspace of cublasLtMatmul");
  return launch(cublas, problem, plan, workspace,
                choir__cuda_stream_handle(stream));
}

static choir_status_t run(choir_op_t op, const choir_record_t* record,
                          const choir__product_t* product,
                          choir_stream_t* stream) {
  choir__cublas_t* cublas = NULL;
  CHOIR_TRY(choir__cublas_of(choir_stream_device(stream), &cublas));
  problem_t problem;
  describe(op, record, product, &problem);
  bool is_done = false;
  pthread_mutex_lock(&cublas->lock);
  choir_status_t status = multiply(cublas, &problem, stream, &is_done);
  pthread_mutex_unlock(&cublas->lock);
  CHOIR_TRY(status);
  return is_done ? NULL : choir__run_on_host(record, stream);
}

#define MATMUL_DTYPES CHOIR_DTYPES_FLOAT
// The library adds no bias in f64.
#define LINEAR_DTYPES (CHOIR_DTYPES_FLOAT & ~CHOIR_DTYPE_MASK(F64))

// Factors of 16 bits have a result in f32 where no bias is added, which has the
// result's dtype.
static bool is_of_dtypes(const choir_record_t* record, uint32_t dtypes) {
  const choir_dtype_t from = choir_record_src(record, 0)->dtype;
  const choir_dtype_t to = choir_record_dst(record, 0)->dtype;
  return (dtypes >> from & 1u) &&
         (to == from || (choir__is_narrow(from) && to == CHOIR_DTYPE_F32 &&
                         record->src_count == 2));
}

#define PRODUCT(OP, name)                                        \
  static bool name##_supports(const choir_record_t* record) {    \
    choir__product_t product;                                    \
    return is_of_dtypes(record, OP##_DTYPES) &&                  \
           choir__##name##_product(record, &product) &&          \
           choir__cublas_is_there();                             \
  }                                                              \
  static choir_status_t name##_run(const choir_record_t* record, \
                                   choir_stream_t* stream) {     \
    choir__product_t product;                                    \
    (void)choir__##name##_product(record, &product);             \
    return run(CHOIR_OP_##OP, record, &product, stream);         \
  }                                                              \
  CHOIR__CUDA_OP_KERNEL(OP, name, "cublas", name##_run, name##_supports)
PRODUCT(MATMUL, matmul)
PRODUCT(LINEAR, linear)
