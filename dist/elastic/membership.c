// SPDX-License-Identifier: Apache-2.0
// A member's life: its sockets, and the thread that answers on them.
#include "dist/elastic/membership_def.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread_backend.h"
#include "dist/board_internal.h"
#include "dist/comm_internal.h"
#include "dist/elastic/membership_internal.h"

static void* thread_main(void* argument) {
  choir__membership_t* membership = argument;
  struct pollfd polls[] = {
      {.fd = membership->sockets.datagrams, .events = POLLIN},
      {.fd = membership->wake_fd, .events = POLLIN}};
  while (!atomic_load(&membership->stops))
    if (poll(polls, 2, -1) > 0 && (polls[0].revents & POLLIN))
      choir__messages_receive(membership);
  return NULL;
}

static choir_status_t start_thread(choir__membership_t* membership) {
  CHOIR_TRY_NOTE(choir__thread_start("choir-member", thread_main, membership,
                                     &membership->thread),
                 "elastic");
  membership->thread_runs = true;
  return NULL;
}

static choir_status_t open(choir__membership_t* membership,
                           choir_comm_t* comm) {
  choir__member_t* own = &membership->own;
  CHOIR_TRY(choir__member_identify(comm, own));
  CHOIR_TRY(choir__messages_open(membership));
  CHOIR_TRY(choir__member_open(own, &membership->sockets));
  membership->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (membership->wake_fd < 0)
    return CHOIR_ERROR(UNAVAILABLE, "elastic: eventfd: %s", strerror(errno));
  choir_board_slot_t* slot = choir__board_slot();
  if (slot) atomic_store(&slot->member_port, own->at.port);
  if (!comm->is_newcomer)
    CHOIR_TRY(choir_comm_all_gather(comm, own, membership->members,
                                    sizeof(*own), CHOIR_DTYPE_U8, "members"));
  choir__membership_note(membership);
  comm->warns = true;
  choir__comm_watch_hosts(comm, 0);
  return start_thread(membership);
}

choir_status_t choir__membership_create(choir_comm_t* comm, uint64_t model,
                                        choir__membership_t** out_membership) {
  choir_allocator_t allocator = choir_allocator_default();
  void* memory = NULL;
  *out_membership = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir__membership_t), "membership",
                           &memory));
  choir__membership_t* membership = memory;
  memset(membership, 0, sizeof(*membership));
  membership->allocator = allocator;
  membership->id = comm->id;
  membership->model = model;
  membership->generation = comm->is_newcomer ? 0 : 1;
  membership->rank = comm->rank;
  membership->size = comm->size;
  membership->sockets =
      (choir__member_sockets_t){.datagrams = -1, .listener = -1};
  membership->wake_fd = -1;
  pthread_mutex_init(&membership->mutex, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&membership->heard, &attributes);
  pthread_condattr_destroy(&attributes);
  choir_status_t status = open(membership, comm);
  if (status)
    choir__membership_destroy(membership);
  else
    *out_membership = membership;
  return status;
}

void choir__membership_destroy(choir__membership_t* membership) {
  if (!membership) return;
  if (membership->thread_runs) {
    atomic_store(&membership->stops, true);
    eventfd_write(membership->wake_fd, 1);
    pthread_join(membership->thread, NULL);
  }
  choir__member_close(&membership->sockets);
  if (membership->wake_fd >= 0) close(membership->wake_fd);
  pthread_cond_destroy(&membership->heard);
  pthread_mutex_destroy(&membership->mutex);
  choir__messages_close(membership);
  choir_deallocate(membership->allocator, membership->decisions,
                   (size_t)membership->capacity * sizeof(choir__decision_t));
  choir_deallocate(membership->allocator, membership, sizeof(*membership));
}

bool choir__membership_is_newcomer(const choir__membership_t* membership) {
  return membership->generation == 0 || membership->is_welcomed;
}

int32_t choir__membership_newcomers(const choir__membership_t* membership) {
  return atomic_load(&membership->newcomer_count);
}

bool choir__membership_is_local(const choir__membership_t* membership) {
  for (int32_t r = 0; r < membership->size; ++r)
    if (membership->members[r].host != membership->own.host) return false;
  return true;
}
