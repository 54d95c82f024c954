// SPDX-License-Identifier: Apache-2.0
#include "opt/schedule.h"

#include <math.h>

const char* const choir_schedule_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_SCHEDULE_LIST(NAME)
#undef NAME
        NULL};

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(choir_schedule_config_t, CHOIR_SCHEDULE_FIELDS)};
const choir_struct_def_t choir_schedule_config_def = CHOIR_STRUCT_DEF(
    "schedule", choir_schedule_config_t, fields, "learning rate over steps");

static double curve(const choir_schedule_config_t* config, int64_t step) {
  const double progress = (double)step / (double)config->period;
  switch ((choir_schedule_kind_t)config->kind) {
    case CHOIR_SCHEDULE_STEP:
      return pow(config->factor, floor(progress));
    case CHOIR_SCHEDULE_EXPONENTIAL:
      return pow(config->factor, progress);
    case CHOIR_SCHEDULE_COSINE: {
      const double pi = 3.14159265358979323846;
      const double part = progress < 1 ? progress : 1;
      return config->factor + (1 - config->factor) * 0.5 * (1 + cos(pi * part));
    }
    case CHOIR_SCHEDULE_CONSTANT:
    default:
      return 1;
  }
}

double choir_schedule_factor(const choir_schedule_config_t* config,
                             int64_t step) {
  double factor = curve(config, step);
  if (step < config->warmup)
    factor *= (double)(step + 1) / (double)(config->warmup + 1);
  return factor;
}
