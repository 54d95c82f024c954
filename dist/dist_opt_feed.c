// SPDX-License-Identifier: Apache-2.0
// The state for a newcomer while the others go on. Each of some ranks, the
// givers, copies a part of the parameters and states before a step that rank 0
// named, and before each update from then on the same part of the gradients
// that all ranks have in common; a thread sends them. The newcomer makes the
// updates. When the communicator breaks, which is how a newcomer is taken in,
// each giver says after how many steps: there the newcomer is, too.
#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/thread_backend.h"
#include "dist/comm_shared_def.h"
#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

// At most so many give, each of another host if there are as many.
enum { MOST_GIVERS = 4 };
// Rank 0 names a step so many seconds ahead, and steps at least.
static const double ahead_seconds = 0.2;
enum { LEAST_AHEAD = 2, MOST_AHEAD = 1000 };
// What a giver holds back at least.
static const size_t least_room = 64 << 20;
// A newcomer that is so many updates behind, with a giver, asks to be taken in.
enum { NEAR = 1, MOST_TRIES = 8 };

enum { STATE, GRADS, END };
typedef struct head_s {
  int64_t kind;
  int64_t step;    // that is made next, or whose gradients follow
  int64_t bytes;   // that follow
  int64_t behind;  // how many more there are now
} head_t;
enum { HEAD_COUNT = sizeof(head_t) / sizeof(int64_t) };

typedef struct item_s item_t;
struct item_s {
  item_t* next;
  size_t room;  // of this memory
  head_t head;
  unsigned char data[];
};

struct choir__giver_s {
  choir__giver_t* next;
  choir_allocator_t allocator;
  choir__feed_order_t order;
  size_t most_bytes;  // of what is not sent yet
  pthread_t thread;
  pthread_mutex_t mutex;  // of what follows
  pthread_cond_t changed;
  item_t* first;
  item_t* last;
  size_t bytes;
  int64_t count;
  choir_comm_t* comm;  // NULL: the thread has none yet, or any more
  bool is_over;        // the thread sends nothing more
  bool has_end;        // nothing more is to be sent
  bool gives_up;
};

// ---- Parts ----

// Memory, one range behind the other, of which a giver has a part.
typedef struct ranges_s {
  const choir_dist_opt_t* dist;
  choir_named_tensor_t* states;  // [state_count]
  size_t state_count;
  bool are_grads;
} ranges_t;

static size_t count_of(const ranges_t* ranges) {
  return ranges->are_grads ? (size_t)ranges->dist->bucket_count
                           : ranges->dist->params->count + ranges->state_count;
}

static unsigned char* range_at(const ranges_t* ranges, size_t i,
                               size_t* out_bytes) {
  const choir_dist_opt_t* dist = ranges->dist;
  if (ranges->are_grads) {
    const choir__bucket_t* bucket = &dist->buckets[i];
    *out_bytes = (size_t)bucket->count * choir_dtype_bytes(bucket->dtype);
    return choir_buffer_data(bucket->buffer);
  }
  const size_t params = dist->params->count;
  return choir__tensor_bytes(i < params ? dist->params->params[i]->value
                                        : ranges->states[i - params].tensor,
                             out_bytes);
}

static size_t bytes_of(const ranges_t* ranges) {
  size_t all = 0;
  for (size_t i = 0; i < count_of(ranges); ++i) {
    size_t bytes;
    range_at(ranges, i, &bytes);
    all += bytes;
  }
  return all;
}

// Between part `index` of `parts` and memory of its own.
static void copy_part(const ranges_t* ranges, int32_t index, int32_t parts,
                      unsigned char* data, bool takes) {
  const size_t all = bytes_of(ranges);
  const size_t begin = all * (size_t)index / (size_t)parts;
  const size_t end = all * (size_t)(index + 1) / (size_t)parts;
  size_t place = 0;
  for (size_t i = 0; i < count_of(ranges); ++i) {
    size_t bytes;
    unsigned char* range = range_at(ranges, i, &bytes);
    const size_t from = begin > place ? begin - place : 0;
    const size_t to = end < place + bytes ? end - place : bytes;
    if (place < end && place + bytes > begin && from < to) {
      if (takes)
        memcpy(data, range + from, to - from);
      else
        memcpy(range + from, data, to - from);
      data += to - from;
    }
    place += bytes;
  }
}

static size_t part_bytes(const ranges_t* ranges, int32_t index, int32_t parts) {
  const size_t all = bytes_of(ranges);
  return all * (size_t)(index + 1) / (size_t)parts -
         all * (size_t)index / (size_t)parts;
}

// Of parameters and states; free it by close_ranges.
static choir_status_t open_ranges(const choir_dist_opt_t* dist,
                                  ranges_t* out_ranges) {
  *out_ranges = (ranges_t){.dist = dist};
  out_ranges->state_count = choir_optimizer_states(dist->optimizer, NULL);
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(
      dist->allocator, out_ranges->state_count * sizeof(choir_named_tensor_t),
      "states for a newcomer", &memory));
  out_ranges->states = memory;
  choir_optimizer_states(dist->optimizer, out_ranges->states);
  return NULL;
}

static void close_ranges(ranges_t* ranges) {
  choir_deallocate(ranges->dist->allocator, ranges->states,
                   ranges->state_count * sizeof(choir_named_tensor_t));
}

// What training does not learn is no gradient's.
static size_t unlearnt_bytes(const choir_dist_opt_t* dist) {
  size_t all = 0;
  for (size_t i = 0; i < dist->params->count; ++i) {
    size_t bytes;
    choir__tensor_bytes(dist->params->params[i]->value, &bytes);
    if (dist->places[i].bucket < 0) all += bytes;
  }
  return all;
}

static void copy_unlearnt(const choir_dist_opt_t* dist, unsigned char* data,
                          bool takes) {
  for (size_t i = 0; i < dist->params->count; ++i) {
    size_t bytes;
    void* own = choir__tensor_bytes(dist->params->params[i]->value, &bytes);
    if (dist->places[i].bucket >= 0) continue;
    if (takes)
      memcpy(data, own, bytes);
    else
      memcpy(own, data, bytes);
    data += bytes;
  }
}

// What an item of the first giver begins with: the learning rates of a step.
static size_t rates_bytes(const choir_dist_opt_t* dist, int64_t kind,
                          int32_t giver) {
  return kind == GRADS && giver == 0
             ? choir__optimizer_rates(dist->optimizer, NULL) * sizeof(double)
             : 0;
}

// ---- A giver's thread ----

// NULL: there is nothing more.
static item_t* next_item(choir__giver_t* giver) {
  pthread_mutex_lock(&giver->mutex);
  while (!giver->first && !giver->gives_up)
    pthread_cond_wait(&giver->changed, &giver->mutex);
  item_t* item = giver->gives_up ? NULL : giver->first;
  if (item) {
    giver->first = item->next;
    if (!giver->first) giver->last = NULL;
    giver->bytes -= item->room;
    item->head.behind = --giver->count;
  }
  pthread_mutex_unlock(&giver->mutex);
  return item;
}

static choir_status_t send_item(choir_comm_t* comm, const item_t* item) {
  CHOIR_TRY(choir_comm_send(comm, &item->head, HEAD_COUNT, CHOIR_DTYPE_I64, 0,
                            "what follows"));
  if (item->head.bytes == 0) return NULL;
  return choir_comm_send(comm, item->data, item->head.bytes, CHOIR_DTYPE_U8, 0,
                         "state for a newcomer");
}

// The newcomer has got the item: no others are on their way, which neither of
// both would count.
static choir_status_t await_one(choir_comm_t* comm) {
  int64_t step;
  return choir_comm_receive(comm, &step, 1, CHOIR_DTYPE_I64, 0, "has come");
}

static choir_status_t send_all(choir__giver_t* giver, choir_comm_t* comm) {
  choir_status_t status = NULL;
  bool is_end = false;
  for (item_t* item; !status && !is_end && (item = next_item(giver));) {
    is_end = item->head.kind == END;
    status = send_item(comm, item);
    if (!status && !is_end) status = await_one(comm);
    choir_deallocate(giver->allocator, item, item->room);
  }
  return status || !is_end ? status : choir_comm_finalize(comm);
}

static void* thread_main(void* argument) {
  choir__giver_t* giver = argument;
  choir_comm_t* comm = NULL;
  choir_status_t status = choir__feed_meet(&giver->order, &comm);
  pthread_mutex_lock(&giver->mutex);
  giver->comm = comm;
  pthread_mutex_unlock(&giver->mutex);
  if (!status) status = send_all(giver, comm);
  if (status)
    choir_log(CHOIR_LOG_INFO, "dist", "elastic: the newcomer at %s: %s",
              giver->order.config.rendezvous, choir_status_message(status));
  choir_status_free(status);
  pthread_mutex_lock(&giver->mutex);
  giver->is_over = true;
  giver->comm = NULL;
  pthread_mutex_unlock(&giver->mutex);
  choir_comm_release(comm);
  return NULL;
}

// ---- A giver ----

static void drop_items(choir__giver_t* giver) {
  for (item_t* item = giver->first; item;) {
    item_t* next = item->next;
    choir_deallocate(giver->allocator, item, item->room);
    item = next;
  }
}

static void free_giver(choir__giver_t* giver) {
  drop_items(giver);
  pthread_cond_destroy(&giver->changed);
  pthread_mutex_destroy(&giver->mutex);
  choir_deallocate(giver->allocator, giver, sizeof(*giver));
}

static void close_giver(choir__giver_t* giver) {
  pthread_mutex_lock(&giver->mutex);
  giver->gives_up = true;
  if (giver->comm) choir_comm_abort(giver->comm, "the giver ends");
  pthread_cond_signal(&giver->changed);
  pthread_mutex_unlock(&giver->mutex);
  pthread_join(giver->thread, NULL);
  free_giver(giver);
}

void choir__feed_close(choir_dist_opt_t* dist) {
  while (dist->givers) {
    choir__giver_t* giver = dist->givers;
    dist->givers = giver->next;
    close_giver(giver);
  }
}

static bool is_over(choir__giver_t* giver) {
  pthread_mutex_lock(&giver->mutex);
  const bool is_over = giver->is_over;
  pthread_mutex_unlock(&giver->mutex);
  return is_over;
}

// Those that have sent all. Returns how many are left.
static int32_t close_those_over(choir_dist_opt_t* dist) {
  int32_t left = 0;
  for (choir__giver_t** at = &dist->givers; *at;) {
    choir__giver_t* giver = *at;
    if (is_over(giver)) {
      *at = giver->next;
      close_giver(giver);
    } else {
      at = &giver->next;
      ++left;
    }
  }
  return left;
}

static item_t* make_item(const choir__giver_t* giver, int64_t kind,
                         int64_t step, size_t bytes) {
  void* memory = NULL;
  const size_t room = sizeof(item_t) + bytes;
  choir_status_t status =
      choir_allocate(giver->allocator, room, "state for a newcomer", &memory);
  choir_status_free(status);
  if (status) return NULL;
  item_t* item = memory;
  *item =
      (item_t){.room = room,
               .head = {.kind = kind, .step = step, .bytes = (int64_t)bytes}};
  return item;
}

static void append(choir__giver_t* giver, item_t* item) {
  if (giver->last)
    giver->last->next = item;
  else
    giver->first = item;
  giver->last = item;
  giver->bytes += item->room;
  giver->has_end = item->head.kind == END;
  ++giver->count;
}

// A newcomer that cannot follow, or for which there is no memory (item NULL),
// is given up: it gets the state later.
static void push(choir__giver_t* giver, item_t* item) {
  pthread_mutex_lock(&giver->mutex);
  if (!giver->gives_up && (!item || giver->bytes > giver->most_bytes)) {
    giver->gives_up = true;
    if (giver->comm) choir_comm_abort(giver->comm, "it does not follow");
  }
  if (!giver->gives_up && !giver->is_over && !giver->has_end) {
    append(giver, item);
    item = NULL;
  }
  pthread_cond_signal(&giver->changed);
  pthread_mutex_unlock(&giver->mutex);
  if (item) choir_deallocate(giver->allocator, item, item->room);
}

static void push_part(choir__giver_t* giver, const ranges_t* ranges,
                      int64_t kind, int64_t step) {
  const choir__feed_order_t* order = &giver->order;
  const size_t rates = rates_bytes(ranges->dist, kind, order->index);
  item_t* item =
      make_item(giver, kind, step,
                rates + part_bytes(ranges, order->index, order->givers));
  if (item && rates)
    choir__optimizer_rates(ranges->dist->optimizer, (void*)item->data);
  if (item)
    copy_part(ranges, order->index, order->givers, item->data + rates, true);
  push(giver, item);
}

static choir_status_t start(choir_dist_opt_t* dist, choir__giver_t* giver) {
  ranges_t ranges;
  const ranges_t grads = {.dist = dist, .are_grads = true};
  CHOIR_TRY(open_ranges(dist, &ranges));
  giver->most_bytes = least_room + 2 * bytes_of(&ranges) + 4 * bytes_of(&grads);
  push_part(giver, &ranges, STATE, giver->order.step);
  close_ranges(&ranges);
  return choir__thread_start("choir-giver", thread_main, giver, &giver->thread);
}

static choir_status_t open_giver(choir_dist_opt_t* dist,
                                 const choir__feed_order_t* order) {
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(dist->allocator, sizeof(choir__giver_t),
                           "a newcomer's giver", &memory));
  choir__giver_t* giver = memory;
  memset(giver, 0, sizeof(*giver));
  giver->allocator = dist->allocator;
  giver->order = *order;
  pthread_mutex_init(&giver->mutex, NULL);
  pthread_cond_init(&giver->changed, NULL);
  choir_status_t status = start(dist, giver);
  if (status) {
    free_giver(giver);
    return status;
  }
  giver->next = dist->givers;
  dist->givers = giver;
  return NULL;
}

// ---- Who gives, and from when on ----

static int32_t choose_givers(const choir_comm_t* comm,
                             int32_t givers[MOST_GIVERS]) {
  int32_t count = 0;
  for (int32_t r = 0; r < choir_comm_size(comm) && count < MOST_GIVERS; ++r) {
    bool is_other = true;
    for (int32_t i = 0; i < count; ++i)
      is_other = is_other && strcmp(choir_comm_host(comm, givers[i]),
                                    choir_comm_host(comm, r)) != 0;
    if (is_other) givers[count++] = r;
  }
  // Of one host two, whose copies are half as large.
  if (count == 1 && choir_comm_size(comm) > 1) givers[count++] = 1;
  return count;
}

static int64_t steps_ahead(const choir_dist_opt_t* dist) {
  const double steps = ahead_seconds / (dist->step_seconds + 1e-6);
  return LEAST_AHEAD + (int64_t)(steps < MOST_AHEAD ? steps : MOST_AHEAD);
}

// A step is not this rank's alone, and goes on where a newcomer gets nothing.
static void begin_to_give(choir_dist_opt_t* dist,
                          const choir__feed_order_t* order) {
  choir_status_t status = open_giver(dist, order);
  if (status)
    choir_log(CHOIR_LOG_INFO, "dist",
              "elastic: the newcomer at %s is given nothing: %s",
              order->config.rendezvous, choir_status_message(status));
  choir_status_free(status);
}

bool choir__feed_begin_step(choir_dist_opt_t* dist, int64_t step) {
  const double now = choir_clock_seconds();
  dist->step_seconds = now - dist->step_began;
  dist->step_began = now;
  if (dist->uses_shards) return false;
  choir__membership_t* membership = dist->membership;
  if (choir_comm_rank(dist->comm) == 0 &&
      choir__membership_is_asked(membership)) {
    int32_t givers[MOST_GIVERS];
    const int32_t count = choose_givers(dist->comm, givers);
    choir__membership_order(membership, step + steps_ahead(dist), givers,
                            count);
  }
  choir__feed_order_t order;
  while (choir__membership_take_order(membership, dist->comm, step, &order))
    begin_to_give(dist, &order);
  return close_those_over(dist) > choir__membership_newcomers(membership);
}

typedef struct give_attrs_s {
  choir_dist_opt_t* dist;
  int64_t step;
} give_attrs_t;

static choir_status_t run_give(const choir_record_t* record,
                               choir_stream_t* stream) {
  const give_attrs_t* attrs = record->attrs;
  const ranges_t grads = {.dist = attrs->dist, .are_grads = true};
  (void)stream;
  for (choir__giver_t* giver = attrs->dist->givers; giver; giver = giver->next)
    push_part(giver, &grads, GRADS, attrs->step);
  return NULL;
}

static void give_at_step(void* attrs, const choir_step_values_t* values) {
  ((give_attrs_t*)attrs)->step = values->step;
}

static const choir_kernel_t give_kernel = {.name = "feed/dist_opt",
                                           .run = run_give};

choir_status_t choir__feed_submit(choir_dist_opt_t* dist, int64_t step,
                                  choir_stream_t* stream) {
  const give_attrs_t attrs = {dist, step};
  const choir_record_t record = {.kernel = &give_kernel,
                                 .attrs = &attrs,
                                 .attrs_bytes = sizeof(attrs),
                                 .at_step = give_at_step,
                                 .label = "state for a newcomer"};
  return choir_stream_submit(stream, &record);
}

void choir__feed_end(choir_dist_opt_t* dist, int64_t step) {
  for (choir__giver_t* giver = dist->givers; giver; giver = giver->next) {
    const bool is_first = giver->order.index == 0;
    item_t* item =
        make_item(giver, END, step, is_first ? unlearnt_bytes(dist) : 0);
    if (item && is_first) copy_unlearnt(dist, item->data, true);
    push(giver, item);
  }
}

// ---- A newcomer ----

typedef struct learner_s {
  choir_dist_opt_t* dist;
  choir_comm_t* comm;  // this is rank 0, givers are the others
  int32_t givers;
  ranges_t states;
  ranges_t grads;
  int64_t step;               // -1: it has no state yet
  head_t heads[MOST_GIVERS];  // the last ones
  bool is_over;
  bool is_near;
  bool was_near;
  bool had_state;  // all of it came
} learner_t;

static choir_status_t check_head(const learner_t* learner, int32_t giver,
                                 const head_t* head, bool is_first) {
  const ranges_t* ranges =
      head->kind == STATE ? &learner->states : &learner->grads;
  const size_t bytes = head->kind != END
                           ? rates_bytes(learner->dist, head->kind, giver) +
                                 part_bytes(ranges, giver, learner->givers)
                       : giver == 0 ? unlearnt_bytes(learner->dist)
                                    : 0;
  if (head->bytes == (int64_t)bytes && head->kind >= STATE &&
      head->kind <= END && (head->kind == STATE) == is_first)
    return NULL;
  return CHOIR_ERROR(INTERNAL,
                     "elastic: giver %d sends %lld bytes of kind %lld; %zu "
                     "bytes were expected",
                     giver, (long long)head->bytes, (long long)head->kind,
                     bytes);
}

static choir_status_t receive_data(const learner_t* learner, int32_t giver,
                                   const head_t* head) {
  choir_dist_opt_t* dist = learner->dist;
  const size_t bytes = (size_t)head->bytes;
  if (bytes == 0) return NULL;
  void* data = NULL;
  CHOIR_TRY(
      choir_allocate(dist->allocator, bytes, "state for a newcomer", &data));
  choir_status_t status =
      choir_comm_receive(learner->comm, data, head->bytes, CHOIR_DTYPE_U8,
                         1 + giver, "state for a newcomer");
  const size_t rates = rates_bytes(dist, head->kind, giver);
  if (!status && rates) choir__optimizer_set_rates(dist->optimizer, data);
  if (!status && head->kind == END)
    copy_unlearnt(dist, data, false);
  else if (!status)
    copy_part(head->kind == STATE ? &learner->states : &learner->grads, giver,
              learner->givers, (unsigned char*)data + rates, false);
  choir_deallocate(dist->allocator, data, bytes);
  return status;
}

// The next one of giver `giver`.
static choir_status_t receive(const learner_t* learner, int32_t giver,
                              bool is_first, head_t* head) {
  CHOIR_TRY(choir_comm_receive(learner->comm, head, HEAD_COUNT, CHOIR_DTYPE_I64,
                               1 + giver, "what follows"));
  CHOIR_TRY(check_head(learner, giver, head, is_first));
  CHOIR_TRY(receive_data(learner, giver, head));
  if (head->kind == END) return NULL;
  return choir_comm_send(learner->comm, &head->step, 1, CHOIR_DTYPE_I64,
                         1 + giver, "has come");
}

// Of all, of which some may have made a step more. A step that one has not made
// and this newcomer has was taken back.
static choir_status_t receive_ends(learner_t* learner) {
  for (int32_t g = 0; g < learner->givers; ++g) {
    head_t* head = &learner->heads[g];
    while (head->kind != END) CHOIR_TRY(receive(learner, g, false, head));
    if (head->step < learner->step)
      return CHOIR_ERROR(ABORTED, "elastic: step %lld was taken back",
                         (long long)head->step);
  }
  return NULL;
}

// One of each: the state, or the gradients of a step; or their ends.
static choir_status_t receive_round(learner_t* learner, bool is_first) {
  bool is_over = false;
  learner->is_near = true;
  for (int32_t g = 0; g < learner->givers; ++g) {
    head_t* head = &learner->heads[g];
    CHOIR_TRY(receive(learner, g, is_first, head));
    if (is_first && g == 0) learner->step = head->step;
    if (head->kind != END && head->step != learner->step)
      return CHOIR_ERROR(INTERNAL,
                         "elastic: giver %d is at step %lld, and this newcomer "
                         "at step %lld",
                         g, (long long)head->step, (long long)learner->step);
    // What came up while the state was on its way is not counted yet.
    learner->is_near =
        learner->is_near && head->kind == GRADS && head->behind <= NEAR;
    is_over = is_over || head->kind == END;
  }
  learner->is_over = is_over;
  return is_over ? receive_ends(learner) : NULL;
}

static choir_status_t update(learner_t* learner) {
  choir_optimizer_t* optimizer = learner->dist->optimizer;
  choir_stream_t* stream = choir_device_stream(learner->dist->device);
  choir_optimizer_begin_step(optimizer, learner->step);
  CHOIR_TRY(choir__optimizer_update_clipped(optimizer, stream, learner->step));
  CHOIR_TRY(choir_stream_synchronize(stream));
  ++learner->step;
  return NULL;
}

static choir_status_t learn(learner_t* learner) {
  choir__membership_t* membership = learner->dist->membership;
  CHOIR_TRY(receive_round(learner, true));
  learner->had_state = true;
  while (!learner->is_over) {
    if (learner->is_near) choir__membership_ask_in(membership);
    learner->was_near = learner->was_near || learner->is_near;
    CHOIR_TRY(receive_round(learner, false));
    if (!learner->is_over) CHOIR_TRY(update(learner));
  }
  return choir_comm_finalize(learner->comm);
}

static choir_status_t follow(learner_t* learner,
                             const choir__feed_order_t* order) {
  if (order->givers > MOST_GIVERS)
    return CHOIR_ERROR(INTERNAL, "elastic: %d givers", order->givers);
  learner->givers = order->givers;
  CHOIR_TRY(choir__feed_meet(order, &learner->comm));
  choir_status_t status = open_ranges(learner->dist, &learner->states);
  if (!status) {
    status = learn(learner);
    close_ranges(&learner->states);
  }
  choir_comm_release(learner->comm);
  return status;
}

// Whether it is worth another: a change came before it was near, or a slow link
// may be mended later.
static bool take_once(choir_dist_opt_t* dist, int64_t* step) {
  choir__feed_order_t order;
  if (!choir__membership_ask_order(dist->membership, dist->comm, &order))
    return false;
  const double start = choir_clock_seconds();
  learner_t learner = {
      .dist = dist, .grads = {.dist = dist, .are_grads = true}, .step = -1};
  choir_status_t status = follow(&learner, &order);
  *step = status ? -1 : learner.step;
  const bool again =
      status ? !learner.had_state &&
                   choir__membership_stay_away(dist->membership, dist->comm)
             : !learner.was_near;
  if (status)
    choir_log(
        CHOIR_LOG_INFO, "dist", "elastic: this worker %s: %s",
        again ? "stays away once more" : "gets the state when it is taken in",
        choir_status_message(status));
  else
    choir_log(CHOIR_LOG_INFO, "dist",
              "elastic: this worker has the state after %lld steps, of %d "
              "ranks since step %lld, in %.2f s",
              (long long)*step, order.givers, (long long)order.step,
              choir_clock_seconds() - start);
  choir_status_free(status);
  return again;
}

void choir__feed_take(choir_dist_opt_t* dist, int64_t* step) {
  if (dist->config.shard) return;
  for (int i = 0; i < MOST_TRIES && take_once(dist, step);) ++i;
}
