// SPDX-License-Identifier: Apache-2.0
#include "io/loader.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/profile.h"
#include "core/random.h"
#include "core/thread_backend.h"
#include "io/dataset_internal.h"
#include "io/shares.h"

// A ring of slots, each one batch's memory. Three counters that only grow say
// where everything is: slots [recycled, handed) are in the caller's hands (one
// at most), [handed, filled) wait for it, and the thread fills slot `filled`
// as long as filled - recycled is below the number of slots.
//
// When the caller gives a slot back, the kernels that read it may not have run
// yet: an event on the compute stream tells when they have. The thread asks it
// now and then instead of waiting on it, so that _destroy is never held up by
// a stream that hangs.

// The loader's own sequence of random numbers ("load").
#define LOADER_RANDOM_STREAM 0x6c6f6164u
// Epochs are the 32-bit `step` of the random key.
#define LAST_EPOCH ((int64_t)UINT32_MAX - 1)
// How often an event that was not reached is asked again.
#define EVENT_POLL_SECONDS 0.0005

static const choir_field_t loader_fields[] = {
    CHOIR_CONFIG_TABLE(choir_loader_config_t, CHOIR_LOADER_FIELDS)};

const choir_struct_def_t choir_loader_config_def =
    CHOIR_STRUCT_DEF("loader", choir_loader_config_t, loader_fields,
                     "how batches are taken from a data set");

// Steps come in three sizes: the last of an epoch may be shorter, in one that
// was begun with another global batch another one.
enum { STEP_FULL, STEP_LAST, STEP_LAST_OF_BEGUN, STEP_KINDS };

typedef struct slot_s {
  choir_buffer_t* x_buffer;
  choir_buffer_t* y_buffer;
  // Where the thread writes: the buffers' memory, or host memory that is
  // copied there.
  char* x;
  char* y;
  int64_t* samples;
  choir_tensor_t* x_tensors[STEP_KINDS];
  choir_tensor_t* y_tensors[STEP_KINDS];
  choir_event_t* event;  // the compute stream is past the batch
  bool recorded;
  choir_batch_t batch;
} slot_t;

typedef struct ring_s {
  slot_t* slots;
  int64_t count;
  size_t x_bytes;  // of one slot
  size_t y_bytes;
  size_t samples_bytes;
} ring_t;

struct choir_loader_s {
  choir_allocator_t allocator;
  choir_dataset_t* dataset;
  choir_device_t* device;
  choir_loader_config_t config;
  choir_partition_t partition;
  choir_partition_t begun;  // of an epoch with steps of another global batch
  int64_t begun_epoch;      // -1: there is none
  int64_t* shares;          // the partition's; NULL: even
  size_t x_sample_bytes;
  size_t y_sample_bytes;
  bool on_host;
  choir_stream_t* copies;  // the thread's; NULL on a host device

  ring_t ring;
  ring_t lent;  // of before choir_loader_follow, with the caller's batch

  pthread_t thread;
  bool thread_runs;
  bool has_mutex;
  bool has_work;
  bool has_ready;
  pthread_mutex_t mutex;
  pthread_cond_t work;   // the thread waits: a slot came back, seek, stop
  pthread_cond_t ready;  // the caller waits: a slot was filled, a failure

  // The caller's.
  choir_loader_position_t position;

  // Under the mutex.
  bool stop;
  uint64_t generation;  // changes with every seek
  int64_t filled;
  int64_t handed;
  int64_t recycled;
  choir_loader_position_t fill_position;
  choir_status_t failure;
};

// ---- The thread ----

static void deadline_in(double seconds, struct timespec* out_time) {
  clock_gettime(CLOCK_MONOTONIC, out_time);
  // 1e9 seconds, the most that the config allows, are no risk to time_t.
  time_t whole = (time_t)seconds;
  long nanoseconds =
      out_time->tv_nsec + (long)((seconds - (double)whole) * 1e9);
  out_time->tv_sec += whole + nanoseconds / 1000000000;
  out_time->tv_nsec = nanoseconds % 1000000000;
}

static const choir_partition_t* partition_in(const choir_loader_t* loader,
                                             int64_t epoch) {
  return epoch == loader->begun_epoch ? &loader->begun : &loader->partition;
}

static int64_t steps_in(const choir_loader_t* loader, int64_t epoch) {
  return choir_partition_steps(partition_in(loader, epoch));
}

static choir_status_t fill(choir_loader_t* loader, slot_t* slot,
                           choir_loader_position_t position) {
  const choir_partition_part_t part =
      choir_partition_step(partition_in(loader, position.epoch), position.step);
  const choir_dataset_t* dataset = loader->dataset;
  const uint64_t count = (uint64_t)loader->partition.sample_count;
  const int64_t first = part.step_first + part.first_in_step;
  const choir_random_key_t key = {(uint64_t)loader->config.seed,
                                  LOADER_RANDOM_STREAM,
                                  (uint32_t)position.epoch};
  for (int64_t i = 0; i < part.count; ++i) {
    int64_t sample = first + i;
    if (loader->config.shuffle) {
      sample = (int64_t)choir_random_permute(key, count, (uint64_t)sample);
    }
    CHOIR_TRY(dataset->vtable->read(
        dataset, sample, slot->x + (size_t)i * loader->x_sample_bytes,
        slot->y + (size_t)i * loader->y_sample_bytes));
    slot->samples[i] = sample;
  }
  if (!loader->on_host && part.count > 0) {
    const size_t samples = (size_t)part.count;
    CHOIR_TRY(choir_buffer_write(slot->x_buffer, loader->copies, 0, slot->x,
                                 samples * loader->x_sample_bytes));
    CHOIR_TRY(choir_buffer_write(slot->y_buffer, loader->copies, 0, slot->y,
                                 samples * loader->y_sample_bytes));
  }
  const bool is_last = position.step == steps_in(loader, position.epoch) - 1;
  const int kind = !is_last                                ? STEP_FULL
                   : position.epoch == loader->begun_epoch ? STEP_LAST_OF_BEGUN
                                                           : STEP_LAST;
  slot->batch = (choir_batch_t){
      .x = slot->x_tensors[kind],
      .y = slot->y_tensors[kind],
      .sample_count = part.count,
      .global_count = part.step_count,
      .micro_shard = loader->config.micro_shard,
      .first_in_step = part.first_in_step,
      .first_sample = first,
      .epoch = position.epoch,
      .step = position.step,
      .samples = slot->samples,
  };
  return NULL;
}

// From the end of an epoch to the next one.
static void skip_end(const choir_loader_t* loader,
                     choir_loader_position_t* position) {
  if (position->step < steps_in(loader, position->epoch)) return;
  position->step = 0;
  ++position->epoch;
}

static void* thread_main(void* argument) {
  choir_loader_t* loader = argument;
  pthread_mutex_lock(&loader->mutex);
  while (!loader->stop) {
    if (loader->failure ||
        loader->filled - loader->recycled >= loader->ring.count) {
      pthread_cond_wait(&loader->work, &loader->mutex);
      continue;
    }
    slot_t* slot = &loader->ring.slots[loader->filled % loader->ring.count];
    if (slot->recorded && !choir_event_is_reached(slot->event)) {
      struct timespec until;
      deadline_in(EVENT_POLL_SECONDS, &until);
      pthread_cond_timedwait(&loader->work, &loader->mutex, &until);
      continue;
    }
    const uint64_t generation = loader->generation;
    const choir_loader_position_t position = loader->fill_position;
    pthread_mutex_unlock(&loader->mutex);
    const choir_span_t span = choir_span_begin(CHOIR_SPAN_LOADER);
    choir_status_t status = fill(loader, slot, position);
    choir_span_end(&span, "fill a batch", NULL, NULL);
    pthread_mutex_lock(&loader->mutex);
    if (generation != loader->generation) {  // filled for nobody
      choir_status_free(status);
      continue;
    }
    if (status) {
      loader->failure = status;
    } else {
      ++loader->filled;
      ++loader->fill_position.step;
      skip_end(loader, &loader->fill_position);
    }
    pthread_cond_signal(&loader->ready);
  }
  pthread_mutex_unlock(&loader->mutex);
  return NULL;
}

static choir_status_t start_thread(choir_loader_t* loader) {
  CHOIR_TRY_NOTE(
      choir__thread_start("choir-loader", thread_main, loader, &loader->thread),
      "loader");
  loader->thread_runs = true;
  return NULL;
}

// ---- Life ----

// `count` samples like this one, in the buffer.
static choir_status_t make_tensor(const choir_view_t* sample, int64_t count,
                                  choir_buffer_t* buffer,
                                  choir_tensor_t** out_tensor) {
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, sample->shape, sizeof(shape));
  shape[0] = count;
  choir_view_t view;
  CHOIR_TRY(choir_view_make(sample->dtype, sample->ndim, shape, &view));
  view.buffer = buffer;
  return choir_tensor_from_view(&view, out_tensor);
}

static choir_status_t make_slot(choir_loader_t* loader, slot_t* slot) {
  choir_device_t* device = loader->device;
  CHOIR_TRY(choir_buffer_create(device, loader->ring.x_bytes, &slot->x_buffer));
  CHOIR_TRY(choir_buffer_create(device, loader->ring.y_bytes, &slot->y_buffer));
  CHOIR_TRY(choir_event_create(device, &slot->event));
  void* block;
  if (loader->on_host) {
    slot->x = choir_buffer_data(slot->x_buffer);
    slot->y = choir_buffer_data(slot->y_buffer);
  } else if (loader->ring.x_bytes > 0) {
    CHOIR_TRY(choir_allocate(loader->allocator, loader->ring.x_bytes,
                             "the inputs of a batch", &block));
    slot->x = block;
    CHOIR_TRY(choir_allocate(loader->allocator, loader->ring.y_bytes,
                             "the targets of a batch", &block));
    slot->y = block;
  }
  if (loader->ring.samples_bytes > 0) {
    CHOIR_TRY(choir_allocate(loader->allocator, loader->ring.samples_bytes,
                             "the sample indices of a batch", &block));
    slot->samples = block;
  }

  for (int kind = 0; kind < STEP_KINDS; ++kind) {
    const choir_partition_t* partition =
        kind == STEP_LAST_OF_BEGUN ? &loader->begun : &loader->partition;
    const int64_t steps = choir_partition_steps(partition);
    const int64_t count =
        choir_partition_step(partition, kind == STEP_FULL ? 0 : steps - 1)
            .count;
    CHOIR_TRY(make_tensor(choir_dataset_x(loader->dataset), count,
                          slot->x_buffer, &slot->x_tensors[kind]));
    CHOIR_TRY(make_tensor(choir_dataset_y(loader->dataset), count,
                          slot->y_buffer, &slot->y_tensors[kind]));
  }
  return NULL;
}

static void free_slot(choir_loader_t* loader, const ring_t* ring,
                      slot_t* slot) {
  for (int kind = 0; kind < STEP_KINDS; ++kind) {
    choir_tensor_release(slot->x_tensors[kind]);
    choir_tensor_release(slot->y_tensors[kind]);
  }
  if (!loader->on_host) {
    if (slot->x) {
      choir_deallocate(loader->allocator, slot->x, ring->x_bytes);
    }
    if (slot->y) {
      choir_deallocate(loader->allocator, slot->y, ring->y_bytes);
    }
  }
  if (slot->samples) {
    choir_deallocate(loader->allocator, slot->samples, ring->samples_bytes);
  }
  choir_event_release(slot->event);
  choir_buffer_release(slot->x_buffer);
  choir_buffer_release(slot->y_buffer);
}

static void free_ring(choir_loader_t* loader, ring_t* ring) {
  for (int64_t i = 0; i < ring->count; ++i) {
    free_slot(loader, ring, &ring->slots[i]);
  }
  if (ring->slots) {
    choir_deallocate(loader->allocator, ring->slots,
                     (size_t)ring->count * sizeof(slot_t));
  }
  *ring = (ring_t){0};
}

static choir_status_t make_locks(choir_loader_t* loader) {
  int error = pthread_mutex_init(&loader->mutex, NULL);
  loader->has_mutex = !error;
  pthread_condattr_t attributes;
  if (!error) error = pthread_condattr_init(&attributes);
  if (!error) {
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    error = pthread_cond_init(&loader->work, &attributes);
    loader->has_work = !error;
    if (!error) error = pthread_cond_init(&loader->ready, &attributes);
    loader->has_ready = loader->has_work && !error;
    pthread_condattr_destroy(&attributes);
  }
  if (error) {
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "loader: the system gives no lock (error %d)", error);
  }
  return NULL;
}

static size_t shares_bytes(const choir_loader_t* loader) {
  return (size_t)loader->partition.size * sizeof(int64_t);
}

static choir_status_t take_shares(choir_loader_t* loader) {
  const char* text = loader->config.shares;
  loader->config.shares = NULL;  // the caller's
  if (!text) return NULL;
  void* block;
  CHOIR_TRY(choir_allocate(loader->allocator, shares_bytes(loader),
                           "the shares of ranks", &block));
  loader->shares = block;
  CHOIR_TRY_NOTE(
      choir_shares_parse(text, loader->partition.size, loader->shares),
      "loader");
  loader->partition.shares = loader->begun.shares = loader->shares;
  CHOIR_TRY_NOTE(choir_partition_check(&loader->partition), "loader: shares %s",
                 text);
  return NULL;
}

static choir_status_t sizes_of(const choir_view_t* sample, int64_t count,
                               size_t* out_sample_bytes, size_t* out_bytes) {
  *out_sample_bytes =
      (size_t)choir_view_count(sample) * choir_dtype_bytes(sample->dtype);
  if (!__builtin_mul_overflow((size_t)count, *out_sample_bytes, out_bytes) &&
      *out_bytes <= INT64_MAX)
    return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "loader: %lld samples of %zu bytes do not fit in memory",
                     (long long)count, *out_sample_bytes);
}

static choir_status_t make_ring(choir_loader_t* loader) {
  int64_t capacity = choir_partition_capacity(&loader->partition);
  const int64_t of_begun = choir_partition_capacity(&loader->begun);
  if (of_begun > capacity) capacity = of_begun;
  CHOIR_TRY(sizes_of(choir_dataset_x(loader->dataset), capacity,
                     &loader->x_sample_bytes, &loader->ring.x_bytes));
  CHOIR_TRY(sizes_of(choir_dataset_y(loader->dataset), capacity,
                     &loader->y_sample_bytes, &loader->ring.y_bytes));
  loader->ring.samples_bytes = (size_t)capacity * sizeof(int64_t);
  void* block;
  CHOIR_TRY(choir_allocate(loader->allocator,
                           (size_t)loader->config.prefetch * sizeof(slot_t),
                           "the loader's batches", &block));
  loader->ring.slots = block;
  loader->ring.count = loader->config.prefetch;
  for (int64_t i = 0; i < loader->ring.count; ++i) {
    CHOIR_TRY(make_slot(loader, &loader->ring.slots[i]));
  }
  return NULL;
}

static choir_status_t start(choir_loader_t* loader) {
  CHOIR_TRY(take_shares(loader));
  loader->on_host = choir_device_is_host(loader->device);
  if (!loader->on_host) {
    CHOIR_TRY(choir_stream_create(loader->device, CHOIR_STREAM_BACKGROUND,
                                  &loader->copies));
  }
  CHOIR_TRY(make_ring(loader));
  CHOIR_TRY(make_locks(loader));
  return start_thread(loader);
}

static void stop_thread(choir_loader_t* loader) {
  if (!loader->thread_runs) return;
  pthread_mutex_lock(&loader->mutex);
  loader->stop = true;
  pthread_cond_signal(&loader->work);
  pthread_mutex_unlock(&loader->mutex);
  pthread_join(loader->thread, NULL);
  loader->thread_runs = loader->stop = false;
}

static choir_status_t check_config(const choir_dataset_t* dataset, int32_t rank,
                                   int32_t size,
                                   const choir_loader_config_t* config,
                                   choir_partition_t* out_partition) {
  CHOIR_TRY(choir_struct_check(&choir_loader_config_def, config));
  *out_partition = (choir_partition_t){
      .sample_count = choir_dataset_count(dataset),
      .global_batch =
          config->global_batch ? config->global_batch : config->batch * size,
      .micro_shard = config->micro_shard,
      .rank = rank,
      .size = size,
  };
  if (size < 1) out_partition->global_batch = 1;  // size is the one to blame
  CHOIR_TRY_NOTE(choir_partition_check(out_partition), "loader");
  if (config->shuffle &&
      out_partition->global_batch > out_partition->sample_count) {
    if (config->global_batch) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "loader: the global batch of %lld samples for %d "
                         "workers is larger than the data set, which has %lld "
                         "samples",
                         (long long)config->global_batch, size,
                         (long long)out_partition->sample_count);
    }
    return CHOIR_ERROR(
        INVALID_ARGUMENT,
        "loader: a batch of %lld samples for each of %d workers is larger "
        "than the partition: %lld samples make %lld for a worker",
        (long long)config->batch, size, (long long)out_partition->sample_count,
        (long long)(out_partition->sample_count / size));
  }
  return NULL;
}

choir_status_t choir_loader_create(choir_dataset_t* dataset,
                                   choir_device_t* device, int32_t rank,
                                   int32_t size,
                                   const choir_loader_config_t* config,
                                   choir_loader_t** out_loader) {
  *out_loader = NULL;
  if (choir_process_is_forked_child()) {
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "loader: this process was forked after Choir had "
                       "started threads; start workers with exec");
  }
  choir_partition_t partition;
  CHOIR_TRY(check_config(dataset, rank, size, config, &partition));
  if (!config->shares && size > 1 &&
      partition.global_batch % (size * config->micro_shard) != 0) {
    choir_log(CHOIR_LOG_WARNING, "io",
              "loader: a global batch of %lld samples in micro-shards of %lld "
              "does not divide evenly over %d ranks",
              (long long)partition.global_batch, (long long)config->micro_shard,
              size);
  }
  choir_allocator_t allocator = choir_device_allocator(device);
  void* block;
  CHOIR_TRY(
      choir_allocate(allocator, sizeof(choir_loader_t), "a loader", &block));
  choir_loader_t* loader = block;
  loader->allocator = allocator;
  loader->config = *config;
  loader->partition = loader->begun = partition;
  loader->begun_epoch = -1;
  loader->dataset = dataset;
  choir_dataset_retain(dataset);
  loader->device = device;
  choir_device_retain(device);
  choir_status_t status = start(loader);
  if (status) {
    choir_loader_destroy(loader);
    return status;
  }
  *out_loader = loader;
  return NULL;
}

void choir_loader_destroy(choir_loader_t* loader) {
  if (!loader) return;
  // A forked child has no such thread, and the lock may be held for ever.
  if (choir_process_is_forked_child()) return;
  stop_thread(loader);
  choir_status_free(loader->failure);
  free_ring(loader, &loader->ring);
  free_ring(loader, &loader->lent);
  if (loader->shares) {
    choir_deallocate(loader->allocator, loader->shares, shares_bytes(loader));
  }
  if (loader->has_ready) pthread_cond_destroy(&loader->ready);
  if (loader->has_work) pthread_cond_destroy(&loader->work);
  if (loader->has_mutex) pthread_mutex_destroy(&loader->mutex);
  choir_stream_release(loader->copies);
  choir_dataset_release(loader->dataset);
  // Last: the memory of all this is the device's.
  choir_device_t* device = loader->device;
  choir_deallocate(loader->allocator, loader, sizeof *loader);
  choir_device_release(device);
}

// ---- Use ----

static choir_status_t refuse_fork(void) {
  if (!choir_process_is_forked_child()) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "loader: this process was forked after the loader was "
                     "made and has no loader thread");
}

choir_status_t choir_loader_next(choir_loader_t* loader,
                                 const choir_batch_t** out_batch) {
  *out_batch = NULL;
  CHOIR_TRY(refuse_fork());
  if (loader->lent.slots) {
    CHOIR_TRY(choir_stream_synchronize(choir_device_stream(loader->device)));
    free_ring(loader, &loader->lent);
  }

  pthread_mutex_lock(&loader->mutex);
  const bool in_hand = loader->recycled < loader->handed;
  slot_t* slot = &loader->ring.slots[loader->recycled % loader->ring.count];
  pthread_mutex_unlock(&loader->mutex);
  if (in_hand) {
    // Nobody else looks at this slot until it counts as recycled.
    CHOIR_TRY(
        choir_event_record(slot->event, choir_device_stream(loader->device)));
    slot->recorded = true;
  }

  choir_status_t status = NULL;
  pthread_mutex_lock(&loader->mutex);
  if (in_hand) {
    ++loader->recycled;
    pthread_cond_signal(&loader->work);
  }
  if (loader->position.step == steps_in(loader, loader->position.epoch)) {
    skip_end(loader, &loader->position);
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
  }
  struct timespec until;
  deadline_in(loader->config.deadline, &until);
  int error = 0;
  const choir_span_t span = choir_span_begin(CHOIR_SPAN_LOADER);
  while (loader->handed == loader->filled && !loader->failure && !error) {
    error = pthread_cond_timedwait(&loader->ready, &loader->mutex, &until);
  }
  choir_span_end(&span, "wait for a batch", NULL, NULL);
  if (loader->handed < loader->filled) {
    slot = &loader->ring.slots[loader->handed % loader->ring.count];
    ++loader->handed;
    ++loader->position.step;
    *out_batch = &slot->batch;
  } else if (loader->failure) {
    status = choir_status_clone(loader->failure);
  } else {
    status = CHOIR_ERROR(
        TIMEOUT,
        "loader: no batch for epoch %lld, step %lld within %g seconds: the "
        "compute stream has not finished with the %lld batches in memory",
        (long long)loader->position.epoch, (long long)loader->position.step,
        loader->config.deadline, (long long)loader->ring.count);
  }
  pthread_mutex_unlock(&loader->mutex);
  return status;
}

// Where the step begins.
static int64_t sample_at(const choir_partition_t* partition, int64_t step) {
  return step < choir_partition_steps(partition)
             ? choir_partition_step(partition, step).step_first
             : partition->sample_count;
}

choir_loader_position_t choir_loader_position(const choir_loader_t* loader) {
  choir_loader_position_t position = loader->position;
  position.sample =
      sample_at(partition_in(loader, position.epoch), position.step);
  return position;
}

static choir_status_t check_position(const choir_partition_t* partition,
                                     choir_loader_position_t position) {
  const int64_t steps = choir_partition_steps(partition);
  if (position.epoch < 0 || position.epoch > LAST_EPOCH ||
      position.step < partition->first_step || position.step > steps) {
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "loader: epoch %lld, step %lld; epochs are 0 to %lld, "
                       "steps %lld to %lld",
                       (long long)position.epoch, (long long)position.step,
                       (long long)LAST_EPOCH, (long long)partition->first_step,
                       (long long)steps);
  }
  return NULL;
}

// Of an epoch with steps of another global batch before this one.
static choir_status_t check_begun(const choir_partition_t* partition,
                                  choir_loader_position_t position) {
  choir_partition_t begun = *partition;
  begun.first_step = position.step;
  begun.first_sample = position.sample;
  if (position.step < 0 || position.sample > begun.sample_count ||
      position.step > position.sample)
    return CHOIR_ERROR(OUT_OF_RANGE,
                       "loader: step %lld cannot begin at sample %lld of %lld",
                       (long long)position.step, (long long)position.sample,
                       (long long)begun.sample_count);
  return check_position(&begun, position);
}

// The thread does not fill, or sees another number of seeks when it has.
static void go_to(choir_loader_t* loader, choir_loader_position_t position) {
  loader->position = position;
  skip_end(loader, &position);
  // What was filled ahead is dropped, and a fill under way will notice.
  ++loader->generation;
  loader->filled = loader->handed;
  loader->fill_position = position;
  choir_status_free(loader->failure);
  loader->failure = NULL;
  pthread_cond_signal(&loader->work);
}

// Whether its step does not begin there by the partition.
static bool is_begun(const choir_partition_t* partition,
                     choir_loader_position_t position) {
  return position.sample > 0 &&
         (position.step > choir_partition_steps(partition) ||
          position.sample != sample_at(partition, position.step));
}

// With batches of other sizes. What can be wrong with them was looked at.
static choir_status_t restart(choir_loader_t* loader,
                              const choir_partition_t* partition,
                              choir_loader_position_t position) {
  CHOIR_TRY(choir_stream_synchronize(choir_device_stream(loader->device)));
  stop_thread(loader);
  // Else the caller has a batch of a ring before, or none.
  if (loader->handed > loader->recycled) {
    free_ring(loader, &loader->lent);
    loader->lent = loader->ring;
    loader->ring = (ring_t){0};
  }
  free_ring(loader, &loader->ring);
  loader->filled = loader->handed = loader->recycled = 0;
  if (loader->shares && !partition->shares) {
    choir_deallocate(loader->allocator, loader->shares, shares_bytes(loader));
    loader->shares = NULL;
  }
  loader->partition = loader->begun = *partition;
  loader->begun_epoch = -1;
  if (is_begun(partition, position)) {
    loader->begun.first_step = position.step;
    loader->begun.first_sample = position.sample;
    loader->begun_epoch = position.epoch;
  }
  CHOIR_TRY(make_ring(loader));
  go_to(loader, position);
  return start_thread(loader);
}

choir_status_t choir_loader_seek(choir_loader_t* loader,
                                 choir_loader_position_t position) {
  CHOIR_TRY(refuse_fork());
  const choir_partition_t partition = loader->partition;
  // An epoch from its start on has no other steps.
  const bool is_whole = position.step == 0 && position.sample == 0;
  if (is_whole && position.epoch >= 0 && position.epoch == loader->begun_epoch)
    return restart(loader, &partition, position);
  if (is_begun(partition_in(loader, position.epoch), position)) {
    CHOIR_TRY(check_begun(&partition, position));
    return restart(loader, &partition, position);
  }
  CHOIR_TRY(check_position(partition_in(loader, position.epoch), position));
  pthread_mutex_lock(&loader->mutex);
  go_to(loader, position);
  pthread_mutex_unlock(&loader->mutex);
  return NULL;
}

choir_status_t choir_loader_follow(choir_loader_t* loader, int32_t rank,
                                   int32_t size, int64_t global_batch,
                                   choir_loader_position_t position) {
  CHOIR_TRY(refuse_fork());
  choir_loader_config_t config = loader->config;
  config.global_batch =
      global_batch ? global_batch : loader->partition.global_batch;
  choir_partition_t partition;
  CHOIR_TRY(check_config(loader->dataset, rank, size, &config, &partition));
  CHOIR_TRY(is_begun(&partition, position)
                ? check_begun(&partition, position)
                : check_position(&partition, position));
  return restart(loader, &partition, position);
}

int64_t choir_loader_steps(const choir_loader_t* loader) {
  return steps_in(loader, loader->position.epoch);
}

const choir_partition_t* choir_loader_partition(const choir_loader_t* loader) {
  return &loader->partition;
}

int64_t choir_loader_seed(const choir_loader_t* loader) {
  return loader->config.seed;
}

choir_dataset_t* choir_loader_dataset(const choir_loader_t* loader) {
  return loader->dataset;
}
