// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OP_DEF_H_
#define CHOIR_TENSOR_OP_DEF_H_

#include "tensor/ops.h"

// What an op is: for the files in tensor/ops and tensor/kernels, for the
// autograd rules and the test suites. Not part of the installed interface.

#ifdef __cplusplus
extern "C" {
#endif

// Kinds of input that the conformance suite makes (values and where the
// function is smooth enough for finite differences).
typedef enum choir_op_domain_e {
  CHOIR_DOMAIN_ANY,          // normal numbers
  CHOIR_DOMAIN_POSITIVE,     // 0.5 .. 2
  CHOIR_DOMAIN_UNIT,         // -0.9 .. 0.9 (asin, atanh)
  CHOIR_DOMAIN_ABOVE_ONE,    // 1.1 .. 3 (acosh)
  CHOIR_DOMAIN_SHARE,        // 0.05 .. 0.95
  CHOIR_DOMAIN_CONDITION,    // 0 for about every second
  CHOIR_DOMAIN_NO_KINK,      // |x| >= 0.1, all distinct (relu, max, abs)
  CHOIR_DOMAIN_PROBABILITY,  // rows of positive numbers that sum to 1
  CHOIR_DOMAIN_LABELS,       // class ids below the last size of source 0
  CHOIR_DOMAIN_INDICES,      // along the attribute "axis" of source 0, or below
                             // the attribute "depth"; some negative
  CHOIR_DOMAIN_LENGTHS,      // 0 .. the first size of source 0
  CHOIR_DOMAIN_MAXIMUM,      // source 0's maxima along the attribute "axis"
  CHOIR_DOMAIN_ARGMAX,       // places inside source 0's pooling windows (u8)
} choir_op_domain_t;

// One problem for the conformance suite and the benchmark: shapes as text
// "4,3,7,5;6,3,3,3;6" and attributes as text "stride=2 padding=1,0".
typedef struct choir_op_case_s {
  const char* shapes;
  const char* attrs;  // may be NULL
} choir_op_case_t;

struct choir__index_map_s;

typedef struct choir_op_def_s {
  choir_op_t op;  // ties the file to its line in the list
  const char* name;
  const char* doc;  // one line
  int32_t src_min;
  int32_t src_max;
  int32_t dst_count;
  const choir_struct_def_t* attrs;  // NULL: none
  // Of a record whose destinations have no views yet: checks the sources
  // (dispatch has checked count and dtypes, and puts the op's name before a
  // failure) and fills dtype, ndim, shape and preferred dense strides of every
  // destination.
  choir_status_t (*infer)(const choir_record_t* record, choir_view_t* dsts);
  // View ops: the result as a view of source 0; false when strides cannot.
  bool (*alias)(const choir_view_t* src, const void* attrs, choir_view_t* dst);
  // Plain, slow and right, on host memory, any strides: computes in double (or
  // exact integers) and rounds once into the destination's dtype; honours
  // record->accumulate for every destination. The standard that all kernels
  // are tested against.
  choir_status_t (*reference)(const choir_record_t* record,
                              choir_stream_t* stream);
  // Ops that move elements: which one comes from where, as an index map
  // (tensor/ops/index_map.h), which reference and kernels execute.
  void (*index_map)(const choir_record_t* record, int32_t part,
                    struct choir__index_map_s* map);
  void (*cost)(const choir_record_t* record, choir_cost_t* out_cost);
  // Attributes that follow the step (see choir_record_t); NULL: none do.
  void (*at_step)(void* attrs, const choir_step_values_t* values);
  // dst i shares memory with source inplace[i] - 1 (optimizer steps); 0: none.
  int8_t inplace[CHOIR_OP_MAX_RESULTS];
  // Every element of the destinations depends on the sources' elements at the
  // same place only: a destination may be a source, and the record's sources
  // all have the destination's shape (stride 0 where they are broadcast).
  bool elementwise;
  // Its two sources do not broadcast: they have one shape.
  bool same_shape;
  // Whether elements of different samples meet, or change places, where the
  // shapes would not tell. rows: of the first dimension of each source, how
  // many a sample has; 0: it is of no sample. NULL: they never do.
  bool (*mixes_samples)(const choir_record_t* record, const int64_t* rows);
  // The result's shape is one of the attributes.
  bool has_shape;
  // Sums of many products: what mixed precision gives 16-bit factors.
  bool is_product;
  // Whether these attributes make its result that of a ReLU; NULL: none do.
  bool (*is_rectified)(const void* attrs);
  // Adding to a destination has no meaning (indices, steps): refused.
  bool no_accumulate;
  // Bit i: of source i only the shape is taken, by the reference and by every
  // kernel (a gradient's first source, often).
  uint32_t shapes_only;
  uint32_t dtypes;         // mask of (1 << dtype) for source 0
  uint32_t second_dtypes;  // mask for source 1; 0: as source 0
  bool rest_as_second;     // sources from 2 on have source 1's dtype
  // Mask of what source src_max - 1, which may be left out, can be beside
  // source 0's dtype.
  uint32_t last_dtypes;
  // Bit i: source i, where source 0's dtype has 16 bits, can be f32 as well:
  // few numbers, whose rounding many others would show (biases, scales, sums).
  uint32_t wide_sources;
  // What mixed precision computes from f32 sources: losses and sums.
  bool is_wide;
  choir_op_domain_t domains[5];  // of the first sources; the rest ANY
  double tolerance;              // f32 kernel against reference; share of
                                 // the size of an element, at least 1
  const choir_op_case_t* cases;  // ends with shapes == NULL
} choir_op_def_t;

// The definition of an op of `least` to `most` sources; what follows the
// documentation are more fields.
#define CHOIR_OP_DEFINE_BY(ENUM, op_name, least, most, results, infer_fn,   \
                           reference_fn, ...)                               \
  const choir_op_def_t choir_op_def_##op_name = {.op = CHOIR_OP_##ENUM,     \
                                                 .name = #op_name,          \
                                                 .src_min = least,          \
                                                 .src_max = most,           \
                                                 .dst_count = results,      \
                                                 .infer = infer_fn,         \
                                                 .reference = reference_fn, \
                                                 .doc = __VA_ARGS__}
// Of a fixed number, in a file that has <name>_infer and <name>_reference.
#define CHOIR_OP_DEFINE(ENUM, op_name, sources, results, ...)  \
  CHOIR_OP_DEFINE_BY(ENUM, op_name, sources, sources, results, \
                     op_name##_infer, op_name##_reference, __VA_ARGS__)

// .attrs of such a definition: choir_<op>_attrs_t has these fields.
#define CHOIR_OP_ATTRS(op_name, fields, doc)            \
  .attrs = &(const choir_struct_def_t)CHOIR_STRUCT_DEF( \
      #op_name, choir_##op_name##_attrs_t, fields, doc)

// A gradient that is one op, with the attributes of the op itself: its results
// are the gradients of the sources from `first` on.
typedef struct choir_gradient_s {
  choir_op_t op;
  int32_t first;
  int32_t src_count;
  int8_t srcs[6];  // i: source i; ~i: result i; CHOIR_DY
  // Bit i: the gradients are sums over the rows of srcs[i], its first dimension
  // (choir_grad_emit_rows); 0: none are.
  uint8_t rows;
} choir_gradient_t;
enum { CHOIR_DY = 100 };

// In the file of an op with OP_GRAD: the gradient's op and what it takes.
#define CHOIR_OP_GRADIENT(name, ENUM, ...)         \
  const choir_gradient_t choir_gradient_##name = { \
      CHOIR_OP_##ENUM, 0, sizeof((int8_t[]){__VA_ARGS__}), {__VA_ARGS__}, 0}

// Longest attribute struct.
#define CHOIR_OP_ATTRS_MAX_BYTES 160

#define CHOIR_DTYPE_MASK(DTYPE) (1u << CHOIR_DTYPE_##DTYPE)
#define CHOIR_DTYPES_FLOAT                                                 \
  (CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64) | CHOIR_DTYPE_MASK(F16) | \
   CHOIR_DTYPE_MASK(BF16))
#define CHOIR_DTYPES_ALL ((1u << CHOIR_DTYPE_COUNT) - 1u)

// Each in a file of tensor/ops.
#define CHOIR_OP_DECLARE_OP_GRAD(name) \
  extern const choir_gradient_t choir_gradient_##name;
#define CHOIR_OP_DECLARE_GRAD(name)
#define CHOIR_OP_DECLARE_NO_GRAD(name)
#define CHOIR_OP_DECLARE_INTERNAL(name)
#define CHOIR_OP_DECLARE_(ENUM, name, sources, attrs, grad) \
  extern const choir_op_def_t choir_op_def_##name;          \
  CHOIR_OP_DECLARE_##grad(name)
CHOIR_OP_LIST(CHOIR_OP_DECLARE_)
#undef CHOIR_OP_DECLARE_

// The op's definition; NULL for a value that is no op.
const choir_op_def_t* choir__op_def(choir_op_t op);
// What a record of the op names; NULL for a value that is no op.
const choir_operation_t* choir__operation(choir_op_t op);
// The op that a record names; CHOIR_OP_COUNT when it names none.
static inline choir_op_t choir__record_op(const choir_record_t* record) {
  return record->operation ? (choir_op_t)record->operation->id : CHOIR_OP_COUNT;
}

// ---- Fast kernels of one device family ("cpu", "cuda") ----

typedef struct choir_op_kernel_s {
  choir_kernel_t kernel;  // "<op>/<algorithm>", run
  choir_op_t op;
  // How it computes: "cpu", "dnnl", "direct". Kernels of one algorithm, of
  // whatever ops, give the same bits for the same sums.
  const char* algorithm;
  // Whether it takes this record (strides, dtypes, sizes, accumulate). Dtypes
  // of sources are those that the op allows side by side.
  bool (*supports)(const choir_record_t* record);
  // Sources of a product can be f32 beside one of 16 bits, to which they are
  // rounded as they are read; `supports` looks at all of them.
  bool rounds_f32;
  // It sums up in segments where the record says so.
  bool takes_segments;
} choir_op_kernel_t;

// The initializer of one. OP: CHOIR_OP_...; op_name, how: literals.
#define CHOIR_OP_KERNEL(OP, op_name, how, function, supports)             \
  {                                                                       \
    {.name = op_name "/" how, .run = function}, OP, how, supports, false, \
        false                                                             \
  }
#define CHOIR_OP_SEGMENTS_KERNEL(OP, op_name, how, function, supports) \
  { {.name = op_name "/" how, .run = function}, OP, how, supports, false, true }

// One that runs many calls of an op with the same attributes, which no call
// could tell from calls one after the other (tensor/op_calls_def.h). Its
// record's sources are those of the first call, of the second and so on, and
// then so the destinations.
typedef struct choir_calls_kernel_s {
  choir_kernel_t kernel;  // cost: not NULL
  choir_op_t op;
  int32_t max_calls;  // in one record
  // Whether the record of one call can be a part.
  bool (*supports)(const choir_record_t* record);
} choir_calls_kernel_t;

// The line X(cpu) in tensor/kernels/tables.def stands for
//   const choir_kernel_table_t choir_kernel_table_cpu
// in tensor/kernels/cpu. Kernels of one op are tried in the order of the
// table; the reference is the last.
typedef struct choir_kernel_table_s {
  const char* family;                       // as choir_device_kernels()
  const choir_op_kernel_t* const* kernels;  // NULL-terminated
  const choir_calls_kernel_t* const* calls_kernels;  // the same; NULL: none
} choir_kernel_table_t;

// The first kernel of the device's family that supports the record, which names
// an op; NULL: none. record->kernel is not looked at.
const choir_op_kernel_t* choir__native_kernel(const choir_device_t* device,
                                              const choir_record_t* record);

// The lowering of all ops: a native kernel; else, where 16-bit floats or the
// layout are the reason that there is none, conversions around one
// (tensor/convert.c); else the reference, on devices other than the host as the
// host fallback.
choir_status_t choir__lower(const choir_lowering_t* lowering,
                            const choir_record_t* record) CHOIR_NODISCARD;

// For a kernel that is made of other ops: runs one of them now, in the place of
// the kernel, by whatever the device has for it. `record` needs no operation.
choir_status_t choir__run_inside(choir_op_t op, const choir_record_t* record,
                                 choir_stream_t* stream) CHOIR_NODISCARD;

// Whether it is a float of 16 bits.
static inline bool choir__is_narrow(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_F16 || dtype == CHOIR_DTYPE_BF16;
}

// Whether a result of the dtype that the shape rule inferred can be written to
// a destination of another: to f32, not rounded to 16 bits, where the op
// computes it (and does not move it).
bool choir__op_takes_dst(choir_op_t op, choir_dtype_t inferred,
                         choir_dtype_t given);

// Runs the op's shape rule; failures name the op.
choir_status_t choir__op_infer(choir_op_t op, const choir_view_t* srcs,
                               int32_t src_count, const void* attrs,
                               choir_view_t* dsts) CHOIR_NODISCARD;

// Whether a call of the op on these would run a kernel of the device's own, one
// in f32 where there is none of 16 bits.
// dsts: as choir_op_run takes them; nothing is made. False for a call that
// would fail.
bool choir__op_has_kernel(const choir_device_t* device, choir_op_t op,
                          choir_tensor_t* const* srcs, int32_t src_count,
                          const void* attrs, bool accumulate,
                          choir_tensor_t* const* dsts);

// Results that are sums over rows, which are the first dimension of the sources
// that `cut` names (bit i: source i): of segments of `segment` rows each, the
// last may have fewer, as one call for each gives them; and then in a binary
// tree (core/sum_tree_backend.h). By a kernel that takes segments, or by such
// calls. Else as choir_op_run, without accumulate.
choir_status_t choir__op_run_segments(choir_stream_t* stream, choir_op_t op,
                                      choir_tensor_t* const* srcs,
                                      int32_t src_count, uint32_t cut,
                                      const void* attrs, int64_t segment,
                                      choir_tensor_t** dsts) CHOIR_NODISCARD;

// "<op>/reference" and "<op>/host": the op's reference on host memory, and the
// same around a copy down and up. The first counts as reference_runs, the
// second as host_fallbacks in choir_op_stats().
const choir_kernel_t* choir__reference_kernel(choir_op_t op);
const choir_kernel_t* choir__host_kernel(choir_op_t op);

// For choir_op_stats().
void choir__count_reorder(uint64_t bytes);
void choir__count_reference_run(void);
void choir__count_host_fallback(void);
void choir__count_widened(void);

// The bytes of all operands and no flops: what moving data costs.
void choir__cost_bytes(const choir_record_t* record, choir_cost_t* out_cost);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TENSOR_OP_DEF_H_
