// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPS_INDEX_MAP_H_
#define CHOIR_TENSOR_OPS_INDEX_MAP_H_

#include "tensor/kernels/index_rule.h"
#include "tensor/ops/indices.h"

// Ops that move elements (gather, pad, concat, ...) and the gradients that add
// them up again say where elements come from as an index map. The reference
// below executes maps, and so does one kernel of each family
// (tensor/kernels/kernels.def lists the ops).
//
// A map leads from places to elements of another tensor. Dimension k of the
// place decides on dimension k of the element by a formula, its rule; besides,
// or instead, an index that is read at the place decides on one more dimension
// of the elements, the axis.

typedef enum choir__index_kind_e {
  // The destination has the places. Each becomes the element that it points to,
  // and what points nowhere becomes the other value.
  CHOIR__INDEX_PULL,
  // The same, but of several places that point to one element only the last
  // (row-major) points to it, the others nowhere.
  CHOIR__INDEX_PULL_LAST,
  // The destination has the elements. Each becomes the last place (row-major)
  // that points to it, else the other value.
  CHOIR__INDEX_PUT,
  // The destination has the elements. Each becomes the sum of the places that
  // point to it, added up in double from 0, in the row-major order of the
  // places, (accumulate: with what it was at the end) and rounded once.
  CHOIR__INDEX_SUM,
} choir__index_kind_t;

// An operand that repeats one value has no buffer: all strides are 0, and the
// value's bits are beside it.
typedef struct choir__index_map_s {
  choir__index_kind_t kind;
  // How many maps, over other parts of the destination, the record has.
  int32_t parts;
  choir_view_t places;
  uint64_t place_value;
  // In the dimensions of the places, without the axis: 1 where a dimension of
  // the places decides on nothing. Of the destination (PUT, SUM) these are all
  // the elements that there are.
  choir_view_t elements;
  choir__index_rule_t rules[CHOIR_MAX_NDIM];
  // The indices, repeated in the dimensions on which they do not depend.
  bool has_indices;
  choir_view_t indices;
  int32_t index_source;  // of the record
  uint32_t index_dims;   // bit k: the index depends on dimension k
  int64_t axis_size;     // 1 without indices
  int64_t axis_stride;   // of the elements
  // The other values, as the destination's elements lie (PUT), or one value.
  choir_view_t others;
  int64_t others_axis_stride;
  uint64_t other_value;
} choir__index_map_t;

// Fills the map of one part of a record of the op: 0, 1, ...
typedef void (*choir__index_map_fn_t)(const choir_record_t* record,
                                      int32_t part, choir__index_map_t* map);

// Sets kind, places and elements: element by element at first, one part,
// without indices and with bits 0 as the other value. The rules of the ops set
// what differs.
void choir__index_map_start(choir__index_map_t* map, choir__index_kind_t kind,
                            const choir_view_t* places,
                            const choir_view_t* elements);

// Source `source`, the indices, in all dimensions of the places names the place
// along dimension `axis` of the elements, which else is the place's own
// (gather_elements). The places have no more dimensions than elements.
void choir__index_map_by_element(choir__index_map_t* map,
                                 const choir_record_t* record, int32_t source,
                                 int64_t axis);
// Dimension `axis` of the elements is replaced by the dimensions of source
// `source`, the indices (gather).
void choir__index_map_by_axis(choir__index_map_t* map,
                              const choir_record_t* record, int32_t source,
                              int64_t axis);

// Where the element that walk->index and `index` (checked, 0 without indices)
// point to lies, from the buffer's start; -1: nowhere.
int64_t choir__index_map_element(const choir__index_map_t* map,
                                 const int64_t* place, int64_t index);

// OUT_OF_RANGE with the place of an index that is none.
choir_status_t choir__index_map_check(const char* op,
                                      const choir_record_t* record,
                                      const choir__index_map_t* map)
    CHOIR_NODISCARD;

// The op's reference, by its map.
choir_status_t choir__index_map_reference(const choir_record_t* record,
                                          choir_stream_t* stream,
                                          const char* op,
                                          choir__index_map_fn_t fn)
    CHOIR_NODISCARD;

// choir_status_t <op>_reference of choir_op_def_t, by <op>_map.
#define CHOIR__INDEX_MAP_REFERENCE(op)                                \
  static choir_status_t op##_reference(const choir_record_t* record,  \
                                       choir_stream_t* stream) {      \
    return choir__index_map_reference(record, stream, #op, op##_map); \
  }

// size * repeats, of a dimension of x, if 63 bits hold it.
choir_status_t choir__repeated_size(const choir_view_t* x, int64_t size,
                                    int64_t repeats, int64_t* out_size)
    CHOIR_NODISCARD;

#endif  // CHOIR_TENSOR_OPS_INDEX_MAP_H_
