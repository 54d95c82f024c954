// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_BOARD_INTERNAL_H_
#define CHOIR_DIST_BOARD_INTERNAL_H_

#include <stdatomic.h>

#include "core/status.h"
#include "dist/activity_internal.h"

// The launcher's board: memory that it shares with its workers, with a place
// where each one notes what it does. The launcher reads it when a worker ends.

// $CHOIR_BOARD_FD: not for users: the descriptor by which a worker reaches its
// launcher's board. Not set: no launcher of Choir's started the process.
#define CHOIR_BOARD_ENVIRONMENT "CHOIR_BOARD_FD"
#define CHOIR_BOARD_MAGIC 0x43484f4952424f31ull
#define CHOIR_BOARD_TEXT_BYTES 1024
#define CHOIR_BOARD_LEFT_ITSELF (-1)

typedef struct choir_board_slot_s {
  _Alignas(64) _Atomic int64_t epoch;  // -1: none noted
  // Of an elastic run: how often the launcher has started the worker again,
  // where it listens as a member (0: nowhere yet), and whether it is one.
  _Atomic int32_t restarts;
  _Atomic uint32_t member_port;
  _Atomic bool is_member;
  _Atomic int64_t generation;  // that it was in last; 0: none
  // Why it has left: the number of the signal that asked for it, or
  // CHOIR_BOARD_LEFT_ITSELF; 0: it has not.
  _Atomic int32_t left_by;
  _Atomic int64_t step;
  choir_shared_activity_t activity;
  // Set once, when the worker's communicator breaks; the texts are complete
  // when fault_code is not 0.
  _Atomic int32_t fault_code;  // choir_status_code_t
  int32_t fault_waiting_for;   // rank or -1
  char fault_operation[CHOIR_ACTIVITY_TEXT_BYTES];
  char fault_text[CHOIR_BOARD_TEXT_BYTES];
  // Set once, by the worker's program: why it is about to end. The text is
  // complete when failure_code is not 0.
  _Atomic bool failure_taken;
  _Atomic int32_t failure_code;  // choir_status_code_t
  char failure_text[CHOIR_BOARD_TEXT_BYTES];
} choir_board_slot_t;

typedef struct choir_board_s {
  uint64_t magic;
  int32_t size;
  _Atomic bool is_ending;  // the launcher ends all workers
  choir_board_slot_t slots[];
} choir_board_t;

size_t choir__board_bytes(int32_t size);
// This worker's slot, or NULL outside a launched run. The same answer in the
// whole life of a process.
choir_board_slot_t* choir__board_slot(void);
// All slots, likewise.
choir_board_t* choir__board(void);
// A slot as it is before its worker has begun.
void choir__board_clear(choir_board_slot_t* slot);

#endif  // CHOIR_DIST_BOARD_INTERNAL_H_
