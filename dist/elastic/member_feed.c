// SPDX-License-Identifier: Apache-2.0
// Who gives the state to a newcomer, and where they meet.
#include <string.h>

#include "core/clock.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/membership_internal.h"

// Who was named comes at the same time.
static const double meeting_seconds = 5;

bool choir__membership_is_asked(const choir__membership_t* membership) {
  return atomic_load(&membership->is_asked) &&
         !atomic_load(&membership->has_order);
}

void choir__membership_order(choir__membership_t* membership, int64_t step,
                             const int32_t* givers, int32_t count) {
  pthread_mutex_lock(&membership->mutex);
  choir__feed_t feed = {
      .to = membership->asking, .step = step, .givers = count, .index = -1};
  choir__messages_order(membership, &feed, &feed.to.at);
  for (int32_t i = 0; i < count; ++i) {
    feed.index = i;
    if (givers[i] == membership->rank)
      choir__membership_note_order(membership, &feed);
    else
      choir__messages_order(membership, &feed,
                            &membership->members[givers[i]].at);
  }
  atomic_store(&membership->is_asked, false);
  pthread_mutex_unlock(&membership->mutex);
}

void choir__membership_note_order(choir__membership_t* membership,
                                  const choir__feed_t* feed) {
  membership->order = *feed;
  atomic_store(&membership->has_order, true);
}

// With the mutex held.
static choir_status_t make_order(const choir__membership_t* membership,
                                 const choir_comm_t* comm,
                                 choir__feed_order_t* out_order) {
  const choir__feed_t* feed = &membership->order;
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

bool choir__membership_take_order(choir__membership_t* membership,
                                  const choir_comm_t* comm, int64_t step,
                                  choir__feed_order_t* out_order) {
  if (!atomic_load(&membership->has_order)) return false;
  pthread_mutex_lock(&membership->mutex);
  bool is_now = membership->order.step == step;
  if (membership->order.step <= step)
    atomic_store(&membership->has_order, false);
  choir_status_t status =
      is_now ? make_order(membership, comm, out_order) : NULL;
  pthread_mutex_unlock(&membership->mutex);
  is_now = is_now && !status;
  choir_status_free(status);
  return is_now;
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
  const double end = choir_clock_seconds() + comm->deadline + meeting_seconds;
  double asked = 0;
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  for (double now; !membership->is_turned_away &&
                   !atomic_load(&membership->has_order) &&
                   (now = choir_clock_seconds()) < end;) {
    if (now > asked + CHOIR__AGAIN_SECONDS) {
      choir__membership_ask(membership, CHOIR__GREETING_ASK);
      asked = now;
    }
    choir__membership_wait_a_turn(membership);
  }
  bool has_order = atomic_load(&membership->has_order);
  if (has_order) status = make_order(membership, comm, out_order);
  atomic_store(&membership->has_order, false);
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
