// SPDX-License-Identifier: Apache-2.0
// A change: members that are left agree on the next generation, take newcomers
// in, and meet.
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "dist/board_internal.h"
#include "dist/comm_internal.h"
#include "dist/comm_mac_internal.h"
#include "dist/elastic/membership_internal.h"

// One who notices a loss gives those of lower ranks this time to propose.
static const double patience_seconds = 0.2;
static const double turn_seconds = 0.005;
// For one that others have waited for already, up to the deadline: those who
// did come at once.
static const double late_seconds = 0.5;
// Ranks that agreed come at the same time; who does not has ended since.
static const double join_seconds = 5;
// Where too few are there to go on, they wait for so many of the
// communicator's deadlines, and say so this often.
static const double waiting_deadlines = 10;
static const double telling_seconds = 10;
// One that was left out because its link is slow stays away for one deadline,
// later up to so many.
static const double most_pauses = 16;

typedef struct change_s {
  choir__membership_t* membership;
  choir_comm_t* comm;  // the caller's
  // Of this generation's ranks, [size]: those there, -1: it has come since.
  int32_t ranks[CHOIR__MEMBERS_MOST];
  choir__members_t left;  // of the caller's ranks
  bool has_come;          // this member itself
  double start;
} change_t;

void choir__membership_wait_a_turn(choir__membership_t* membership) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)(turn_seconds * 1e9);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&membership->heard, &membership->mutex, &until);
}

// False where it cannot be known.
static bool has_ended(const choir__membership_t* membership,
                      const choir__member_t* member) {
  return member->host == membership->own.host && kill(member->pid, 0) &&
         errno == ESRCH;
}

// All members are processes of this host, and always were.
static bool is_on_one_host(const choir__membership_t* membership,
                           const choir_comm_t* comm) {
  return comm->hosts.count == 1 && choir__membership_is_local(membership);
}

static bool is_gone(const change_t* change, int32_t rank) {
  const choir__membership_t* membership = change->membership;
  const int32_t before = change->ranks[rank];
  // On several hosts it stays until all have decided.
  if (choir__members_has(&membership->left, rank) &&
      is_on_one_host(membership, change->comm))
    return true;
  const int presence = before < 0
                           ? CHOIR_COMM_PEER_LEFT
                           : atomic_load(&change->comm->peers[before].presence);
  // Who is in the next generation has released the communicator, too.
  return presence == CHOIR_COMM_PEER_GONE ||
         (presence == CHOIR_COMM_PEER_LEFT &&
          has_ended(membership, &membership->members[rank]));
}

// It has not answered and gives no sign of life, or is what broke the
// communicator.
static bool is_silent(const change_t* change, int32_t rank, double waited) {
  const int32_t before = change->ranks[rank];
  if (before < 0) return false;
  return choir__comm_peer_is_silent(change->comm, before) ||
         (waited > late_seconds &&
          choir__comm_peer_is_late(change->comm, before));
}

// It is there, and the others go on without it.
static bool is_slow(const change_t* change, int32_t rank) {
  const int32_t before = change->ranks[rank];
  return before >= 0 && choir__comm_peer_is_slow(change->comm, before);
}

// Those who have asked and are still there.
static void want_newcomers(choir__membership_t* membership,
                           choir__decision_t* wanted) {
  const int count = atomic_load(&membership->newcomer_count);
  int32_t left = 0;
  for (int i = 0; i < count; ++i)
    if (!has_ended(membership, &membership->newcomers[i]))
      membership->newcomers[left++] = membership->newcomers[i];
  atomic_store(&membership->newcomer_count, left);
  wanted->newcomer_count = left;
  memcpy(wanted->newcomers, membership->newcomers,
         (size_t)left * sizeof(choir__member_t));
}

// With the mutex held: one look at who is there, and one turn.
static void take_turn(const change_t* change, double waited) {
  choir__membership_t* membership = change->membership;
  choir__agreement_t* agreement = &membership->agreement;
  const double now = choir_clock_seconds();
  want_newcomers(membership, &agreement->wanted);
  agreement->leaving = membership->left;
  for (int32_t r = 0; r < membership->size; ++r)
    if (is_slow(change, r)) choir__members_add(&agreement->leaving, r);
  agreement->silent = (choir__members_t){{0}};
  int32_t lower = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    if (r == membership->rank) continue;
    const bool gone = is_gone(change, r);
    const bool silent = !gone && is_silent(change, r, waited);
    if (gone) choir__agreement_note_gone(agreement, r, now);
    if (silent) choir__members_add(&agreement->silent, r);
    lower += r < membership->rank && !gone && !silent;
  }
  if (waited >= lower * patience_seconds)
    choir__agreement_propose(agreement, now);
  choir__agreement_tick(agreement, now);
}

// "2 of 4 members did not answer in 3.1 s (ranks 0 and 1)"
static void describe_missing(const change_t* change, double waited, char* text,
                             size_t bytes) {
  const choir__membership_t* membership = change->membership;
  char ranks[128];
  bool flags[CHOIR__MEMBERS_MOST];
  int32_t missing = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    flags[r] = r != membership->rank &&
               !choir__members_has(&membership->agreement.replies, r);
    missing += flags[r];
  }
  choir__comm_rank_list(flags, membership->size, ranks, sizeof(ranks));
  snprintf(text, bytes, "%d of %d members did not answer in %.1f s (%s)",
           missing, membership->size, waited, ranks);
}

// Too few are there: it waits for the others, as they may go on without it.
static choir_status_t note_waiting(const change_t* change, double waited,
                                   double* next) {
  const choir__membership_t* membership = change->membership;
  const choir_comm_t* comm = change->comm;
  const long long generation = (long long)membership->generation + 1;
  const double limit = comm->silence + waiting_deadlines * comm->deadline;
  char missing[256];
  if (waited < *next) return NULL;
  *next = waited + telling_seconds;
  describe_missing(change, waited, missing, sizeof(missing));
  if (waited > limit)
    return CHOIR_ERROR(
        TIMEOUT, "elastic: generation %lld: %s, too many to go on without them",
        generation, missing);
  choir_log(CHOIR_LOG_WARNING, "dist",
            "elastic: generation %lld: %s; waiting, as those who are here are "
            "too few to go on",
            generation, missing);
  return NULL;
}

static void begin(choir__membership_t* membership, const choir_comm_t* comm) {
  const choir__agreement_config_t config = {
      .generation = membership->generation,
      .rank = membership->rank,
      .size = membership->size,
      .limit = comm->silence,
      .again = CHOIR__AGAIN_SECONDS,
      .gone_is_ended = is_on_one_host(membership, comm),
      .send = choir__messages_send,
      .self = membership};
  choir__agreement_begin(&membership->agreement, &config);
  membership->is_open = true;
}

static choir_status_t agree(const change_t* change) {
  choir__membership_t* membership = change->membership;
  const double start = choir_clock_seconds();
  double next = change->comm->silence + 1;
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  begin(membership, change->comm);
  while (!status) {
    const double waited = choir_clock_seconds() - start;
    take_turn(change, waited);
    if (membership->agreement.phase == CHOIR__AGREE_DONE) break;
    status = note_waiting(change, waited, &next);
    choir__membership_wait_a_turn(membership);
  }
  membership->is_open = false;
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

// ---- Leaving ----

void choir__membership_leave(choir__membership_t* membership, int number) {
  choir_board_slot_t* slot = choir__board_slot();
  if (slot)
    atomic_store(&slot->left_by, number ? number : CHOIR_BOARD_LEFT_ITSELF);
  pthread_mutex_lock(&membership->mutex);
  choir__messages_leave(membership);
  pthread_mutex_unlock(&membership->mutex);
}

void choir__membership_see_off(choir__membership_t* membership,
                               const choir_comm_t* comm) {
  if (is_on_one_host(membership, comm)) return;
  const double end = choir_clock_seconds() + comm->silence;
  double told = 0;
  pthread_mutex_lock(&membership->mutex);
  begin(membership, comm);
  for (double now; (now = choir_clock_seconds()) < end &&
                   membership->agreement.phase != CHOIR__AGREE_DONE;) {
    if (now - told > CHOIR__AGAIN_SECONDS) {
      choir__messages_leave(membership);
      told = now;
    }
    choir__membership_wait_a_turn(membership);
  }
  pthread_mutex_unlock(&membership->mutex);
}

static choir_status_t keep_decision(choir__membership_t* membership) {
  const int64_t count = membership->generation;
  if (count > membership->capacity) {
    const int64_t capacity = 2 * count;
    const size_t before =
        (size_t)membership->capacity * sizeof(choir__decision_t);
    const size_t bytes = (size_t)capacity * sizeof(choir__decision_t);
    void* memory = NULL;
    CHOIR_TRY(
        choir_allocate(membership->allocator, bytes, "decisions", &memory));
    memset(memory, 0, bytes);
    if (before) memcpy(memory, membership->decisions, before);
    choir_deallocate(membership->allocator, membership->decisions, before);
    membership->decisions = memory;
    membership->capacity = capacity;
  }
  membership->decisions[count - 1] = membership->agreement.decision;
  return NULL;
}

// One that was taken in has not to ask any more.
static void drop_newcomer(choir__membership_t* membership,
                          const choir__member_t* taken) {
  const int count = atomic_load(&membership->newcomer_count);
  for (int i = 0; i < count; ++i) {
    choir__member_t* newcomer = &membership->newcomers[i];
    if (!choir__endpoint_equal(&newcomer->at, &taken->at)) continue;
    *newcomer = membership->newcomers[count - 1];
    atomic_store(&membership->newcomer_count, count - 1);
    return;
  }
}

// This member's place in the generation that was agreed on.
static void renumber(change_t* change, const choir__decision_t* decision) {
  choir__membership_t* membership = change->membership;
  const int32_t rank = membership->rank;
  int32_t size = 0;
  for (int32_t r = 0; r < membership->size; ++r) {
    if (choir__members_has(&membership->left, r) && change->ranks[r] >= 0)
      choir__members_add(&change->left, change->ranks[r]);
    if (!choir__members_has(&decision->members, r)) continue;
    if (r == rank) membership->rank = size;
    membership->members[size] = membership->members[r];
    change->ranks[size++] = change->ranks[r];
  }
  for (int32_t i = 0; i < decision->newcomer_count; ++i) {
    drop_newcomer(membership, &decision->newcomers[i]);
    membership->members[size] = decision->newcomers[i];
    change->ranks[size++] = -1;
  }
  membership->size = size;
  membership->left = (choir__members_t){{0}};
  ++membership->generation;
  choir__membership_note(membership);
  for (int32_t r = size - decision->newcomer_count; r < size; ++r)
    choir__messages_greet(membership, CHOIR__GREETING_WELCOME, r,
                          &membership->members[r].at);
}

// How long it stays away: twice as long each time that it was left out soon
// after it came.
static void begin_pause(choir__membership_t* membership, double deadline) {
  const double now = choir_clock_seconds();
  const double longer = 2 * membership->pause;
  const double most = most_pauses * deadline;
  membership->pause = now - membership->came > 4 * longer ? deadline
                      : longer < most                     ? longer
                                                          : most;
  membership->away_until = now + membership->pause;
}

bool choir__membership_stay_away(choir__membership_t* membership,
                                 const choir_comm_t* comm) {
  const double most = most_pauses * comm->deadline;
  pthread_mutex_lock(&membership->mutex);
  const bool stays = membership->left_out_of > 0 && membership->pause < most;
  if (stays) {
    const double longer = 2 * membership->pause;
    membership->pause = longer < comm->deadline ? comm->deadline
                        : longer < most         ? longer
                                                : most;
    membership->away_until = choir_clock_seconds() + membership->pause;
  }
  pthread_mutex_unlock(&membership->mutex);
  return stays;
}

// The others did not hear of this member in time, or its host is behind a slow
// link, and went on.
static void become_newcomer(change_t* change) {
  choir__membership_t* membership = change->membership;
  membership->away_until = 0;
  if (choir__comm_peer_is_slow(change->comm, change->comm->rank) &&
      !change->has_come)
    begin_pause(membership, change->comm->deadline);
  change->has_come = true;
  membership->left_out_of = membership->generation;
  membership->generation = 0;
  choir__membership_note(membership);
  for (int32_t r = 0; r < CHOIR__MEMBERS_MOST; ++r) change->ranks[r] = -1;
}

static choir_status_t enter_generation(change_t* change) {
  choir__membership_t* membership = change->membership;
  const choir__decision_t* decision = &membership->agreement.decision;
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  if (!choir__members_has(&decision->members, membership->rank)) {
    become_newcomer(change);
  } else {
    status = keep_decision(membership);
    if (!status) renumber(change, decision);
  }
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

// ---- Of one who comes ----

static void ask_at(const choir__membership_t* membership, int32_t kind,
                   const choir__endpoint_t* at) {
  if (at->port && !choir__endpoint_equal(at, &membership->own.at))
    choir__messages_greet(membership, kind, -1, at);
}

static void ask_board(const choir__membership_t* membership, int32_t kind) {
  choir_board_t* board = choir__board();
  choir__endpoint_t at = membership->own.at;
  for (int32_t r = 0; board && r < board->size; ++r) {
    const choir_board_slot_t* slot = &board->slots[r];
    at.port = atomic_load(&slot->member_port);
    if (atomic_load(&slot->is_member)) ask_at(membership, kind, &at);
  }
}

static void ask_listed(const choir__membership_t* membership, int32_t kind) {
  const char* path = getenv("CHOIR_MEMBERS");
  FILE* file = path && path[0] ? fopen(path, "re") : NULL;
  char line[2 * CHOIR__ENDPOINT_TEXT_BYTES];
  while (file && fgets(line, sizeof(line), file)) {
    choir__endpoint_t at;
    line[strcspn(line, " \n")] = 0;
    if (choir__endpoint_parse(line, &at)) ask_at(membership, kind, &at);
  }
  if (file) fclose(file);
}

// Who left it out, who is on the board, and who is on other hosts.
void choir__membership_ask(const choir__membership_t* membership,
                           int32_t kind) {
  for (int32_t r = 0; r < membership->size; ++r)
    ask_at(membership, kind, &membership->members[r].at);
  ask_board(membership, kind);
  ask_listed(membership, kind);
}

// Until it is a member.
static choir_status_t arrive(const change_t* change) {
  choir__membership_t* membership = change->membership;
  // Members may wait for one that is silent meanwhile.
  const double limit =
      2 * change->comm->deadline + change->comm->silence + join_seconds;
  double asked = membership->away_until;
  const double start = choir_clock_seconds();
  choir_status_t status = NULL;
  pthread_mutex_lock(&membership->mutex);
  membership->answered = start < asked ? asked : start;
  while (membership->generation == 0 && !status) {
    const double now = choir_clock_seconds();
    if (membership->is_turned_away)
      status = CHOIR_ERROR(FAILED_PRECONDITION,
                           "elastic: this worker's model or settings are not "
                           "those of the run");
    else if (now - membership->answered > limit)
      status = CHOIR_ERROR(TIMEOUT,
                           "elastic: no worker of the run has answered this "
                           "one, which asks to be taken in, for %.1f s",
                           limit);
    if (now > asked + CHOIR__AGAIN_SECONDS) {
      choir__membership_ask(membership, CHOIR__GREETING_JOIN);
      asked = now;
    }
    choir__membership_wait_a_turn(membership);
  }
  membership->came = choir_clock_seconds();
  membership->away_until = 0;
  membership->is_welcomed = false;
  pthread_mutex_unlock(&membership->mutex);
  return status;
}

// ---- The communicator ----

choir_status_t choir__membership_make_id(const choir__membership_t* membership,
                                         const char* what, const void* data,
                                         size_t bytes,
                                         choir_comm_id_t* out_id) {
  choir__comm_mac_t mac;
  CHOIR_TRY(choir__comm_mac_make(&membership->id, what, data, bytes, &mac));
  sodium_bin2hex(out_id->text, sizeof(out_id->text), mac.bytes,
                 (sizeof(out_id->text) - 1) / 2);
  return NULL;
}

// Also those whose first generation is lost before they had the state.
static int32_t count_newcomers(const change_t* change) {
  choir_comm_t* before = change->comm;
  const int32_t old = before->size - atomic_load(&before->watch.newcomers);
  int32_t count = 0;
  for (int32_t r = 0; r < change->membership->size; ++r)
    count += change->ranks[r] < 0 || change->ranks[r] >= old;
  return count;
}

static choir_status_t join(const change_t* change, choir_comm_t** out_comm) {
  const choir__membership_t* membership = change->membership;
  const choir_comm_t* before = change->comm;
  const bool is_local = choir__membership_is_local(membership);
  choir_comm_config_t config = {
      .backend = membership->size == 1 ? "self"
                 : is_local            ? "shm"
                                       : "tcp",
      .rank = membership->rank,
      .size = membership->size,
      .deadline =
          before->deadline < join_seconds ? before->deadline : join_seconds,
      .silence = before->silence,
      .segment_bytes = before->segment_bytes,
      .device = before->device,
      .encrypt = before->encrypt,
      .rendezvous_fd =
          membership->rank == 0 ? membership->sockets.listener : 0};
  choir__endpoint_print(&membership->members[0].at, config.rendezvous);
  CHOIR_TRY(choir__membership_make_id(
      membership, "generation", &membership->generation,
      sizeof(membership->generation), &config.id));
  CHOIR_TRY(choir_comm_create(&config, out_comm));
  (*out_comm)->deadline = before->deadline;
  (*out_comm)->warns = true;
  // Who has come does not know who else has.
  if (!change->has_come && atomic_load(&before->watch.slow_limit) > 0)
    choir__comm_watch_hosts(*out_comm, count_newcomers(change));
  return NULL;
}

static bool is_lost(const change_t* change, int32_t before) {
  for (int32_t i = 0; i < change->membership->size; ++i)
    if (change->ranks[i] == before) return false;
  return true;
}

// "rank 1 (host h, pid 7) is gone, "; how many, as below.
static int32_t tell_lost(const change_t* change, char* text, size_t bytes) {
  const choir_comm_t* before = change->comm;
  int32_t lost = 0;
  for (int32_t r = 0; r < before->size; ++r) {
    if (!is_lost(change, r)) continue;
    const choir_comm_peer_t* peer = &before->peers[r];
    const bool gone = atomic_load(&peer->presence) != CHOIR_COMM_PEER_HERE;
    choir__text_append(text, bytes, peer->text);
    choir__text_append(text, bytes,
                       choir__members_has(&change->left, r) ? " has left, "
                       : choir__comm_peer_is_slow(change->comm, r)
                           ? " is behind a slow link, "
                       : gone ? " is gone, "
                              : " did not answer, ");
    ++lost;
  }
  return lost;
}

static int32_t tell_come(const change_t* change, char* text, size_t bytes) {
  int32_t come = 0;
  for (int32_t i = 0; i < change->membership->size; ++i) {
    if (change->ranks[i] >= 0) continue;
    const choir__member_t* member = &change->membership->members[i];
    char at[CHOIR__ENDPOINT_TEXT_BYTES];
    choir__text_append(text, bytes, "process ");
    choir__text_append_number(text, bytes, (uint64_t)member->pid);
    if (member->host != change->membership->own.host) {
      choir__text_append(text, bytes, " at ");
      choir__text_append(text, bytes, choir__endpoint_print(&member->at, at));
    }
    choir__text_append(text, bytes, " has come, ");
    ++come;
  }
  return come;
}

// Where the same members go on: what broke the communicator.
static void tell_why(const change_t* change, char* text, size_t bytes) {
  choir_comm_faults_t* faults = &change->comm->faults;
  pthread_mutex_lock(&faults->mutex);
  // Room for what follows.
  choir__text_append(text, bytes - 64, faults->own.text);
  pthread_mutex_unlock(&faults->mutex);
  choir__text_append(text, bytes, ", ");
}

static void describe(const change_t* change, choir__change_t* out_change) {
  const choir__membership_t* membership = change->membership;
  char* text = out_change->text;
  const size_t bytes = sizeof(out_change->text);
  out_change->generation = membership->generation;
  out_change->has_come = change->has_come;
  out_change->lost = 0;
  out_change->seconds = choir_clock_seconds() - change->start;
  snprintf(text, bytes, "generation %lld: ", (long long)membership->generation);
  if (change->has_come) {
    choir__text_append(text, bytes, "this worker has come, ");
  } else {
    out_change->lost = tell_lost(change, text, bytes);
    if (tell_come(change, text, bytes) + out_change->lost == 0)
      tell_why(change, text, bytes);
  }
  choir__text_append_number(text, bytes, (uint64_t)membership->size);
  choir__text_append(
      text, bytes,
      membership->size == 1 ? " worker goes on" : " workers go on");
}

// Until the members of a generation have met, of whom more may be lost; NULL:
// without this one.
static choir_status_t make_generation(change_t* change,
                                      choir_comm_t** out_comm) {
  for (;;) {
    if (choir__membership_is_newcomer(change->membership)) {
      CHOIR_TRY(arrive(change));
    } else {
      CHOIR_TRY(agree(change));
      CHOIR_TRY(enter_generation(change));
      if (choir__membership_is_newcomer(change->membership)) return NULL;
    }
    choir_status_t status = join(change, out_comm);
    if (!status) return NULL;
    const choir_status_code_t code = choir_status_code(status);
    if (code != CHOIR_STATUS_ABORTED && code != CHOIR_STATUS_TIMEOUT)
      return status;
    choir_status_free(status);
  }
}

choir_status_t choir__membership_change(choir__membership_t* membership,
                                        choir_comm_t* comm,
                                        choir_comm_t** out_comm,
                                        choir__change_t* out_change) {
  *out_comm = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(membership->allocator, sizeof(change_t), "a change",
                           &memory));
  memset(memory, 0, sizeof(change_t));
  change_t* change = memory;
  change->membership = membership;
  change->comm = comm;
  change->has_come = choir__membership_is_newcomer(membership);
  change->start = choir_clock_seconds();
  for (int32_t r = 0; r < CHOIR__MEMBERS_MOST; ++r)
    change->ranks[r] = change->has_come || r >= comm->size ? -1 : r;
  choir_status_t status = make_generation(change, out_comm);
  if (!status) describe(change, out_change);
  choir_deallocate(membership->allocator, memory, sizeof(change_t));
  return status;
}
