// SPDX-License-Identifier: Apache-2.0
// rotary and its gradient, which turns back.
#include <math.h>

#include "tensor/ops/elements.h"

static const choir_field_t fields[] = {
    CHOIR_FIELD_FLOAT(
        choir_rotary_attrs_t, theta, 10000, 1, 1e12,
        "pairs of columns turn by powers of it, from 1 downwards"),
    CHOIR_FIELD_INT(choir_rotary_attrs_t, offset, 0, -(1ll << 40), 1ll << 40,
                    "the position of the first row"),
};

static choir_status_t infer(const choir_record_t* record, choir_view_t* dsts) {
  const choir_view_t* x = choir_record_src(record, 0);
  if (x->ndim < 2 || x->shape[x->ndim - 1] % 2 != 0) {
    char text[160];
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "x is %s; needs (..., rows, columns) with an even "
                       "number of columns",
                       choir_view_print(x, text, sizeof text));
  }
  return choir__infer_as_source(record, dsts);
}

static choir_status_t turn(const choir_record_t* record, choir_stream_t* stream,
                           double direction) {
  const choir_rotary_attrs_t* attrs = record->attrs;
  const choir_view_t* view = choir_record_src(record, 0);
  const int64_t rows = view->shape[view->ndim - 2];
  const int64_t columns = view->shape[view->ndim - 1], half = columns / 2;
  choir__dense_t dense;
  CHOIR_TRY(choir__dense_begin(record, stream, CHOIR__ALL_SOURCES, &dense));
  const int64_t pairs = choir_view_count(view) / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t row = i / half, j = i % half;
    const double speed =
        pow(attrs->theta, -2 * (double)j / (double)columns) * direction;
    const double angle = (double)(row % rows + attrs->offset) * speed;
    const double* x = dense.srcs[0] + row * columns + j;
    double* y = dense.dsts[0] + row * columns + j;
    y[0] = x[0] * cos(angle) - x[half] * sin(angle);
    y[half] = x[half] * cos(angle) + x[0] * sin(angle);
  }
  return choir__dense_end(&dense, NULL);
}

static choir_status_t rotary_reference(const choir_record_t* record,
                                       choir_stream_t* stream) {
  return turn(record, stream, 1);
}
static choir_status_t rotary_grad_reference(const choir_record_t* record,
                                            choir_stream_t* stream) {
  return turn(record, stream, -1);
}

// Around the 32 rows of a table, and far from the first position.
static const choir_op_case_t cases[] = {{"1,2", NULL},
                                        {"3,4", "offset=5"},
                                        {"4,6", "theta=1"},
                                        {"2,8", "theta=100"},
                                        {"1,1,2", "offset=1"},
                                        {"2,3,4", NULL},
                                        {"3,1,64", "offset=2047"},
                                        {"2,31,10", NULL},
                                        {"2,32,16", NULL},
                                        {"2,33,18", NULL},
                                        {"1,200,12", "theta=500000"},
                                        {"70,256", NULL},
                                        {"2,2,5,6", "theta=100"},
                                        {"1,4,7,8", "offset=1000"},
                                        {"2,3,16,16", NULL},
                                        {"1,2,33,34", NULL},
                                        {"1,1,64,64", NULL},
                                        {"2,2,65,64", NULL},
                                        {"1,2,100,128", "offset=131072"},
                                        {"1,8,40,80", NULL},
                                        {"1,2,130,20", "offset=-40"},
                                        {"2,2,2,5,10", "offset=3"},
                                        {"0,3,4", NULL},
                                        {"2,0,4", NULL},
                                        {"2,3,0", NULL},
                                        {NULL, NULL}};

// (.., t, d)
static bool mixes(const choir_record_t* record, const int64_t* rows) {
  (void)rows;
  return record->operands[0].ndim == 2;
}

#define ROTARY_OP(NAME, op_name, text)                                         \
  CHOIR_OP_DEFINE_BY(NAME, op_name, 1, 1, 1, infer, op_name##_reference, text, \
                     CHOIR_OP_ATTRS(op_name, fields, text),                    \
                     .mixes_samples = mixes, .dtypes = CHOIR_DTYPES_FLOAT,     \
                     .tolerance = 1e-6, .cases = cases);
ROTARY_OP(ROTARY, rotary,
          "turns columns j and j + d / 2 of row r by the angle "
          "(r + offset) theta^(-2j / d)")
ROTARY_OP(ROTARY_GRAD, rotary_grad, "dy -> dx: turns back")

CHOIR_OP_GRADIENT(rotary, ROTARY_GRAD, CHOIR_DY);
