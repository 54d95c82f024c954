// SPDX-License-Identifier: Apache-2.0
#include "dist/board_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/launch.h"

static pthread_once_t board_once = PTHREAD_ONCE_INIT;
static choir_board_t* own_board;
static choir_board_slot_t* board_slot;

size_t choir__board_bytes(int32_t size) {
  return sizeof(choir_board_t) + (size_t)size * sizeof(choir_board_slot_t);
}

// Anything that does not fit is taken for "no board": the environment may be
// an older run's.
static void board_open(void) {
  const char* fd_text = getenv(CHOIR_BOARD_ENVIRONMENT);
  const char* rank_text = getenv("CHOIR_RANK");
  if (!fd_text || !rank_text) return;
  int fd = atoi(fd_text);
  long rank = strtol(rank_text, NULL, 10);
  struct stat info;
  if (fd <= 2 || fstat(fd, &info) ||
      info.st_size < (off_t)sizeof(choir_board_t))
    return;
  size_t bytes = (size_t)info.st_size;
  choir_board_t* board =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (board == MAP_FAILED) return;
  if (board->magic != CHOIR_BOARD_MAGIC || rank < 0 || rank >= board->size ||
      choir__board_bytes(board->size) > bytes) {
    munmap(board, bytes);
    return;
  }
  // Programs that the worker starts have no business with it.
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  own_board = board;
  board_slot = &board->slots[rank];
}

choir_board_t* choir__board(void) {
  pthread_once(&board_once, board_open);
  return own_board;
}

void choir__board_clear(choir_board_slot_t* slot) {
  choir__activity_clear(&slot->activity);
  atomic_store(&slot->epoch, -1);
  atomic_store(&slot->member_port, 0);
  atomic_store(&slot->is_member, false);
  atomic_store(&slot->generation, 0);
  atomic_store(&slot->left_by, 0);
  atomic_store(&slot->fault_code, 0);
  slot->fault_waiting_for = -1;
  atomic_store(&slot->failure_taken, false);
  atomic_store(&slot->failure_code, 0);
}

choir_board_slot_t* choir__board_slot(void) {
  pthread_once(&board_once, board_open);
  return board_slot;
}

void choir_launch_note_progress(int64_t epoch, int64_t step) {
  choir_board_slot_t* slot = choir__board_slot();
  if (!slot) return;
  atomic_store_explicit(&slot->epoch, epoch, memory_order_relaxed);
  atomic_store_explicit(&slot->step, step, memory_order_relaxed);
}

void choir_launch_note_failure(choir_status_code_t code, const char* text) {
  choir_board_slot_t* slot = choir__board_slot();
  if (!slot || code == CHOIR_STATUS_OK) return;
  if (atomic_exchange(&slot->failure_taken, true)) return;
  snprintf(slot->failure_text, sizeof(slot->failure_text), "%s",
           text && text[0] ? text : choir_status_code_text(code));
  atomic_store(&slot->failure_code, (int32_t)code);
}
