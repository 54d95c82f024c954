// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_LAUNCH_INTERNAL_H_
#define CHOIR_DIST_LAUNCH_INTERNAL_H_

#include "dist/launch.h"

// What the launchers share.

#define CHOIR_LAUNCH_MAX_WORKERS 1024
// In the environment of all processes of a launched run; its value is that
// run's alone.
#define CHOIR_LAUNCH_MARK "CHOIR_LAUNCH"

choir_status_t choir__launch_check(const choir_launch_config_t* config);

#endif  // CHOIR_DIST_LAUNCH_INTERNAL_H_
