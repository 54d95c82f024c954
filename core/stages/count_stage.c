// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/stage.h"

static choir_status_t submit(choir_stage_t* stage, choir_stream_t* stream,
                             const choir_record_t* record) {
  choir_count_stage_t* count = (choir_count_stage_t*)stage;
  ++count->records;
  const choir_cost_t cost = choir_record_cost(record);
  count->cost.flops += cost.flops;
  count->cost.bytes += cost.bytes;
  return choir_stage_forward(stage, stream, record);
}

void choir_count_stage_init(choir_count_stage_t* stage) {
  memset(stage, 0, sizeof(*stage));
  stage->stage.submit = submit;
}
