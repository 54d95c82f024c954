// SPDX-License-Identifier: Apache-2.0
#include "core/stage.h"

choir_status_t choir_stage_forward(choir_stage_t* stage, choir_stream_t* stream,
                                   const choir_record_t* record) {
  if (!stage->next) {
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "choir_stage_forward: nothing stands behind this stage; "
                       "push it on a stream first");
  }
  return stage->next->submit(stage->next, stream, record);
}
