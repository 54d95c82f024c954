// SPDX-License-Identifier: Apache-2.0
#include "core/device/stream_thread.h"

#include <pthread.h>
#include <string.h>

#include "core/log.h"
#include "core/record_list_internal.h"
#include "core/status_backend.h"
#include "core/thread_backend.h"

// Every piece of work has a number in its queue, 1, 2, 3, ...; `completed` is
// the number of the last one that is done. So an event needs nothing in the
// queue: it is the pair (queue, number of the last piece submitted), and it is
// reached when `completed` is there. Pairs only point to work that was
// submitted before them, so waits among queues can form no cycle.

// What outlives the queue, as long as a mark refers to it.
typedef struct choir_queue_progress_s {
  atomic_int ref_count;
  choir_allocator_t allocator;
  atomic_uint_fast64_t completed;  // written under the lock
  pthread_mutex_t lock;            // also of the queue
  pthread_cond_t moved;            // completed grew
} choir_queue_progress_t;

typedef struct queue_item_s {
  struct queue_item_s* next;
  uint64_t sequence;
  size_t bytes;             // of this block
  bool is_wait;             // for `mark`; else runs `record`
  choir_queue_mark_t mark;  // retained
  choir_record_t record;    // a clone; its block follows this struct
} queue_item_t;

// Keeps the clone's block after the item aligned.
enum { ITEM_HEADER = (sizeof(queue_item_t) + 15) / 16 * 16 };

struct choir_stream_thread_s {
  choir_allocator_t allocator;
  choir_stream_t* stream;
  choir_queue_pace_t pace;
  void* pace_self;
  pthread_t thread;
  choir_queue_progress_t* progress;

  // Under progress->lock:
  pthread_cond_t arrived;  // an item, or is_stopping
  queue_item_t* first;
  queue_item_t* last;
  uint64_t submitted;
  bool is_stopping;
  // The first failure that nobody has been told. Pieces up to skip_through do
  // not run: all that come while the failure stands, and, once it was told,
  // those that were in the queue by then, since whoever submitted them did not
  // know.
  choir_status_t failure;
  uint64_t skip_through;
};

// ---- Progress and marks ----

static void progress_release(choir_queue_progress_t* progress) {
  if (!progress || atomic_fetch_sub_explicit(&progress->ref_count, 1,
                                             memory_order_acq_rel) != 1)
    return;
  pthread_cond_destroy(&progress->moved);
  pthread_mutex_destroy(&progress->lock);
  choir_deallocate(progress->allocator, progress, sizeof(*progress));
}

static void mark_copy(choir_queue_mark_t* to, const choir_queue_mark_t* from) {
  if (from->progress) {
    atomic_fetch_add_explicit(&from->progress->ref_count, 1,
                              memory_order_relaxed);
  }
  *to = *from;
}

void choir__queue_mark_clear(choir_queue_mark_t* mark) {
  progress_release(mark->progress);
  *mark = (choir_queue_mark_t){NULL, 0};
}

bool choir__queue_mark_is_reached(const choir_queue_mark_t* mark) {
  return !mark->progress ||
         atomic_load_explicit(&mark->progress->completed,
                              memory_order_acquire) >= mark->sequence;
}

// The queue that this thread runs; NULL on the program's own threads.
static _Thread_local const choir_queue_progress_t* own_progress;

choir_status_t choir__queue_mark_wait(const choir_queue_mark_t* mark) {
  if (choir__queue_mark_is_reached(mark)) return NULL;
  if (mark->progress == own_progress) {
    return CHOIR_ERROR(FAILED_PRECONDITION,
                       "choir_stream_synchronize: a record waits for its own "
                       "stream; needs to return first");
  }
  pthread_mutex_lock(&mark->progress->lock);
  while (!choir__queue_mark_is_reached(mark))
    pthread_cond_wait(&mark->progress->moved, &mark->progress->lock);
  pthread_mutex_unlock(&mark->progress->lock);
  return NULL;
}

// ---- The thread ----

static void item_free(choir_stream_thread_t* thread, queue_item_t* item) {
  choir_deallocate(thread->allocator, item, item->bytes);
}

// Runs one piece, and lets go of what it held before it counts as done, so
// that after a synchronize the operands' memory is back.
static choir_status_t run_item(choir_stream_thread_t* thread,
                               queue_item_t* item, bool skip) {
  choir_status_t status = NULL;
  if (thread->pace) thread->pace(thread->pace_self, item->sequence - 1);
  if (item->is_wait) {
    // Waits hold even while records are skipped: what follows this queue's
    // events may rely on the order.
    status = choir__queue_mark_wait(&item->mark);
    choir__queue_mark_clear(&item->mark);
  } else {
    if (!skip) {
      status = choir__record_run(&item->record, thread->stream);
      if (status) {
        status = choir__status_mark_deferred(choir_status_annotate(
            status, __FILE__, __LINE__, "submitted earlier, %s%s%s",
            choir_record_name(&item->record), item->record.label ? " of " : "",
            item->record.label ? item->record.label : ""));
      }
    }
    choir__record_drop(&item->record);
  }
  item_free(thread, item);
  return status;
}

static void* run_thread(void* self) {
  choir_stream_thread_t* thread = self;
  choir_queue_progress_t* progress = thread->progress;
  choir__device_thread_begin();
  own_progress = progress;
  pthread_mutex_lock(&progress->lock);
  for (;;) {
    while (!thread->first && !thread->is_stopping)
      pthread_cond_wait(&thread->arrived, &progress->lock);
    queue_item_t* item = thread->first;
    if (!item) break;
    thread->first = item->next;
    if (!thread->first) thread->last = NULL;
    // Nobody but this thread raises skip_through above what is queued.
    bool skip = item->sequence <= thread->skip_through;
    uint64_t sequence = item->sequence;
    pthread_mutex_unlock(&progress->lock);

    choir_status_t status = run_item(thread, item, skip);

    pthread_mutex_lock(&progress->lock);
    if (status) {
      thread->failure = choir_status_join(thread->failure, status);
      thread->skip_through = UINT64_MAX;
    }
    atomic_store_explicit(&progress->completed, sequence, memory_order_release);
    pthread_cond_broadcast(&progress->moved);
  }
  pthread_mutex_unlock(&progress->lock);
  return NULL;
}

// The failure, if there is one; the queue works again after it. Under the
// lock.
static choir_status_t take_failure(choir_stream_thread_t* thread) {
  choir_status_t failure = thread->failure;
  if (failure) {
    thread->failure = NULL;
    thread->skip_through = thread->submitted;
  }
  return failure;
}

static choir_status_t start_thread(choir_stream_thread_t* thread) {
  CHOIR_TRY_NOTE(
      choir__thread_start("choir-stream", run_thread, thread, &thread->thread),
      "choir_stream_create");
  return NULL;
}

choir_status_t choir__stream_thread_create(choir_allocator_t allocator,
                                           choir_stream_t* stream,
                                           choir_queue_pace_t pace,
                                           void* pace_self,
                                           choir_stream_thread_t** out_thread) {
  *out_thread = NULL;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, sizeof(choir_stream_thread_t),
                           "choir_stream_create", &memory));
  choir_stream_thread_t* thread = memory;
  choir_status_t status =
      choir_allocate(allocator, sizeof(choir_queue_progress_t),
                     "choir_stream_create", &memory);
  if (status) {
    choir_deallocate(allocator, thread, sizeof(*thread));
    return status;
  }
  choir_queue_progress_t* progress = memory;
  atomic_init(&progress->ref_count, 1);
  atomic_init(&progress->completed, 0);
  progress->allocator = allocator;
  // On Linux these cannot fail: they only write to the struct.
  pthread_mutex_init(&progress->lock, NULL);
  pthread_cond_init(&progress->moved, NULL);
  pthread_cond_init(&thread->arrived, NULL);
  thread->allocator = allocator;
  thread->stream = stream;
  thread->pace = pace;
  thread->pace_self = pace_self;
  thread->progress = progress;
  status = start_thread(thread);
  if (status) {
    pthread_cond_destroy(&thread->arrived);
    progress_release(progress);
    choir_deallocate(allocator, thread, sizeof(*thread));
    return status;
  }
  *out_thread = thread;
  return NULL;
}

void choir__stream_thread_destroy(choir_stream_thread_t* thread) {
  if (!thread) return;
  pthread_mutex_lock(&thread->progress->lock);
  thread->is_stopping = true;
  pthread_cond_signal(&thread->arrived);
  pthread_mutex_unlock(&thread->progress->lock);
  pthread_join(thread->thread, NULL);
  if (thread->failure) {
    choir_log(CHOIR_LOG_WARNING, "core",
              "a stream was released with a failure that nobody asked for: %s",
              choir_status_message(thread->failure));
    choir_status_free(thread->failure);
  }
  pthread_cond_destroy(&thread->arrived);
  progress_release(thread->progress);
  choir_deallocate(thread->allocator, thread, sizeof(*thread));
}

static choir_status_t make_item(choir_stream_thread_t* thread, size_t bytes,
                                queue_item_t** out_item) {
  // From the device's pool, so that a steady program goes round in the same
  // few blocks. Not cleared beyond the header: records are copied in.
  bytes += ITEM_HEADER;
  queue_item_t* item = thread->allocator.alloc(thread->allocator.self, bytes,
                                               _Alignof(max_align_t));
  *out_item = item;
  if (!item) {
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "choir_stream_submit: %zu bytes asked for a place in "
                       "the queue; the allocator has none left",
                       bytes);
  }
  memset(item, 0, sizeof(*item));
  item->bytes = bytes;
  return NULL;
}

// Under the lock.
static void push_item(choir_stream_thread_t* thread, queue_item_t* item) {
  item->sequence = ++thread->submitted;
  if (thread->last) {
    thread->last->next = item;
  } else {
    thread->first = item;
  }
  thread->last = item;
  pthread_cond_signal(&thread->arrived);
}

choir_status_t choir__stream_thread_submit(choir_stream_thread_t* thread,
                                           const choir_record_t* record) {
  queue_item_t* item = NULL;
  CHOIR_TRY(make_item(thread, choir__record_clone_bytes(record), &item));
  choir__record_clone(record, (char*)item + ITEM_HEADER, &item->record);
  pthread_mutex_lock(&thread->progress->lock);
  choir_status_t failure = take_failure(thread);
  if (!failure) push_item(thread, item);
  pthread_mutex_unlock(&thread->progress->lock);
  if (failure) {
    choir__record_drop(&item->record);
    item_free(thread, item);
  }
  return failure;
}

choir_status_t choir__stream_thread_synchronize(choir_stream_thread_t* thread) {
  choir_queue_progress_t* progress = thread->progress;
  pthread_mutex_lock(&progress->lock);
  choir_queue_mark_t mark = {progress, thread->submitted};
  pthread_mutex_unlock(&progress->lock);
  CHOIR_TRY(choir__queue_mark_wait(&mark));
  pthread_mutex_lock(&progress->lock);
  choir_status_t failure = take_failure(thread);
  pthread_mutex_unlock(&progress->lock);
  return failure;
}

void choir__stream_thread_mark(choir_stream_thread_t* thread,
                               choir_queue_mark_t* mark) {
  pthread_mutex_lock(&thread->progress->lock);
  choir_queue_mark_t now = {thread->progress, thread->submitted};
  pthread_mutex_unlock(&thread->progress->lock);
  choir__queue_mark_clear(mark);
  mark_copy(mark, &now);
}

choir_status_t choir__stream_thread_wait_mark(choir_stream_thread_t* thread,
                                              const choir_queue_mark_t* mark) {
  // Also true for marks of this very queue once their work is done; before
  // that, order alone keeps the promise.
  if (mark->progress == thread->progress || choir__queue_mark_is_reached(mark))
    return NULL;
  queue_item_t* item = NULL;
  CHOIR_TRY(make_item(thread, 0, &item));
  item->is_wait = true;
  mark_copy(&item->mark, mark);
  pthread_mutex_lock(&thread->progress->lock);
  push_item(thread, item);
  pthread_mutex_unlock(&thread->progress->lock);
  return NULL;
}
