// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_parts.h"

#include <string.h>

#include "tensor/gpu_parts_internal.h"

static const struct {
  const char* name;
  choir_status_t (*check)(choir_gpu_part_t* part);
} parts[] = {
#define X(name) {#name, choir__gpu_part_##name},
#include "tensor/gpu_parts.def"
#undef X
};

enum { PART_COUNT = sizeof(parts) / sizeof(parts[0]) };

int32_t choir_gpu_part_count(void) { return PART_COUNT; }

choir_status_t choir_gpu_part(int32_t index, choir_gpu_part_t* out_part) {
  memset(out_part, 0, sizeof(*out_part));
  if (index < 0 || index >= PART_COUNT) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "choir_gpu_part: index is %d; needs a number from 0 to "
                       "%d",
                       (int)index, PART_COUNT - 1);
  }
  out_part->name = parts[index].name;
  return parts[index].check(out_part);
}
