// SPDX-License-Identifier: Apache-2.0
// The kinds of collectives: what each rank gives and takes, and what of it is
// the same everywhere. One entry for each; all else asks here.
#include "dist/comm_internal.h"

typedef choir_comm_operation_t operation_t;

const choir__collective_t* choir__collective(int32_t kind) {
  static const choir__collective_t collectives[CHOIR_COMM_KIND_COUNT] = {
      [CHOIR_COLLECTIVE_ALL_REDUCE] = {.gives = CHOIR__COUNT,
                                       .takes = CHOIR__COUNT,
                                       .reduces = true,
                                       .takes_tensors = true},
      [CHOIR_COLLECTIVE_BROADCAST] = {.gives = CHOIR__COUNT,
                                      .takes = CHOIR__COUNT,
                                      .has_root = true,
                                      .root_gives = true,
                                      .is_in_place = true,
                                      .takes_tensors = true},
      [CHOIR_COLLECTIVE_ALL_GATHER] = {.gives = CHOIR__COUNT,
                                       .takes = CHOIR__COUNT_OF_EACH,
                                       .moves = true,
                                       .gives_all_alike = true,
                                       .takes_tensors = true},
      [CHOIR_COLLECTIVE_REDUCE_SCATTER] = {.gives = CHOIR__COUNT_OF_EACH,
                                           .takes = CHOIR__COUNT,
                                           .reduces = true,
                                           .is_shared_out = true,
                                           .takes_tensors = true},
      [CHOIR_COLLECTIVE_ALL_GATHER_V] = {.gives = CHOIR__COUNT,
                                         .takes = CHOIR__CAPACITY,
                                         .moves = true,
                                         .gives_all_alike = true,
                                         .has_own_counts = true},
      [CHOIR_COLLECTIVE_REDUCE_SCATTER_V] = {.gives = CHOIR__COUNT,
                                             .takes = CHOIR__SHARE,
                                             .reduces = true,
                                             .is_shared_out = true},
      [CHOIR_COLLECTIVE_REDUCE] = {.gives = CHOIR__COUNT,
                                   .takes = CHOIR__COUNT,
                                   .reduces = true,
                                   .has_root = true,
                                   .root_takes = true,
                                   .is_shared_out = true},
      [CHOIR_COLLECTIVE_GATHER] = {.gives = CHOIR__COUNT,
                                   .takes = CHOIR__COUNT_OF_EACH,
                                   .has_root = true,
                                   .root_takes = true,
                                   .is_shared_out = true,
                                   .moves = true},
      [CHOIR_COLLECTIVE_GATHER_V] = {.gives = CHOIR__COUNT,
                                     .takes = CHOIR__CAPACITY,
                                     .has_root = true,
                                     .root_takes = true,
                                     .is_shared_out = true,
                                     .moves = true,
                                     .has_own_counts = true},
      [CHOIR_COLLECTIVE_SCATTER] = {.gives = CHOIR__COUNT_OF_EACH,
                                    .takes = CHOIR__COUNT,
                                    .has_root = true,
                                    .root_gives = true,
                                    .is_shared_out = true,
                                    .moves = true},
      [CHOIR_COLLECTIVE_SCATTER_V] = {.gives = CHOIR__COUNT,
                                      .takes = CHOIR__CAPACITY,
                                      .has_root = true,
                                      .root_gives = true,
                                      .is_shared_out = true,
                                      .moves = true,
                                      .has_own_counts = true,
                                      .has_splits = true},
      [CHOIR_COLLECTIVE_ALL_TO_ALL] = {.gives = CHOIR__COUNT_OF_EACH,
                                       .takes = CHOIR__COUNT_OF_EACH,
                                       .is_shared_out = true,
                                       .moves = true},
      [CHOIR_COLLECTIVE_ALL_TO_ALL_V] = {.gives = CHOIR__COUNT,
                                         .takes = CHOIR__CAPACITY,
                                         .is_shared_out = true,
                                         .moves = true,
                                         .has_own_counts = true,
                                         .has_splits = true},
      [CHOIR_COLLECTIVE_SEND] = {.gives = CHOIR__COUNT, .is_pair = true},
      [CHOIR_COLLECTIVE_RECEIVE] = {.takes = CHOIR__COUNT, .is_pair = true},
  };
  return &collectives[kind];
}

void choir_comm_share(int64_t count, int32_t rank, int32_t size,
                      int64_t* out_start, int64_t* out_count) {
  int64_t more = count % size;
  *out_count = count / size + (rank < more);
  *out_start = count / size * rank + (rank < more ? rank : more);
}

int64_t choir__comm_stretch(int64_t part, int64_t done, int64_t most) {
  if (part <= done) return 0;
  return part - done < most ? part - done : most;
}

bool choir__collective_has_data(int32_t kind) {
  const choir__collective_t* traits = choir__collective(kind);
  return traits->gives && traits->takes;
}

static int64_t elements(const choir_comm_t* comm, const choir_collective_t* c,
                        choir__amount_t amount) {
  int64_t start, share;
  switch (amount) {
    case CHOIR__NONE:
      return 0;
    case CHOIR__COUNT:
      return c->count;
    case CHOIR__COUNT_OF_EACH:
      return c->count * comm->size;
    case CHOIR__SHARE:
      choir_comm_share(c->count, comm->rank, comm->size, &start, &share);
      return share;
    case CHOIR__CAPACITY:
      return c->capacity;
  }
  return 0;
}

int64_t choir__collective_given(const choir_comm_t* comm,
                                const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (traits->root_gives && comm->rank != c->root) return 0;
  return elements(comm, c, traits->gives);
}

int64_t choir__collective_room(const choir_comm_t* comm,
                               const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  if (traits->root_takes && comm->rank != c->root) return 0;
  return elements(comm, c, traits->takes);
}

int64_t choir__comm_payload_bytes(const choir_comm_t* comm,
                                  const operation_t* operation) {
  const choir_collective_t* c = &operation->collective;
  const choir__collective_t* traits = choir__collective(operation->kind);
  const bool is_root = comm->rank == c->root;
  if (!choir__collective_has_data(operation->kind)) return 0;
  if (traits->root_gives && traits->moves && !is_root) return 0;
  int64_t bytes, all;
  if (__builtin_mul_overflow(c->count, (int64_t)operation->element_bytes,
                             &bytes) ||
      __builtin_mul_overflow(bytes, (int64_t)comm->size, &all))
    return -1;
  // The own part never travels.
  if (traits->root_takes && traits->moves && is_root) return 0;
  return traits->gives == CHOIR__COUNT_OF_EACH ? all : bytes;
}

int64_t choir__comm_shared_count(const choir_comm_t* comm,
                                 const operation_t* operation) {
  return elements(comm, &operation->collective,
                  choir__collective(operation->kind)->gives);
}

void choir__collective_cost(const choir_comm_t* comm,
                            const choir_collective_t* c, double count,
                            choir_cost_t* out_cost) {
  const choir__collective_t* traits = choir__collective((int32_t)c->kind);
  const double size = comm->size;
  *out_cost = (choir_cost_t){0};
  if (!traits->gives && !traits->takes) return;
  // What peers give may not be known yet: as if they gave as much.
  double given = count, taken = count;
  if (traits->gives == CHOIR__COUNT_OF_EACH && !traits->root_gives)
    given *= size;
  if (traits->takes == CHOIR__SHARE) taken /= size;
  const bool is_of_all =
      traits->gives_all_alike || traits->takes == CHOIR__COUNT_OF_EACH;
  if (is_of_all && !traits->root_takes) taken *= size;
  if (traits->reduces) out_cost->flops = given * (size - 1) / size;
  out_cost->bytes = (given + taken) * (double)choir_dtype_bytes(c->dtype);
}
