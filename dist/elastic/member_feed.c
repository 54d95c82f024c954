// SPDX-License-Identifier: Apache-2.0
// Who gives the state to a newcomer, and where they meet.
#include <string.h>

#include "core/clock.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/membership_internal.h"

// Who was named comes at the same time.
static const double meeting_seconds = 3;

bool choir__membership_is_asked(const choir__membership_t* membership) {
  return atomic_load(&membership->asker_count) > 0;
}

// With the mutex held.
static void name_givers(choir__membership_t* membership, choir__feed_t feed,
                        const int32_t* givers) {
  choir__messages_order(membership, &feed, &feed.to.at);
  for (feed.index = 0; feed.index < feed.givers; ++feed.index) {
    const int32_t rank = givers[feed.index];
    if (rank == membership->rank)
      choir__membership_note_order(membership, &feed);
    else
      choir__messages_order(membership, &feed, &membership->members[rank].at);
  }
}

void choir__membership_order(choir__membership_t* membership, int64_t step,
                             const int32_t* givers, int32_t count) {
  pthread_mutex_lock(&membership->mutex);
  for (int i = 0; i < atomic_load(&membership->asker_count); ++i)
    name_givers(membership,
                (choir__feed_t){.to = membership->askers[i],
                                .step = step,
                                .givers = count,
                                .index = -1},
                givers);
  atomic_store(&membership->asker_count, 0);
  pthread_mutex_unlock(&membership->mutex);
}

// With the mutex held.
static choir_status_t make_order(const choir__membership_t* membership,
                                 const choir_comm_t* comm,
                                 const choir__feed_t* feed,
                                 choir__feed_order_t* out_order) {
  *out_order = (choir__feed_order_t){.step = feed->step,
                                     .index = feed->index,
                                     .givers = feed->givers,
                                     .deadline = comm->deadline};
  out_order->config = (choir_comm_config_t){
      .backend = "tcp",
      .rank = 1 + feed->index,
      .size = 1 + feed->givers,
      .deadline =
          comm->deadline < meeting_seconds ? comm->deadline : meeting_seconds,
      .silence = comm->silence,
      .encrypt = comm->encrypt,
      .rendezvous_fd = feed->index < 0 ? membership->sockets.listener : 0};
  choir__endpoint_print(&feed->to.at, out_order->config.rendezvous);
  struct {
    choir__endpoint_t at;
    int64_t step;
  } meeting;
  memset(&meeting, 0, sizeof(meeting));
  meeting.at = feed->to.at;
  meeting.step = feed->step;
  return choir__membership_make_id(membership, "feed", &meeting,
                                   sizeof(meeting), &out_order->config.id);
}

// With the mutex held: the first one that is due, or is too late. False: none.
static bool pop_order(choir__membership_t* membership, int64_t step,
                      choir__feed_t* out_feed) {
  const int count = atomic_load(&membership->order_count);
  for (int i = 0; i < count; ++i) {
    *out_feed = membership->orders[i];
    if (out_feed->step > step) continue;
    membership->orders[i] = membership->orders[count - 1];
    atomic_store(&membership->order_count, count - 1);
    return true;
  }
  return false;
}

bool choir__membership_take_order(choir__membership_t* membership,
                                  const choir_comm_t* comm, int64_t step,
                                  choir__feed_order_t* out_order) {
  if (atomic_load(&membership->order_count) == 0) return false;
  bool is_due = false;
  choir__feed_t feed;
  pthread_mutex_lock(&membership->mutex);
  while (!is_due && pop_order(membership, step, &feed)) {
    choir_status_t status = NULL;
    is_due = feed.step == step;
    if (is_due) status = make_order(membership, comm, &feed, out_order);
    is_due = is_due && !status;
    choir_status_free(status);
  }
  pthread_mutex_unlock(&membership->mutex);
  return is_due;
}

choir_status_t choir__feed_meet(const choir__feed_order_t* order,
                                choir_comm_t** out_comm) {
  CHOIR_TRY(choir_comm_create(&order->config, out_comm));
  (*out_comm)->deadline = order->deadline;
  return NULL;
}

// ---- A newcomer ----

bool choir__membership_ask_order(choir__membership_t* membership,
                                 const choir_comm_t* comm,
                                 choir__feed_order_t* out_order) {
  double asked = membership->away_until;
  const double start = choir_clock_seconds();
  const double end =
      (start < asked ? asked : start) + comm->deadline + meeting_seconds;
  choir__feed_t feed;
  bool has_order = false;
  pthread_mutex_lock(&membership->mutex);
  atomic_store(&membership->order_count, 0);  // what was meant for before
  for (double now; !membership->is_turned_away && membership->generation == 0 &&
                   !(has_order = pop_order(membership, INT64_MAX, &feed)) &&
                   (now = choir_clock_seconds()) < end;) {
    if (now > asked + CHOIR__AGAIN_SECONDS) {
      choir__membership_ask(membership, CHOIR__GREETING_ASK);
      asked = now;
    }
    choir__membership_wait_a_turn(membership);
  }
  choir_status_t status =
      has_order ? make_order(membership, comm, &feed, out_order) : NULL;
  pthread_mutex_unlock(&membership->mutex);
  has_order = has_order && !status;
  choir_status_free(status);
  return has_order;
}

void choir__membership_ask_in(choir__membership_t* membership) {
  pthread_mutex_lock(&membership->mutex);
  if (membership->generation == 0)
    choir__membership_ask(membership, CHOIR__GREETING_JOIN);
  pthread_mutex_unlock(&membership->mutex);
}
