// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/labels.h"

choir_status_t choir__need_labels(const char* op, const choir_view_t* scores,
                                  const choir_view_t* labels) {
  CHOIR_TRY(choir__need_ndim(op, "source 0", scores, 2));
  return choir__need_vector(op, "labels", labels, scores->shape[0]);
}

choir_status_t choir__label_load(const char* op, const choir_record_t* record,
                                 int64_t row, int64_t classes,
                                 int64_t* out_label) {
  const choir_view_t* labels = choir_record_src(record, 1);
  *out_label = choir__integer_load(choir__src_data(record, 1), labels->dtype,
                                   labels->offset + row * labels->strides[0]);
  if (*out_label >= 0 && *out_label < classes) return NULL;
  return CHOIR_ERROR(
      OUT_OF_RANGE, "%s: label %lld at row %lld; needs 0 .. %lld", op,
      (long long)*out_label, (long long)row, (long long)classes - 1);
}

const choir_op_case_t choir__labels_cases[] = {
    {"1,1;1", NULL},    {"1,2;1", NULL},    {"1,10;1", NULL},
    {"2,2;2", NULL},    {"3,3;3", NULL},    {"4,8;4", NULL},
    {"5,9;5", NULL},    {"7,3;7", NULL},    {"6,15;6", NULL},
    {"6,16;6", NULL},   {"6,17;6", NULL},   {"16,10;16", NULL},
    {"33,17;33", NULL}, {"3,31;3", NULL},   {"3,33;3", NULL},
    {"5,100;5", NULL},  {"64,10;64", NULL}, {"3,1000;3", NULL},
    {"13,7;13", NULL},  {"0,10;0", NULL},   {NULL, NULL}};

const choir_op_case_t choir__labels_grad_cases[] = {
    {"1,1;1;1", NULL},    {"1,2;1;1", NULL},    {"1,10;1;1", NULL},
    {"2,2;2;1", NULL},    {"3,3;3;1", NULL},    {"4,8;4;1", NULL},
    {"5,9;5;1", NULL},    {"7,3;7;1", NULL},    {"6,15;6;1", NULL},
    {"6,16;6;1", NULL},   {"6,17;6;1", NULL},   {"16,10;16;1", NULL},
    {"33,17;33;1", NULL}, {"3,31;3;1", NULL},   {"3,33;3;1", NULL},
    {"5,100;5;1", NULL},  {"64,10;64;1", NULL}, {"3,1000;3;1", NULL},
    {"13,7;13;1", NULL},  {"0,10;0;1", NULL},   {NULL, NULL}};
