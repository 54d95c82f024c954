// SPDX-License-Identifier: Apache-2.0
// Where newcomers find members: the launcher's board, and a file.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dist/board_internal.h"
#include "dist/elastic/membership_internal.h"

// For newcomers of other hosts, who ask them.
static void list_members(const choir__membership_t* membership) {
  // $CHOIR_MEMBERS: not for users: a file on this host with a line ADDRESS:PORT
  // PID for each member of an elastic run, whom newcomers ask to be taken in;
  // members write it. Not set: newcomers find members on the launcher's board.
  const char* path = getenv("CHOIR_MEMBERS");
  if (!path || !path[0]) return;
  char written[PATH_MAX];
  snprintf(written, sizeof(written), "%s.%d", path, (int)membership->own.pid);
  FILE* file = fopen(written, "we");
  if (!file) return;
  for (int32_t r = 0; r < membership->size; ++r) {
    const choir__member_t* member = &membership->members[r];
    char text[CHOIR__ENDPOINT_TEXT_BYTES];
    fprintf(file, "%s %d\n", choir__endpoint_print(&member->at, text),
            (int)member->pid);
  }
  // Whole, or as it was.
  if (fclose(file) || rename(written, path)) unlink(written);
}

void choir__membership_note(const choir__membership_t* membership) {
  choir_board_slot_t* slot = choir__board_slot();
  const int64_t generation = membership->generation;
  if (slot) atomic_store(&slot->is_member, generation > 0);
  if (slot && generation > 0) atomic_store(&slot->generation, generation);
  if (generation > 0) list_members(membership);
}

bool choir__membership_is_ended(void) {
  const choir_board_t* board = choir__board();
  return board && atomic_load(&board->is_ending);
}
