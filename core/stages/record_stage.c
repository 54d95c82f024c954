// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/record_list.h"
#include "core/stage.h"

static choir_status_t submit(choir_stage_t* stage, choir_stream_t* stream,
                             const choir_record_t* record) {
  choir_record_stage_t* recorder = (choir_record_stage_t*)stage;
  CHOIR_TRY(choir_record_list_append(recorder->list, record));
  if (!recorder->run) return NULL;
  return choir_stage_forward(stage, stream, record);
}

void choir_record_stage_init(choir_record_stage_t* stage,
                             choir_record_list_t* list, bool run) {
  memset(stage, 0, sizeof(*stage));
  stage->stage.submit = submit;
  stage->list = list;
  stage->run = run;
}
