// SPDX-License-Identifier: Apache-2.0
// The ops <name>_update of all optimizers, made of tensor/optimizers.h: shape
// rule, reference and cases. What an op calls its sources is p, g and the names
// of the states.
#include "core/config.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/optimizer_factors.h"

enum { OPERANDS = 4 };  // p, g and two states

// Sources p, g and the states, all like p; destinations p and the states.
// keeps: else the states may be empty.
static choir_status_t infer(const choir_record_t* record,
                            const char* const* names, bool keeps,
                            choir_view_t* dsts) {
  const choir_view_t* srcs = record->operands;
  for (int32_t i = 1; i < record->src_count && i < OPERANDS; ++i)
    if (i == 1 || keeps || choir_view_count(&srcs[i]) > 0)
      CHOIR_TRY(choir__need_same_shape(names[i], &srcs[i], names[0], &srcs[0]));
  CHOIR_TRY(choir__infer_like(&srcs[0], &dsts[0]));
  for (int32_t i = 2; i < record->src_count; ++i)
    CHOIR_TRY(choir__infer_like(&srcs[i], &dsts[i - 1]));
  return NULL;
}

// p, g and the states of a record; p in the place of a state that there is not.
static void list_operands(const choir_record_t* record,
                          const choir_view_t** out_views, void** out_data) {
  for (int32_t i = 0; i < OPERANDS; ++i) {
    const bool is_there =
        i < record->src_count &&
        (i < 2 || choir_view_count(choir_record_src(record, i)) > 0);
    out_views[i] = choir_record_src(record, is_there ? i : 0);
    out_data[i] = choir__buffer_place(out_views[i]->buffer);
  }
}

// What a step made of p and the states that there are.
static void store_floats(const choir_record_t* record,
                         const choir_view_t* const* views, void* const* data,
                         const int64_t* at, const float* x) {
  for (int32_t i = 0; i < record->src_count; ++i)
    if (i != 1 && (i == 0 || views[i] != views[0]))
      choir__real_store(data[i], views[i]->dtype, at[i], (double)x[i], false);
}

// The step of one element, at(i) of operand i: in doubles, or in floats, to
// which parameters of 16 bits are brought and from which they are rounded once.
#define REFERENCE(name)                                                        \
  static choir_status_t name##_reference(const choir_record_t* record,         \
                                         choir_stream_t* stream) {             \
    (void)stream;                                                              \
    const choir_view_t* views[OPERANDS];                                       \
    void* data[OPERANDS];                                                      \
    list_operands(record, views, data);                                        \
    const choir__##name##_f32_t f32 = choir__##name##_make_f32(record->attrs); \
    const choir__##name##_f64_t f64 = choir__##name##_make_f64(record->attrs); \
    const bool is_f64 = views[0]->dtype == CHOIR_DTYPE_F64;                    \
    choir__walk_t walk;                                                        \
    for (bool more = choir__walk_start(&walk, views, OPERANDS); more;          \
         more = choir__walk_next(&walk)) {                                     \
      const int64_t* at = walk.offsets;                                        \
      if (is_f64)                                                              \
        choir__##name##_step_f64(                                              \
            &f64, (double*)data[0] + at[0], ((const double*)data[1])[at[1]],   \
            (double*)data[2] + at[2], (double*)data[3] + at[3]);               \
      else {                                                                   \
        float x[OPERANDS];                                                     \
        for (int32_t i = 0; i < OPERANDS; ++i)                                 \
          x[i] = (float)choir__real_load(data[i], views[i]->dtype, at[i]);     \
        choir__##name##_step_f32(&f32, &x[0], x[1], &x[2], &x[3]);             \
        store_floats(record, views, data, at, x);                              \
      }                                                                        \
    }                                                                          \
    return NULL;                                                               \
  }

// ---- Cases: each shape for p, g and the states ----

#define SHAPES_1(shape) shape ";" shape ";" shape
#define SHAPES_2(shape) shape ";" SHAPES_1(shape)
#define CASES(S, ...) CASES_OF(S, __VA_ARGS__)
#define CASES_OF(S, A, B, C, D)                                              \
  {S(""), NULL}, {S("1"), A}, {S("7"), B}, {S("15"), C}, {S("16"), D},       \
      {S("17"), NULL}, {S("33"), A}, {S("64"), B}, {S("257"), C},            \
      {S("1025"), D}, {S("3,5"), NULL}, {S("1,9"), A}, {S("9,1"), B},        \
      {S("33,17"), C}, {S("20,1,5,5"), D}, {S("6,3,5,5"), NULL},             \
      {S("16,6,3,3"), A}, {S("500,10"), B}, {S("120,84"), C}, {S("0"), D}, { \
    NULL, NULL                                                               \
  }

#define NAME_OF(T, name, domain) , name
#define DOMAIN_OF(T, name, domain) , CHOIR_DOMAIN_##domain
#define DEFINE(T, NAME, id, states, doc_)                                     \
  static const choir_field_t id##_fields[] = {                                \
      CHOIR_CONFIG_TABLE(choir_##id##_update_attrs_t, CHOIR_##NAME##_FIELDS)  \
          CHOIR_FIELD_INT(choir_##id##_update_attrs_t, step, 1, 1,            \
                          INT64_C(1) << 62, "1 for the first")};              \
  static choir_status_t id##_infer(const choir_record_t* record,              \
                                   choir_view_t* dsts) {                      \
    static const char* const names[OPERANDS] = {                              \
        "p", "g" CHOIR_##NAME##_STATES(NAME_OF, )};                           \
    return infer(record, names, choir__##id##_keeps(record->attrs), dsts);    \
  }                                                                           \
  REFERENCE(id)                                                               \
  static void id##_at_step(void* attrs, const choir_step_values_t* values) {  \
    ((choir_##id##_update_attrs_t*)attrs)->step = values->step + 1;           \
  }                                                                           \
  static const choir_op_case_t id##_cases[] = {                               \
      CASES(SHAPES_##states, CHOIR_##NAME##_CASES)};                          \
  CHOIR_OP_DEFINE_BY(                                                         \
      NAME##_UPDATE, id##_update, 2 + states, 2 + states, 1 + states,         \
      id##_infer, id##_reference,                                             \
      "p, g, states -> p, states, in place: one step of " doc_,               \
      CHOIR_OP_ATTRS(id##_update, id##_fields, "one step"),                   \
      .at_step = id##_at_step,                                                \
      .inplace = {1, states > 0 ? 3 : 0, states > 1 ? 4 : 0},                 \
      .no_accumulate = true,                                                  \
      .dtypes = CHOIR_DTYPE_MASK(F32) | CHOIR_DTYPE_MASK(F64) |               \
                CHOIR_DTYPE_MASK(F16) | CHOIR_DTYPE_MASK(BF16),               \
      .wide_sources = CHOIR__SOURCE(1) | CHOIR__SOURCE(2) | CHOIR__SOURCE(3), \
      .domains = {CHOIR_DOMAIN_ANY,                                           \
                  CHOIR_DOMAIN_ANY CHOIR_##NAME##_STATES(DOMAIN_OF, )},       \
      .cases = id##_cases);
CHOIR_OPTIMIZER_LIST(DEFINE, )
