// SPDX-License-Identifier: Apache-2.0
// Exchanges work on bare addresses. In a traced run they are told to write what
// they combine, so that what went wrong in one is seen there.
#include "core/trace_backend.h"
#include "dist/dist_opt_parts_internal.h"

static size_t list(const choir_dist_opt_t* dist, int32_t bucket,
                   bool is_grads) {
  size_t count = 0;
  for (size_t i = 0; i < dist->params->count; ++i) {
    const choir_param_t* param = dist->params->params[i];
    const int32_t own = dist->places[i].bucket;
    if (own < 0 || (bucket >= 0 && own != bucket)) continue;
    const choir_tensor_t* tensor = is_grads ? param->grad : param->value;
    dist->traced[count++] =
        (choir_trace_value_t){param->name, *choir_tensor_view(tensor)};
  }
  return count;
}

void choir__dist_opt_trace_grads(const choir_dist_opt_t* dist, int32_t bucket,
                                 choir_stream_t* stream) {
  if (choir__trace_sees_records(dist->device))
    choir__trace_set_results(stream, dist->traced, list(dist, bucket, true));
}

void choir__dist_opt_trace_values(const choir_dist_opt_t* dist, int32_t bucket,
                                  choir_stream_t* stream) {
  if (choir__trace_sees_records(dist->device))
    choir__trace_set_results(stream, dist->traced, list(dist, bucket, false));
}

void choir__dist_opt_trace_nothing(choir_stream_t* stream) {
  choir__trace_set_results(stream, NULL, 0);
}
