// SPDX-License-Identifier: Apache-2.0
// Groups of ranks: all ranks of a communicator agree on the list, then its
// members join by the backend's own way.
#include <stdio.h>
#include <string.h>

#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

static choir_status_t join(choir_comm_t* comm, const int32_t* ranks,
                           int32_t count, int32_t own,
                           const choir__comm_group_terms_t* terms,
                           choir_comm_t** out_group) {
  choir_comm_config_t config = {.rank = own,
                                .size = count,
                                .id = terms->id,
                                .deadline = comm->deadline,
                                .silence = comm->silence,
                                .segment_bytes = comm->segment_bytes,
                                .device = comm->device};
  if (count == 1) return choir_self_comm_join(&config, out_group);
  return comm->vtable->group(comm, &config, ranks, terms->context, out_group);
}

choir_status_t choir__comm_make_group(choir_comm_t* comm, const int32_t* ranks,
                                      int32_t count, choir_comm_t** out_group) {
  if (out_group) *out_group = NULL;
  if (!comm) return CHOIR_ERROR(INVALID_ARGUMENT, "group: comm is NULL");
  choir__comm_group_terms_t terms;
  choir_status_t wrong =
      out_group ? choir_comm_id_make(&terms.id)
                : CHOIR_ERROR(INVALID_ARGUMENT, "group: out_group is NULL");
  if (wrong)
    return choir__comm_refuse(comm, CHOIR_COMM_KIND_GROUP, NULL, wrong);
  choir__comm_drain(comm);
  choir_collective_t request = {.count = count, .src = ranks, .dst = &terms};
  CHOIR_TRY(
      choir__comm_execute(comm, CHOIR_COMM_KIND_GROUP, &request, NULL, true));
  for (int32_t i = 0; i < count; ++i)
    if (ranks[i] == comm->rank)
      return join(comm, ranks, count, i, &terms, out_group);
  return NULL;
}
