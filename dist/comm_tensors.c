// SPDX-License-Identifier: Apache-2.0
// Groups: several tensors agreed on by one header and moved as one. They are
// copied into memory of the communicator, one after the other, and the results
// from there, so that a failure leaves every dst as it was. Tensors of a device
// whose memory the host cannot see come and go so too.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

// What the parts of one tensor are to its count, in src or in dst.
static int64_t parts(const choir_comm_t* comm, choir__amount_t amount) {
  return amount == CHOIR__COUNT_OF_EACH ? comm->size : 1;
}

int64_t choir__comm_tensors_count(const choir_collective_t* c) {
  int64_t sum = 0;
  for (int32_t i = 0; i < c->tensor_count; ++i)
    if (__builtin_add_overflow(sum, c->tensors[i].count, &sum)) return -1;
  return sum;
}

void choir__comm_tensors_check(const choir_comm_t* comm,
                               const operation_t* operation,
                               char reason[CHOIR_COMM_REASON_BYTES]) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (!traits->takes_tensors) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "%s takes no group of tensors",
             choir__activity_kind_name(operation->kind));
    return;
  }
  if (c->tensor_count < 1 || operation->meta_bytes > comm->sizes.exchange) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "a group of %d tensors; 1 .. %zu are possible", c->tensor_count,
             comm->sizes.exchange / sizeof(int64_t) - 3);
    return;
  }
  bool needs_src = !traits->is_in_place;
  for (int32_t i = 0; i < c->tensor_count; ++i) {
    const choir_comm_tensor_t* tensor = &c->tensors[i];
    if (tensor->count < 0)
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "count of tensor %d is %lld; it must be 0 or more", i,
               (long long)tensor->count);
    else if (tensor->count > 0 && (!tensor->dst || (needs_src && !tensor->src)))
      snprintf(reason, CHOIR_COMM_REASON_BYTES, "%s of tensor %d is NULL",
               tensor->dst ? "src" : "dst", i);
    if (reason[0]) return;
  }
}

// ---- Packing ----

typedef struct layout_s {
  int64_t parts;  // every tensor has that many, of its count each
  int64_t total;  // elements of all tensors' one part
  size_t element_bytes;
} layout_t;

// Part p of all tensors stands together, as the collective wants it.
static choir_status_t copy_tensors(const operation_t* operation,
                                   const layout_t* layout, char* memory,
                                   bool to_memory) {
  const choir_collective_t* c = &operation->collective;
  size_t e = layout->element_bytes;
  int64_t at = 0;
  for (int32_t i = 0; i < c->tensor_count; ++i) {
    const choir_comm_tensor_t* tensor = &c->tensors[i];
    const char* src = choir__collective((int32_t)c->kind)->is_in_place
                          ? tensor->dst
                          : tensor->src;
    size_t bytes = (size_t)tensor->count * e;
    for (int64_t p = 0; p < layout->parts && bytes; ++p) {
      char* packed = memory + (size_t)(p * layout->total + at) * e;
      size_t place = (size_t)(p * tensor->count) * e;
      if (to_memory)
        CHOIR_TRY(
            choir__comm_fetch(operation->stream, src + place, packed, bytes));
      else
        CHOIR_TRY(choir__comm_store(operation->stream, packed,
                                    (char*)tensor->dst + place, bytes));
    }
    at += tensor->count;
  }
  return NULL;
}

static choir_status_t unpack(choir_comm_t* comm, const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const layout_t dst = {parts(comm, choir__collective(operation->kind)->takes),
                        c->count, operation->element_bytes};
  if (operation->stream)
    choir__comm_staged_note(
        comm, (size_t)(dst.parts * dst.total) * dst.element_bytes);
  return copy_tensors(operation, &dst, c->dst, false);
}

choir_status_t choir__comm_tensors_pack(choir_comm_t* comm,
                                        operation_t* operation) {
  choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  const layout_t src = {parts(comm, traits->gives), c->count,
                        operation->element_bytes};
  size_t src_bytes = (size_t)(src.parts * c->count) * src.element_bytes;
  int64_t dst_parts = parts(comm, traits->takes);
  size_t dst_bytes = (size_t)(dst_parts * c->count) * src.element_bytes;
  // In place where src and dst are alike.
  bool apart = src.parts != dst_parts;
  CHOIR_TRY(choir__comm_reserve(comm, &comm->packed,
                                apart ? src_bytes + dst_bytes : src_bytes,
                                "a group of tensors"));
  char* memory = comm->packed.data;
  c->src = memory;
  c->dst = apart ? memory + src_bytes : memory;
  operation->land = unpack;
  // A broadcast's data are in dst, and its root's alone.
  if (traits->root_gives && comm->rank != c->root) return NULL;
  CHOIR_TRY(copy_tensors(operation, &src, memory, true));
  if (operation->stream) choir__comm_staged_note(comm, src_bytes);
  return NULL;
}
