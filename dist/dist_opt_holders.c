// SPDX-License-Identifier: Apache-2.0
// Second holders of shards: in an elastic run another rank, on another host
// where there is one, keeps what a rank has of every bucket, its parameters and
// their states, so that a loss loses nothing.
//
// A rank gives its part on when it has updated it, before the ranks give each
// other the parameters. So when a step is over on any rank, all parts have two
// holders after that step; and where it is over on none, both still have what
// was before it, as each keeps two in turn.
#include <string.h>

#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

// Behind a part: whether its rank leaves.
enum { LINE_BYTES = 64 };

// Of one rank, after two steps in turn.
typedef struct part_s {
  int32_t rank;
  int64_t steps[2];  // made by then; -1: nothing there
  unsigned char* bytes[2];
} part_t;

struct choir__holders_s {
  const choir_dist_opt_t* dist;  // borrowed
  const char* states;            // of this rank's shards
  int32_t size;                  // ranks of the generation
  size_t bytes;                  // of a part, and behind it
  int32_t to;                    // who keeps this rank's
  bool sends_first;
  bool is_first;  // of its circle
  bool has_told;  // the second holder that this rank leaves
  int next;       // of two, to be written
  part_t own;
  part_t other;
};

// ---- Who is whose ----

static bool on_one_host(const choir_comm_t* comm, int32_t a, int32_t b) {
  return !strcmp(choir_comm_host(comm, a), choir_comm_host(comm, b));
}

// Ranks of a host next to each other. Returns how many the largest host has.
static int32_t sort_by_host(const choir_comm_t* comm, int32_t* order) {
  const int32_t size = choir_comm_size(comm);
  int32_t count = 0;
  int32_t most = 0;
  for (int32_t r = 0; r < size; ++r) {
    int32_t first = 0;
    while (!on_one_host(comm, first, r)) ++first;
    if (first < r) continue;
    const int32_t begin = count;
    for (int32_t s = r; s < size; ++s)
      if (on_one_host(comm, r, s)) order[count++] = s;
    if (count - begin > most) most = count - begin;
  }
  return most;
}

// In that order each part goes as many ranks on as the largest host has, which
// is another host unless that one has more than half of all. Every second rank
// of such a circle receives first, so that they do not all wait.
static void find_holders(const choir_comm_t* comm, int32_t* order,
                         choir__holders_t* holders) {
  const int32_t size = choir_comm_size(comm);
  const int32_t most = sort_by_host(comm, order);
  const int32_t shift = most < size ? most : 1;
  int32_t own = 0;
  while (order[own] != choir_comm_rank(comm)) ++own;
  const int32_t back = size - shift;
  holders->to = order[(own + shift) % size];
  holders->own.rank = order[own];
  holders->other.rank = order[(own + back) % size];
  int32_t lowest = own;
  holders->sends_first = true;
  bool is_even = false;
  for (int32_t i = (own + back) % size; i != own; i = (i + back) % size) {
    if (i < lowest) {
      lowest = i;
      holders->sends_first = is_even;
    }
    is_even = !is_even;
  }
  holders->is_first = lowest == own;
}

// ---- What a part is ----

// Of `number` 0 the parameters, then their states.
static size_t bytes_of(const choir__bucket_t* bucket, int32_t number) {
  return (size_t)bucket->part *
         choir_dtype_bytes(number == 0
                               ? bucket->dtype
                               : choir__optimizer_state_dtype(bucket->dtype));
}

// Bytes from the start of a part; of the bucket behind the last: of all.
static size_t place_of(const choir__bucket_t* buckets, int32_t bucket,
                       int32_t number, int32_t states) {
  size_t place = 0;
  for (int32_t b = 0; b < bucket; ++b)
    place +=
        bytes_of(&buckets[b], 0) + (size_t)states * bytes_of(&buckets[b], 1);
  for (int32_t n = 0; n < number; ++n) place += bytes_of(&buckets[bucket], n);
  return place;
}

static void pack(choir__holders_t* holders, unsigned char* at) {
  const choir_dist_opt_t* dist = holders->dist;
  const size_t count = (size_t)choir__optimizer_state_count(dist->optimizer);
  const char* states = holders->states;
  holders->has_told = choir__leave_is_asked(dist);
  at[holders->bytes - LINE_BYTES] = holders->has_told;
  for (int32_t b = 0; b < dist->bucket_count; ++b) {
    const choir__bucket_t* bucket = &dist->buckets[b];
    const size_t values = bytes_of(bucket, 0);
    const size_t bytes = count * bytes_of(bucket, 1);
    const char* data = choir_buffer_data(bucket->values);
    memcpy(at, data + (size_t)holders->own.rank * values, values);
    memcpy(at + values, states, bytes);
    at += values + bytes;
    states += bytes;
  }
}

// ---- Life ----

choir_status_t choir__holders_create(const choir_dist_opt_t* dist,
                                     const void* states,
                                     choir__holders_t** out_holders) {
  *out_holders = NULL;
  const size_t bytes = place_of(dist->buckets, dist->bucket_count, 0,
                                choir__optimizer_state_count(dist->optimizer)) +
                       LINE_BYTES;
  const int32_t size = choir_comm_size(dist->comm);
  const size_t list = (size_t)size * sizeof(int32_t);
  void* memory = NULL;
  void* order = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, list, "ranks by host", &order));
  choir_status_t status =
      choir_allocate(dist->allocator, sizeof(choir__holders_t) + 4 * bytes,
                     "second holders of shards", &memory);
  if (status) {
    choir_deallocate(dist->allocator, order, list);
    return status;
  }
  memset(memory, 0, sizeof(choir__holders_t) + 4 * bytes);
  choir__holders_t* holders = memory;
  *holders = (choir__holders_t){.dist = dist,
                                .states = states,
                                .size = size,
                                .bytes = bytes,
                                .own = {.steps = {-1, -1}},
                                .other = {.steps = {-1, -1}}};
  unsigned char* at = (unsigned char*)(holders + 1);
  for (int i = 0; i < 2; ++i, at += 2 * bytes) {
    holders->own.bytes[i] = at;
    holders->other.bytes[i] = at + bytes;
  }
  find_holders(dist->comm, order, holders);
  choir_deallocate(dist->allocator, order, list);
  *out_holders = holders;
  return NULL;
}

void choir__holders_destroy(choir__holders_t* holders) {
  if (holders)
    choir_deallocate(holders->dist->allocator, holders,
                     sizeof(*holders) + 4 * holders->bytes);
}

// ---- A step ----

static choir_status_t move(choir__holders_t* holders, bool sends) {
  const choir_collective_t pair = {
      .kind = sends ? CHOIR_COLLECTIVE_SEND : CHOIR_COLLECTIVE_RECEIVE,
      .dtype = CHOIR_DTYPE_U8,
      .root = sends ? holders->to : holders->other.rank,
      .count = (int64_t)holders->bytes,
      .src = sends ? holders->own.bytes[holders->next] : NULL,
      .dst = sends ? NULL : holders->other.bytes[holders->next],
      .weight = 1,
      .in_host_memory = true,
      .name = "shards"};
  return choir_comm_run(holders->dist->comm, &pair);
}

choir_status_t choir__holders_give(choir__holders_t* holders, int64_t step) {
  const int next = holders->next;
  holders->own.steps[next] = holders->other.steps[next] = -1;
  pack(holders, holders->own.bytes[next]);
  holders->own.steps[next] = step;
  CHOIR_TRY(move(holders, holders->sends_first));
  CHOIR_TRY(move(holders, !holders->sends_first));
  holders->other.steps[next] = step;
  holders->next = !next;
  return NULL;
}

bool choir__holders_have(const choir__holders_t* holders, int64_t step) {
  return holders->own.steps[!holders->next] == step;
}

// Who holds a part for one that leaves stays until that one has gone. Where all
// of a circle leave, its first rank begins.
bool choir__holders_may_leave(const choir__holders_t* holders) {
  const unsigned char* other = holders->other.bytes[!holders->next];
  return holders->has_told &&
         (holders->is_first || !other[holders->bytes - LINE_BYTES]);
}

typedef struct give_attrs_s {
  choir__holders_t* holders;
  int64_t step;  // that is being made
} give_attrs_t;

static choir_status_t run_give(const choir_record_t* record,
                               choir_stream_t* stream) {
  const give_attrs_t* attrs = record->attrs;
  (void)stream;
  return choir__holders_give(attrs->holders, attrs->step + 1);
}

static void give_at_step(void* attrs, const choir_step_values_t* values) {
  ((give_attrs_t*)attrs)->step = values->step;
}

static const choir_kernel_t give_kernel = {.name = "second holder/dist_opt",
                                           .run = run_give};

choir_status_t choir__holders_submit(choir__holders_t* holders, int64_t step,
                                     choir_stream_t* stream) {
  const give_attrs_t attrs = {holders, step};
  const choir_record_t record = {.kernel = &give_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = give_at_step,
                                 .label = "shards"};
  return choir_stream_submit(stream, &record);
}

// ---- The next generation ----

void choir__holders_describe(const choir__holders_t* holders,
                             choir__progress_t* progress) {
  progress->size = holders ? holders->size : 0;
  for (int i = 0; holders && i < 2; ++i) {
    const part_t* part = i == 0 ? &holders->own : &holders->other;
    progress->parts[i].rank = part->rank;
    memcpy(progress->parts[i].steps, part->steps, sizeof(part->steps));
  }
}

// Where a rank has the part after `step` steps: i of own and other, k of two.
static bool find_part(const choir__progress_t* progress, int32_t part,
                      int64_t step, int* out_i, int* out_k) {
  for (int i = 0; progress->size > 0 && i < 2; ++i)
    for (int k = 0; k < 2; ++k)
      if (progress->parts[i].rank == part &&
          progress->parts[i].steps[k] == step) {
        *out_i = i;
        *out_k = k;
        return true;
      }
  return false;
}

// Of the ranks there are now; -1: none has it.
static int32_t find_holder(const choir__whole_t* whole, int32_t part) {
  int i, k;
  for (int32_t r = 0; r < choir_comm_size(whole->comm); ++r)
    if (find_part(&whole->progress[r], part, whole->step, &i, &k)) return r;
  return -1;
}

static choir_status_t check(const choir__whole_t* whole) {
  const int32_t parts = (int32_t)whole->progress[whole->root].size;
  for (int32_t p = 0; p < parts; ++p)
    if (find_holder(whole, p) < 0)
      return CHOIR_ERROR(
          FAILED_PRECONDITION,
          "dist_opt: elastic: rank %d and the second holder of its shard were "
          "lost at the same time, and with them what the optimizer had of it; "
          "begin anew from a checkpoint",
          p);
  return NULL;
}

typedef struct layout_s {
  choir__place_t* places;
  choir__bucket_t* buckets;
  int32_t bucket_count;
  int32_t states;  // of a parameter
} layout_t;

static void unpack(const choir__whole_t* whole, const layout_t* layout,
                   int32_t part, const unsigned char* from) {
  choir_tensor_t** state = whole->tensors + whole->params->count;
  for (size_t i = 0; i < whole->params->count; ++i) {
    const choir__place_t* place = &layout->places[i];
    if (place->bucket < 0) continue;
    const choir__bucket_t* bucket = &layout->buckets[place->bucket];
    int64_t start;
    const int64_t count =
        choir__bucket_part_of(bucket, part, place->offset,
                              choir_tensor_count(whole->tensors[i]), &start);
    for (int32_t n = 0; n <= layout->states; ++n) {
      choir_tensor_t* tensor = n == 0 ? whole->tensors[i] : *state++;
      const size_t element = choir_dtype_bytes(choir_tensor_dtype(tensor));
      size_t bytes;
      char* to = choir__tensor_bytes(tensor, &bytes);
      if (count > 0)
        memcpy(
            to + (size_t)start * element,
            from + place_of(layout->buckets, place->bucket, n, layout->states) +
                (size_t)(place->offset + start - part * bucket->part) * element,
            (size_t)count * element);
    }
  }
}

// What training does not learn is whole on each rank.
static choir_status_t take_unshared(const choir__whole_t* whole,
                                    const layout_t* layout, void* staged) {
  for (size_t i = 0; i < whole->params->count; ++i) {
    if (layout->places[i].bucket >= 0) continue;
    size_t bytes;
    void* own = choir__tensor_bytes(whole->tensors[i], &bytes);
    memcpy(staged, own, bytes);
    CHOIR_TRY(choir_comm_broadcast(whole->comm, staged, (int64_t)bytes,
                                   CHOIR_DTYPE_U8, whole->root,
                                   "states of a generation"));
    memcpy(own, staged, bytes);
  }
  return NULL;
}

static choir_status_t take_parts(const choir__whole_t* whole,
                                 const layout_t* layout, unsigned char* staged,
                                 size_t bytes) {
  const int32_t rank = choir_comm_rank(whole->comm);
  const int32_t parts = (int32_t)whole->progress[whole->root].size;
  for (int32_t p = 0; p < parts; ++p) {
    const int32_t holder = find_holder(whole, p);
    int i, k;
    if (holder == rank &&
        find_part(&whole->progress[rank], p, whole->step, &i, &k))
      memcpy(staged,
             (i == 0 ? &whole->holders->own : &whole->holders->other)->bytes[k],
             bytes);
    CHOIR_TRY(choir_comm_broadcast(whole->comm, staged, (int64_t)bytes,
                                   CHOIR_DTYPE_U8, holder, "shards"));
    unpack(whole, layout, p, staged);
  }
  return take_unshared(whole, layout, staged);
}

static size_t most_bytes(const choir__whole_t* whole, size_t part) {
  size_t most = part;
  for (size_t i = 0; i < whole->params->count; ++i) {
    size_t bytes;
    choir__tensor_bytes(whole->tensors[i], &bytes);
    if (bytes > most) most = bytes;
  }
  return most;
}

choir_status_t choir__holders_collect(const choir_dist_opt_t* dist,
                                      const choir__whole_t* whole) {
  const size_t count = whole->params->count;
  const size_t list =
      count * (sizeof(choir__bucket_t) + sizeof(choir__place_t));
  void* memory = NULL;
  void* staged = NULL;
  size_t room = 0;
  size_t part = 0;
  layout_t layout = {.states = choir__optimizer_state_count(dist->optimizer)};
  choir_status_t status = check(whole);
  if (!status)
    status = choir_allocate(dist->allocator, list, "buckets of a generation",
                            &memory);
  if (!status) {
    memset(memory, 0, list);
    layout.buckets = memory;
    layout.places = (choir__place_t*)(void*)(layout.buckets + count);
    layout.bucket_count =
        choir__buckets_assign(whole->params, dist->config.bucket_bytes,
                              (int32_t)whole->progress[whole->root].size,
                              layout.buckets, layout.places);
    part = place_of(layout.buckets, layout.bucket_count, 0, layout.states);
    room = most_bytes(whole, part);
    status = choir_allocate(dist->allocator, room, "states of a generation",
                            &staged);
  }
  status = choir__agree_on_outcome(whole->comm, "states", status);
  if (!status && staged) status = take_parts(whole, &layout, staged, part);
  choir_deallocate(dist->allocator, staged, room);
  choir_deallocate(dist->allocator, memory, list);
  return status;
}
