// SPDX-License-Identifier: Apache-2.0
// Which samples the steps of an elastic run take. The global batch stays, or
// each worker's batch (keep_batch), so that the global batch changes with the
// number of workers, also in the middle of an epoch, and the learning rate
// follows it by the rule that was asked for. Everything comes from numbers that
// all ranks of a generation have in common (choir__course_t).
#include <math.h>

#include "dist/dist_opt_parts_internal.h"
#include "opt/optimizer_def.h"

const char* const choir_rate_rule_names[] = {
#define NAME(ENUM, name) #name,
    CHOIR_RATE_RULE_LIST(NAME)
#undef NAME
        NULL};

static int64_t round_up(int64_t samples, int64_t batch) {
  return samples / batch + (samples % batch != 0);
}

// Where step `step` takes its samples.
static choir_loader_position_t place_at(const choir__course_t* course,
                                        int64_t step) {
  choir_loader_position_t place = course->place;
  const int64_t batch = course->global_batch;
  const int64_t left = round_up(course->samples - place.sample, batch);
  int64_t steps = step - course->step;
  if (steps < left) {
    place.step += steps;
    place.sample += steps * batch;
    return place;
  }
  steps -= left;
  const int64_t of_epoch = round_up(course->samples, batch);
  place.epoch += 1 + steps / of_epoch;
  place.step = steps % of_epoch;
  place.sample = place.step * batch;
  return place;
}

// ---- The loader ----

// It has a place, and the model has made so many steps.
static void begin(choir__course_t* course, const choir_loader_t* loader,
                  int64_t step) {
  const choir_partition_t* partition = choir_loader_partition(loader);
  const int64_t steps = choir_partition_steps(partition);
  const choir_loader_position_t place = choir_loader_position(loader);
  const int64_t sample = place.step * partition->global_batch;
  const bool is_begun =
      place.sample != (place.step < steps ? sample : partition->sample_count);
  course->first_size = partition->size;
  course->samples = partition->sample_count;
  course->first_batch = course->global_batch = partition->global_batch;
  // Of whole epochs the steps before are known, too.
  course->step = step - (is_begun ? 0 : place.epoch * steps + place.step);
  course->place = is_begun ? place : (choir_loader_position_t){0};
}

choir_status_t choir__course_follow(const choir_dist_opt_t* dist,
                                    int64_t step) {
  const choir__course_t* course = &dist->course;
  if (!dist->loader || course->samples == 0) return NULL;
  if (step < course->step)
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "dist_opt: step %lld is before step %lld, since which "
                       "the global batch is %lld; call choir_training_follow",
                       (long long)step, (long long)course->step,
                       (long long)course->global_batch);
  choir_loader_position_t place = place_at(course, step);
  // Who has not been told that the epoch is over will be.
  if (place.step == 0 &&
      place.epoch > choir_loader_position(dist->loader).epoch)
    place = (choir_loader_position_t){
        place.epoch - 1, round_up(course->samples, course->global_batch),
        course->samples};
  return choir_loader_follow(dist->loader, choir_comm_rank(dist->comm),
                             choir_comm_size(dist->comm), course->global_batch,
                             place);
}

choir_status_t choir__dist_opt_follow(choir_dist_opt_t* dist,
                                      choir_loader_t* loader, int64_t step) {
  dist->loader = loader;
  if (!loader) return NULL;
  // Of one that has come the others have said it.
  if (dist->has_come && dist->course.samples > 0)
    return choir__course_follow(dist, step);
  begin(&dist->course, loader, step);
  return NULL;
}

// ---- The batch of each rank ----

static double rate_of(const choir_dist_opt_t* dist) {
  const choir__course_t* course = &dist->course;
  const double ratio =
      course->samples > 0
          ? (double)course->global_batch / (double)course->first_batch
          : (double)choir_comm_size(dist->comm) / (double)course->first_size;
  switch ((choir_rate_rule_t)dist->config.rate_rule) {
    case CHOIR_RATE_RULE_LINEAR:
      return ratio;
    case CHOIR_RATE_RULE_SQRT:
      return sqrt(ratio);
    case CHOIR_RATE_RULE_NONE:
      break;
  }
  return 1;
}

void choir__course_change(choir_dist_opt_t* dist, int64_t step) {
  choir__course_t* course = &dist->course;
  if (!dist->config.keep_batch) return;
  if (course->samples > 0) {
    course->place = place_at(course, step);
    course->step = step;
    int64_t batch =
        course->first_batch * choir_comm_size(dist->comm) / course->first_size;
    if (batch > course->samples) batch = course->samples;
    course->global_batch = batch < 1 ? 1 : batch;
  }
  choir__optimizer_scale_lr(dist->optimizer, rate_of(dist));
}
