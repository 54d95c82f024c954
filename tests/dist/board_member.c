// SPDX-License-Identifier: Apache-2.0
#include "tests/dist/board_member.h"

#include "dist/board_internal.h"

void choir_testing_be_member(int64_t generation) {
  choir_board_slot_t* slot = choir__board_slot();
  atomic_store(&slot->generation, generation);
  atomic_store(&slot->is_member, true);
}
