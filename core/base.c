// SPDX-License-Identifier: Apache-2.0
#include "core/base.h"

#define CHOIR_TEXT_(x) #x
#define CHOIR_TEXT(x) CHOIR_TEXT_(x)

const char* choir_version(void) {
  return CHOIR_TEXT(CHOIR_VERSION_MAJOR) "." CHOIR_TEXT(
      CHOIR_VERSION_MINOR) "." CHOIR_TEXT(CHOIR_VERSION_PATCH);
}
