// SPDX-License-Identifier: Apache-2.0
#include "dist/comm_shared_def.h"

#include <string.h>

#include "dist/comm_internal.h"
#include "dist/rank_reduce_internal.h"

// 0: peers do not see it.
static uint64_t place_of(choir_comm_t* comm, choir_buffer_t* buffer) {
  if (!buffer || !comm->vtable->buffer_place ||
      !choir_device_is_host(choir_buffer_device(buffer)))
    return 0;
  return comm->vtable->buffer_place(comm, choir_buffer_data(buffer),
                                    choir_buffer_bytes(buffer));
}

static bool find(choir_comm_t* comm, const uint64_t* places, int32_t count,
                 void** out_data) {
  for (int32_t i = 0; i < count * comm->size; ++i)
    if (!places[i]) return false;
  for (int32_t i = 0; i < count; ++i)
    for (int32_t r = 0; r < comm->size; ++r)
      out_data[i * comm->size + r] =
          comm->vtable->buffer_at(comm, r, places[r * count + i]);
  return true;
}

choir_status_t choir__comm_shared_look(choir_comm_t* comm,
                                       choir_buffer_t* const* buffers,
                                       int32_t count, void** out_data,
                                       bool* out_seen) {
  *out_seen = false;
  const size_t bytes =
      ((size_t)comm->size + 1) * (size_t)count * sizeof(uint64_t);
  void* memory = NULL;
  static const char name[] = "places of buffers";
  choir_status_t status = choir_allocate(comm->allocator, bytes, name, &memory);
  if (status)
    return choir__comm_refuse(comm, CHOIR_COLLECTIVE_ALL_GATHER,
                              &(choir_collective_t){.name = name}, status);
  uint64_t* all = memory;
  uint64_t* own = all + (size_t)comm->size * (size_t)count;
  for (int32_t i = 0; i < count; ++i) own[i] = place_of(comm, buffers[i]);
  status = choir_comm_all_gather(comm, own, all, count, CHOIR_DTYPE_I64, name);
  if (!status) *out_seen = find(comm, all, count, out_data);
  choir_deallocate(comm->allocator, memory, bytes);
  return status;
}

uint64_t choir__comm_buffers_made(const choir_comm_t* comm) {
  return comm->buffers_made;
}

void choir__comm_average(const float* const* sources, const float* shares,
                         int32_t source_count, float* dst, int64_t count) {
  const choir__reduce_table_t* loops = choir__reduce_table();
  if (loops->fused_f32) {
    loops->fused_f32(sources, shares, source_count, &dst, 1, (size_t)count);
    return;
  }
  float block[512];
  for (int64_t at = 0; at < count; at += 512) {
    const size_t n = (size_t)(count - at < 512 ? count - at : 512);
    loops->scale[CHOIR_DTYPE_F32](block, sources[0] + at, (double)shares[0], n);
    for (int32_t r = 1; r < source_count; ++r)
      loops->combine[CHOIR_DTYPE_F32][CHOIR_REDUCE_AVERAGE](
          block, sources[r] + at, (double)shares[r], n);
    memcpy(dst + at, block, n * sizeof(float));
  }
}

void choir__comm_average_and_copy(const float* const* sources,
                                  const float* shares, int32_t source_count,
                                  float* dst, int64_t count, float* away,
                                  const float* from, int64_t away_count) {
  const choir__reduce_table_t* loops = choir__reduce_table();
  if (loops->average_and_copy) {
    loops->average_and_copy(sources, shares, source_count, dst, (size_t)count,
                            away, from, (size_t)away_count);
    return;
  }
  choir__comm_average(sources, shares, source_count, dst, count);
  choir__comm_copy_away(away, from, (size_t)away_count * sizeof(float));
}

void choir__comm_copy_away(void* dst, const void* src, size_t bytes) {
  choir__reduce_table()->copy_away(dst, src, bytes);
}
