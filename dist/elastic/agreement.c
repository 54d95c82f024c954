// SPDX-License-Identifier: Apache-2.0
#include "dist/elastic/agreement_internal.h"

#include <string.h>

// ---- Members ----

bool choir__members_has(const choir__members_t* members, int32_t rank) {
  return members->bits[rank / 64] >> (rank % 64) & 1;
}

void choir__members_add(choir__members_t* members, int32_t rank) {
  members->bits[rank / 64] |= (uint64_t)1 << (rank % 64);
}

int32_t choir__members_count(const choir__members_t* members) {
  int32_t count = 0;
  for (int32_t i = 0; i < CHOIR__MEMBERS_MOST / 64; ++i)
    count += __builtin_popcountll(members->bits[i]);
  return count;
}

bool choir__members_decide(const choir__members_t* members, int32_t size) {
  const int32_t twice = 2 * choir__members_count(members);
  return twice > size || (twice == size && choir__members_has(members, 0));
}

// ---- Attempts ----

static bool is_later(choir__attempt_t a, choir__attempt_t b) {
  return a.number > b.number || (a.number == b.number && a.rank > b.rank);
}

static bool is_same(choir__attempt_t a, choir__attempt_t b) {
  return a.number == b.number && a.rank == b.rank;
}

static void send(const choir__agreement_t* agreement,
                 choir__agreement_message_t message, int32_t to) {
  const choir__agreement_config_t* config = &agreement->config;
  message.generation = config->generation;
  message.from = config->rank;
  message.to = to;
  config->send(config->self, &message);
}

static void send_to_others(const choir__agreement_t* agreement,
                           choir__agreement_message_t message) {
  for (int32_t r = 0; r < agreement->config.size; ++r)
    if (r != agreement->config.rank) send(agreement, message, r);
}

// Of the phase; those who have replied see that it goes on.
static void ask_all(const choir__agreement_t* agreement) {
  const bool asks = agreement->phase == CHOIR__AGREE_ASKING;
  choir__agreement_message_t message = {
      .kind = asks ? CHOIR__AGREE_ASK : CHOIR__AGREE_PROPOSE,
      .attempt = agreement->own};
  if (!asks) message.decision = agreement->choice;
  send_to_others(agreement, message);
}

// ---- One's own attempt ----

static void begin_phase(choir__agreement_t* agreement,
                        choir__agreement_phase_t phase, double now) {
  agreement->phase = phase;
  agreement->replies = (choir__members_t){{0}};
  agreement->until = now + agreement->config.limit;
  agreement->again_at = now + agreement->config.again;
}

static void decide(choir__agreement_t* agreement,
                   const choir__decision_t* decision) {
  agreement->phase = CHOIR__AGREE_DONE;
  agreement->decision = *decision;
}

// So that members whose attempts were in each other's way do not meet again.
static void rest(choir__agreement_t* agreement, double now) {
  const choir__agreement_config_t* config = &agreement->config;
  const double unit =
      config->again > 0 ? config->again : config->limit / config->size;
  begin_phase(agreement, CHOIR__AGREE_RESTING, now);
  agreement->until =
      now + unit * (double)(1 + (config->rank + agreement->own.number) %
                                    config->size);
}

static void note_answer(choir__agreement_t* agreement, int32_t from,
                        choir__attempt_t accepted,
                        const choir__decision_t* decision) {
  choir__members_add(&agreement->replies, from);
  if (accepted.number == 0 || !is_later(accepted, agreement->best)) return;
  agreement->best = accepted;
  agreement->choice = *decision;
}

static void ask(choir__agreement_t* agreement, double now) {
  begin_phase(agreement, CHOIR__AGREE_ASKING, now);
  agreement->own =
      (choir__attempt_t){agreement->latest.number + 1, agreement->config.rank};
  agreement->latest = agreement->own;
  agreement->best = (choir__attempt_t){0, 0};
  note_answer(agreement, agreement->config.rank, agreement->accepted,
              &agreement->accepted_decision);
  ask_all(agreement);
}

static void accept(choir__agreement_t* agreement, choir__attempt_t attempt,
                   const choir__decision_t* decision) {
  agreement->latest = attempt;
  agreement->accepted = attempt;
  agreement->accepted_decision = *decision;
}

static void finish(choir__agreement_t* agreement) {
  decide(agreement, &agreement->choice);
  send_to_others(agreement,
                 (choir__agreement_message_t){.kind = CHOIR__AGREE_DECIDE,
                                              .attempt = agreement->own,
                                              .decision = agreement->choice});
}

static bool all_have_replied(const choir__agreement_t* agreement) {
  for (int32_t r = 0; r < agreement->config.size; ++r)
    if (!choir__members_has(&agreement->replies, r) &&
        !choir__members_has(&agreement->gone, r))
      return false;
  return true;
}

static bool nobody_is_awaited(const choir__agreement_t* agreement) {
  for (int32_t r = 0; r < agreement->config.size; ++r)
    if (!choir__members_has(&agreement->replies, r) &&
        !choir__members_has(&agreement->gone, r) &&
        !choir__members_has(&agreement->silent, r))
      return false;
  return true;
}

static bool has_quorum(const choir__agreement_t* agreement) {
  const choir__agreement_config_t* config = &agreement->config;
  return choir__members_decide(&agreement->replies, config->size) ||
         (config->gone_is_ended && all_have_replied(agreement));
}

static void propose(choir__agreement_t* agreement, double now) {
  // It has answered a later attempt since it asked.
  if (is_later(agreement->latest, agreement->own)) {
    rest(agreement, now);
    return;
  }
  if (agreement->best.number == 0) {
    agreement->choice = agreement->wanted;
    agreement->choice.members = agreement->replies;
    for (int32_t i = 0; i < CHOIR__MEMBERS_MOST / 64; ++i)
      agreement->choice.members.bits[i] &= ~agreement->leaving.bits[i];
  }
  begin_phase(agreement, CHOIR__AGREE_PROPOSING, now);
  accept(agreement, agreement->own, &agreement->choice);
  choir__members_add(&agreement->replies, agreement->config.rank);
  ask_all(agreement);
  if (has_quorum(agreement)) finish(agreement);
}

// Goes on where enough is known, or the time is over.
static void advance(choir__agreement_t* agreement, double now) {
  const bool is_over = now >= agreement->until;
  switch (agreement->phase) {
    case CHOIR__AGREE_ASKING:
      if (!is_over && !nobody_is_awaited(agreement)) return;
      if (has_quorum(agreement))
        propose(agreement, now);
      else if (is_over)
        rest(agreement, now);
      return;
    case CHOIR__AGREE_PROPOSING:
      if (has_quorum(agreement))
        finish(agreement);
      else if (is_over)
        rest(agreement, now);
      return;
    case CHOIR__AGREE_RESTING:
      if (is_over && now >= agreement->quiet_until) ask(agreement, now);
      return;
    default:
      return;
  }
}

// ---- Messages ----

// As a member that accepts: false, and says so, of an older attempt.
static bool may_take(choir__agreement_t* agreement,
                     const choir__agreement_message_t* message) {
  if (!is_later(agreement->latest, message->attempt)) return true;
  send(agreement,
       (choir__agreement_message_t){.kind = CHOIR__AGREE_REFUSE,
                                    .attempt = agreement->latest},
       message->from);
  return false;
}

// To a later attempt, which two that wait for a silent member would else keep
// each other from: who is at it asks again and again.
static void yield_to(choir__agreement_t* agreement, double now) {
  const double again = agreement->config.again;
  if (again <= 0) return;
  agreement->quiet_until = now + 4 * again;
  if (agreement->phase == CHOIR__AGREE_ASKING ||
      agreement->phase == CHOIR__AGREE_PROPOSING)
    rest(agreement, now);
}

static void take_ask(choir__agreement_t* agreement,
                     const choir__agreement_message_t* message, double now) {
  if (!may_take(agreement, message)) return;
  yield_to(agreement, now);
  agreement->latest = message->attempt;
  send(agreement,
       (choir__agreement_message_t){.kind = CHOIR__AGREE_ANSWER,
                                    .attempt = message->attempt,
                                    .accepted = agreement->accepted,
                                    .decision = agreement->accepted_decision},
       message->from);
}

static void take_proposal(choir__agreement_t* agreement,
                          const choir__agreement_message_t* message,
                          double now) {
  if (!may_take(agreement, message)) return;
  yield_to(agreement, now);
  accept(agreement, message->attempt, &message->decision);
  send(agreement,
       (choir__agreement_message_t){.kind = CHOIR__AGREE_ACCEPT,
                                    .attempt = message->attempt},
       message->from);
}

static bool is_reply(const choir__agreement_t* agreement,
                     const choir__agreement_message_t* message,
                     choir__agreement_phase_t phase) {
  return agreement->phase == phase &&
         is_same(message->attempt, agreement->own) &&
         !choir__members_has(&agreement->replies, message->from);
}

static void take_refusal(choir__agreement_t* agreement,
                         const choir__agreement_message_t* message,
                         double now) {
  const bool is_trying = agreement->phase == CHOIR__AGREE_ASKING ||
                         agreement->phase == CHOIR__AGREE_PROPOSING;
  if (!is_trying || !is_later(message->attempt, agreement->own)) return;
  // Its next attempt is later than the one in the way.
  if (is_later(message->attempt, agreement->latest))
    agreement->latest = message->attempt;
  rest(agreement, now);
}

void choir__agreement_receive(choir__agreement_t* agreement,
                              const choir__agreement_message_t* message,
                              double now) {
  const choir__agreement_config_t* config = &agreement->config;
  if (message->generation != config->generation || message->from < 0 ||
      message->from >= config->size || message->from == config->rank)
    return;
  if (agreement->phase == CHOIR__AGREE_DONE) {
    if (message->kind == CHOIR__AGREE_ASK ||
        message->kind == CHOIR__AGREE_PROPOSE)
      send(agreement,
           (choir__agreement_message_t){.kind = CHOIR__AGREE_DECIDE,
                                        .attempt = message->attempt,
                                        .decision = agreement->decision},
           message->from);
    return;
  }
  switch (message->kind) {
    case CHOIR__AGREE_ASK:
      take_ask(agreement, message, now);
      return;
    case CHOIR__AGREE_ANSWER:
      if (!is_reply(agreement, message, CHOIR__AGREE_ASKING)) return;
      note_answer(agreement, message->from, message->accepted,
                  &message->decision);
      break;
    case CHOIR__AGREE_PROPOSE:
      take_proposal(agreement, message, now);
      return;
    case CHOIR__AGREE_ACCEPT:
      if (!is_reply(agreement, message, CHOIR__AGREE_PROPOSING)) return;
      choir__members_add(&agreement->replies, message->from);
      break;
    case CHOIR__AGREE_REFUSE:
      take_refusal(agreement, message, now);
      return;
    case CHOIR__AGREE_DECIDE:
      decide(agreement, &message->decision);
      return;
    default:
      return;
  }
  advance(agreement, now);
}

// ---- Its life ----

void choir__agreement_begin(choir__agreement_t* agreement,
                            const choir__agreement_config_t* config) {
  *agreement = (choir__agreement_t){.config = *config};
}

void choir__agreement_propose(choir__agreement_t* agreement, double now) {
  if (agreement->phase != CHOIR__AGREE_IDLE || now < agreement->quiet_until)
    return;
  ask(agreement, now);
  advance(agreement, now);
}

void choir__agreement_note_gone(choir__agreement_t* agreement, int32_t rank,
                                double now) {
  choir__members_add(&agreement->gone, rank);
  advance(agreement, now);
}

void choir__agreement_tick(choir__agreement_t* agreement, double now) {
  const bool is_trying = agreement->phase == CHOIR__AGREE_ASKING ||
                         agreement->phase == CHOIR__AGREE_PROPOSING;
  if (is_trying && agreement->config.again > 0 && now >= agreement->again_at) {
    ask_all(agreement);
    agreement->again_at = now + agreement->config.again;
  }
  advance(agreement, now);
}
