// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "tensor/ops/random_shared.h"

static const choir_field_t fields[] = {
    CHOIR__RANDOM_KEY_FIELDS(choir_random_attrs_t),
    CHOIR_FIELD_FLOAT(choir_random_attrs_t, low, 0, -INFINITY, INFINITY,
                      "mean"),
    CHOIR_FIELD_FLOAT(choir_random_attrs_t, high, 1, -INFINITY, INFINITY,
                      "deviation"),
    CHOIR_FIELD_BOOL(choir_random_attrs_t, whole_tensor, false,
                     "all elements are of one sample, first_sample"),
};
static const choir_struct_def_t attrs_def = CHOIR_STRUCT_DEF(
    "random_normal", choir_random_attrs_t, fields, "which numbers");

static choir_status_t random_normal_infer(const choir_view_t* srcs,
                                          int32_t src_count, const void* attrs,
                                          choir_view_t* dsts) {
  (void)src_count;
  (void)attrs;
  return choir__infer_like("random_normal", &srcs[0], &dsts[0]);
}

static choir_status_t random_normal_reference(const choir_record_t* record,
                                              choir_stream_t* stream) {
  (void)stream;
  const choir_random_attrs_t* attrs = record->attrs;
  return choir__random_reference(record, attrs->high, choir_random_to_normal);
}

static const choir_op_case_t cases[] = {
    {"", NULL},
    {"1", "seed=1"},
    {"7", "seed=2 stream=3 step=4 low=1 high=0.02"},
    {"15", "seed=2 stream=3 step=4 first_sample=5"},
    {"16", "seed=-9 whole_tensor=1"},
    {"17", "seed=12345 step=9 first_sample=1000000"},
    {"64", "whole_tensor=1 low=1 high=0.02"},
    {"257", NULL},
    {"1025", "seed=1"},
    {"0", "seed=2 stream=3 step=4 low=1 high=0.02"},
    {"3,5", "seed=2 stream=3 step=4 first_sample=5"},
    {"1,9", "seed=-9 whole_tensor=1"},
    {"9,1", "seed=12345 step=9 first_sample=1000000"},
    {"33,17", "whole_tensor=1 low=1 high=0.02"},
    {"2,0,3", NULL},
    {"5,1,7", "seed=1"},
    {"4,3,7,5", "seed=2 stream=3 step=4 low=1 high=0.02"},
    {"2,16,5,5", "seed=2 stream=3 step=4 first_sample=5"},
    {"2,20,12,12", "seed=-9 whole_tensor=1"},
    {"5,4,3,2,3", "seed=12345 step=9 first_sample=1000000"},
    {"2,1,3,1,2,1,2,2", "whole_tensor=1 low=1 high=0.02"},
    {NULL, NULL}};

const choir_op_def_t choir_op_def_random_normal = {
    .op = CHOIR_OP_RANDOM_NORMAL,
    .name = "random_normal",
    .doc = "normal numbers of mean low and deviation high, in the shape of x",
    .src_min = 1,
    .src_max = 1,
    .dst_count = 1,
    .attrs = &attrs_def,
    .infer = random_normal_infer,
    .reference = random_normal_reference,
    .at_step = choir__random_at_step,
    .elementwise = true,  // of the source only the shape counts
    .shapes_only = 1u << 0,
    .dtypes = CHOIR_DTYPES_FLOAT,
    .tolerance = 0,
    .cases = cases,
};
