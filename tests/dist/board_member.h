// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_DIST_BOARD_MEMBER_H_
#define CHOIR_TESTS_DIST_BOARD_MEMBER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// In a worker: tells its launcher that it is a member of an elastic run's
// generation, as DistOpt would (the board's atomics are C's).
void choir_testing_be_member(int64_t generation);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_TESTS_DIST_BOARD_MEMBER_H_
