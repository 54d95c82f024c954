// SPDX-License-Identifier: Apache-2.0
#include "core/profile.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator.h"
#include "core/callback.h"
#include "core/clock_internal.h"
#include "core/device_backend.h"
#include "core/random.h"

enum {
  DEFAULT_ROWS = 1024,
  MAX_ROWS = 16384,  // rows are numbered in 16 bits
  MAX_THREADS = 64,
  LINE_BYTES = 512,
};

typedef struct profile_event_s {
  double start;
  double seconds;
  int16_t row;
  int16_t thread;  // index into threads
} profile_event_t;

typedef struct profile_thread_s {
  uint32_t number;  // own_number of the thread
  char name[16];
} profile_thread_t;

struct choir_profile_s {
  choir_allocator_t allocator;
  // Found by name and label through `slots` (open addressing; -1: free).
  choir_profile_row_t* rows;
  int16_t* slots;
  int16_t* order;  // for _rows
  int32_t row_count;
  int32_t max_rows;
  uint32_t slot_count;  // a power of two
  profile_event_t* events;
  int64_t event_count;
  int64_t max_events;
  int64_t lost_events;
  bool keeps_events;
  profile_thread_t threads[MAX_THREADS];
  int32_t thread_count;
  uint32_t starter;  // number of the thread that called start
  bool runs;
  double started;
  double seconds;  // of earlier runs
  // Of the starter's spans, without those nested in them.
  double self_seconds[CHOIR_SPAN_KIND_COUNT];
};

// Everything below `active` is under the lock.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(choir_profile_t*) active;
static atomic_uint thread_numbers;

static _Thread_local uint32_t own_number;  // 0: none yet
// Spans that ended inside the innermost open one that is no phase.
static _Thread_local double nested;

static uint32_t number_of_thread(void) {
  if (!own_number) own_number = atomic_fetch_add(&thread_numbers, 1) + 1;
  return own_number;
}

// ---- Life ----

void choir_profile_destroy(choir_profile_t* profile) {
  if (!profile) return;
  choir_profile_stop(profile);
  const choir_allocator_t allocator = profile->allocator;
  const size_t rows = (size_t)profile->max_rows;
  choir_deallocate(allocator, profile->rows, rows * sizeof(*profile->rows));
  choir_deallocate(allocator, profile->order, rows * sizeof(*profile->order));
  choir_deallocate(allocator, profile->slots,
                   profile->slot_count * sizeof(*profile->slots));
  choir_deallocate(allocator, profile->events,
                   (size_t)profile->max_events * sizeof(*profile->events));
  choir_deallocate(allocator, profile, sizeof(*profile));
}

static choir_status_t take_memory(choir_profile_t* profile) {
  const choir_allocator_t allocator = profile->allocator;
  const size_t rows = (size_t)profile->max_rows;
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(allocator, rows * sizeof(*profile->rows),
                           "a profile's rows", &memory));
  profile->rows = memory;
  CHOIR_TRY(choir_allocate(allocator, rows * sizeof(*profile->order),
                           "a profile's rows", &memory));
  profile->order = memory;
  CHOIR_TRY(choir_allocate(allocator,
                           profile->slot_count * sizeof(*profile->slots),
                           "a profile's rows", &memory));
  profile->slots = memory;
  memset(profile->slots, -1, profile->slot_count * sizeof(*profile->slots));
  if (profile->max_events == 0) return NULL;
  CHOIR_TRY(choir_allocate(
      allocator, (size_t)profile->max_events * sizeof(*profile->events),
      "a profile's events", &memory));
  profile->events = memory;
  return NULL;
}

choir_status_t choir_profile_create(const choir_profile_options_t* options,
                                    choir_profile_t** out_profile) {
  *out_profile = NULL;
  choir_profile_options_t chosen = {0};
  if (options) chosen = *options;
  if (chosen.max_rows < 0 || chosen.max_rows > MAX_ROWS ||
      chosen.max_events < 0 || chosen.max_events > INT64_MAX / 64) {
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "choir_profile_create: %d rows and %lld events; needs 0 "
                       "to %d rows and at least 0 events",
                       chosen.max_rows, (long long)chosen.max_events, MAX_ROWS);
  }
  if (chosen.max_rows == 0) chosen.max_rows = DEFAULT_ROWS;
  if (!chosen.allocator.alloc) chosen.allocator = choir_allocator_default();
  void* memory = NULL;
  CHOIR_TRY(choir_allocate(chosen.allocator, sizeof(choir_profile_t),
                           "a profile", &memory));
  choir_profile_t* profile = memory;
  profile->allocator = chosen.allocator;
  profile->max_rows = chosen.max_rows;
  profile->max_events = chosen.max_events;
  profile->slot_count = 1;
  while (profile->slot_count < 2 * (uint32_t)chosen.max_rows)
    profile->slot_count *= 2;
  choir_status_t status = take_memory(profile);
  if (status) {
    choir_profile_destroy(profile);
    return status;
  }
  *out_profile = profile;
  return NULL;
}

choir_status_t choir_profile_start(choir_profile_t* profile) {
  CHOIR_TRY(choir__check_not_forked("choir_profile_start"));
  pthread_mutex_lock(&lock);
  const bool is_free = !atomic_load(&active);
  if (is_free) {
    profile->starter = number_of_thread();
    profile->runs = true;
    profile->started = choir_clock_seconds();
    atomic_store(&active, profile);
  }
  pthread_mutex_unlock(&lock);
  if (is_free) return NULL;
  return CHOIR_ERROR(FAILED_PRECONDITION,
                     "choir_profile_start: a profile runs already; stop it "
                     "first");
}

void choir_profile_stop(choir_profile_t* profile) {
  if (!profile->runs || choir_process_is_forked_child()) return;
  pthread_mutex_lock(&lock);
  atomic_store(&active, NULL);
  profile->runs = false;
  profile->seconds += choir_clock_seconds() - profile->started;
  pthread_mutex_unlock(&lock);
}

void choir_profile_reset(choir_profile_t* profile) {
  if (choir_process_is_forked_child()) return;
  pthread_mutex_lock(&lock);
  // Events refer to rows, so these stay.
  for (int32_t i = 0; i < profile->row_count; ++i) {
    choir_profile_row_t* row = &profile->rows[i];
    row->calls = 0;
    row->seconds = row->min_seconds = row->max_seconds = 0;
    row->cost = (choir_cost_t){0, 0};
  }
  profile->seconds = 0;
  memset(profile->self_seconds, 0, sizeof(profile->self_seconds));
  profile->started = choir_clock_seconds();
  pthread_mutex_unlock(&lock);
}

void choir_profile_keep_events(choir_profile_t* profile, bool keep) {
  if (choir_process_is_forked_child()) return;
  pthread_mutex_lock(&lock);
  profile->keeps_events = keep;
  pthread_mutex_unlock(&lock);
}

// ---- Spans ----

static bool is_text(const char text[CHOIR_PROFILE_TEXT_BYTES],
                    const char* other) {
  return strncmp(text, other, CHOIR_PROFILE_TEXT_BYTES - 1) == 0;
}

static void set_text(char text[CHOIR_PROFILE_TEXT_BYTES], const char* from) {
  memcpy(text, from, strnlen(from, CHOIR_PROFILE_TEXT_BYTES - 1));
}

static uint64_t hash_text(uint64_t hash, const char* text) {
  return choir_hash_bytes(hash, text,
                          strnlen(text, CHOIR_PROFILE_TEXT_BYTES - 1));
}

static int16_t find_row(choir_profile_t* profile, choir_span_kind_t kind,
                        bool beside, const char* name, const char* label) {
  uint64_t hash = hash_text(hash_text(CHOIR_HASH_START, name), label);
  for (uint32_t slot = (uint32_t)hash;; ++slot) {
    int16_t* place = &profile->slots[slot & (profile->slot_count - 1)];
    if (*place < 0) {
      // The last row is for all that came too late.
      const int32_t last = profile->max_rows - 1;
      if (profile->row_count > last) return (int16_t)last;
      const bool is_last = profile->row_count == last;
      choir_profile_row_t* row = &profile->rows[profile->row_count];
      set_text(row->name, is_last ? "others" : name);
      if (!is_last) set_text(row->label, label);
      row->kind = is_last ? CHOIR_SPAN_OP : kind;
      row->beside = beside;
      *place = (int16_t)profile->row_count++;
      return *place;
    }
    const choir_profile_row_t* row = &profile->rows[*place];
    if (row->kind == kind && row->beside == beside &&
        is_text(row->name, name) && is_text(row->label, label))
      return *place;
  }
}

static int16_t find_thread(choir_profile_t* profile, uint32_t number) {
  for (int32_t i = 0; i < profile->thread_count; ++i)
    if (profile->threads[i].number == number) return (int16_t)i;
  if (profile->thread_count == MAX_THREADS) return MAX_THREADS - 1;
  profile_thread_t* thread = &profile->threads[profile->thread_count];
  thread->number = number;
  if (number == profile->starter ||
      pthread_getname_np(pthread_self(), thread->name, sizeof(thread->name)))
    snprintf(thread->name, sizeof(thread->name), "main");
  return (int16_t)profile->thread_count++;
}

// Under the lock. inner: seconds of the spans nested in it.
static void add(choir_profile_t* profile, const choir_span_t* span, double end,
                double inner, const char* name, const char* label,
                const choir_cost_t* cost) {
  const uint32_t number = number_of_thread();
  const bool beside = number != profile->starter;
  const double seconds = end - span->start;
  const int16_t index = find_row(profile, span->kind, beside, name, label);
  choir_profile_row_t* row = &profile->rows[index];
  if (row->calls == 0 || seconds < row->min_seconds) row->min_seconds = seconds;
  if (seconds > row->max_seconds) row->max_seconds = seconds;
  ++row->calls;
  row->seconds += seconds;
  if (cost) {
    row->cost.flops += cost->flops;
    row->cost.bytes += cost->bytes;
  }
  if (!beside && span->kind != CHOIR_SPAN_PHASE)
    profile->self_seconds[span->kind] += seconds - inner;
  if (!profile->keeps_events) return;
  if (profile->event_count == profile->max_events) {
    ++profile->lost_events;
    return;
  }
  profile->events[profile->event_count++] =
      (profile_event_t){.start = span->start,
                        .seconds = seconds,
                        .row = index,
                        .thread = find_thread(profile, number)};
}

choir_span_t choir_span_begin(choir_span_kind_t kind) {
  choir_span_t span = {.start = -1, .kind = kind};
  if (!atomic_load_explicit(&active, memory_order_relaxed)) return span;
  span.nested_before = nested;
  if (kind != CHOIR_SPAN_PHASE) nested = 0;
  span.start = choir_clock_seconds();
  return span;
}

void choir_span_end(const choir_span_t* span, const char* name,
                    const char* label, const choir_cost_t* cost) {
  if (span->start < 0) return;
  const double end = choir_clock_seconds();
  const double inner = nested;
  if (span->kind != CHOIR_SPAN_PHASE)
    nested = span->nested_before + (end - span->start);
  // In a forked child the lock may be held by a thread that is not there.
  if (choir_process_is_forked_child()) return;
  pthread_mutex_lock(&lock);
  choir_profile_t* profile = atomic_load(&active);
  if (profile && span->start >= profile->started)
    add(profile, span, end, inner, name ? name : "?", label ? label : "", cost);
  pthread_mutex_unlock(&lock);
}

static choir_status_t run_kernel(const choir_record_t* record,
                                 choir_stream_t* stream) {
  choir_status_t status = record->kernel->run(record, stream);
  for (int32_t i = 0; i < record->dst_count; ++i)
    choir__buffer_wrote(choir_record_dst(record, i)->buffer);
  return status;
}

choir_status_t choir__record_run(const choir_record_t* record,
                                 choir_stream_t* stream) {
  const choir_kernel_t* kernel = record->kernel;
  if (!atomic_load_explicit(&active, memory_order_relaxed))
    return run_kernel(record, stream);
  const choir_cost_t cost = choir_record_cost(record);
  const choir_span_t span =
      choir_span_begin(kernel->communicates ? CHOIR_SPAN_COMM : CHOIR_SPAN_OP);
  choir_status_t status = run_kernel(record, stream);
  choir_span_end(&span, kernel->name, record->label, &cost);
  return status;
}

// ---- Results ----

choir_profile_totals_t choir_profile_totals(const choir_profile_t* profile) {
  choir_profile_totals_t totals = {
      .seconds = profile->seconds,
      .outside_seconds = profile->seconds,
      .events = profile->event_count,
      .lost_events = profile->lost_events,
  };
  for (int kind = 0; kind < CHOIR_SPAN_KIND_COUNT; ++kind) {
    totals.self_seconds[kind] = profile->self_seconds[kind];
    totals.outside_seconds -= profile->self_seconds[kind];
  }
  for (int64_t i = 0; i < profile->event_count; ++i)
    if (i == 0 || profile->events[i].start < totals.first_seconds)
      totals.first_seconds = profile->events[i].start;
  return totals;
}

// Whether row a stands in front of row b.
static bool comes_first(const choir_profile_row_t* a,
                        const choir_profile_row_t* b) {
  if (a->seconds != b->seconds) return a->seconds > b->seconds;
  int order = strcmp(a->name, b->name);
  if (order == 0) order = strcmp(a->label, b->label);
  return order < 0;
}

size_t choir_profile_rows(choir_profile_t* profile,
                          choir_profile_row_t* out_rows) {
  size_t count = 0;
  for (int32_t i = 0; i < profile->row_count; ++i) {
    if (profile->rows[i].calls == 0) continue;
    size_t place = count++;
    for (; place > 0; --place) {
      const int16_t before = profile->order[place - 1];
      if (!comes_first(&profile->rows[i], &profile->rows[before])) break;
      profile->order[place] = before;
    }
    profile->order[place] = (int16_t)i;
  }
  for (size_t i = 0; out_rows && i < count; ++i)
    out_rows[i] = profile->rows[profile->order[i]];
  return count;
}

// ---- Text ----

typedef struct output_s {
  choir_text_writer_t writer;
  void* self;
} output_t;

static CHOIR_PRINTF(2, 3) choir_status_t
    put(const output_t* output, const char* format, ...) {
  char line[LINE_BYTES];
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  const size_t bytes = length < LINE_BYTES ? (size_t)length : LINE_BYTES - 1;
  return output->writer(output->self, line, bytes);
}

static choir_status_t put_op(const output_t* output,
                             const choir_profile_row_t* row, double whole) {
  char share[16] = "beside";
  if (!row->beside)
    snprintf(share, sizeof(share), "%.1f%%",
             whole > 0 ? 100 * row->seconds / whole : 0);
  CHOIR_TRY(put(output, "%-31s %-21.21s %7lld %10.2f %10.1f %10.1f %10.1f %7s",
                row->name, row->label, (long long)row->calls,
                1e3 * row->seconds, 1e6 * row->seconds / (double)row->calls,
                1e6 * row->min_seconds, 1e6 * row->max_seconds, share));
  if (row->cost.bytes > 0 && row->seconds > 0)
    CHOIR_TRY(put(output, " %8.1f %7.1f", 1e-9 * row->cost.flops / row->seconds,
                  1e-9 * row->cost.bytes / row->seconds));
  return put(output, "\n");
}

static choir_status_t put_phases(const choir_profile_t* profile, size_t count,
                                 const output_t* output) {
  for (size_t i = 0; i < count; ++i) {
    const choir_profile_row_t* row = &profile->rows[profile->order[i]];
    if (row->kind == CHOIR_SPAN_PHASE)
      CHOIR_TRY(put(output, "%s: %.6f s each, %lld times, %.6f s\n", row->name,
                    row->seconds / (double)row->calls, (long long)row->calls,
                    row->seconds));
  }
  return NULL;
}

choir_status_t choir_text_writer_callback(void* self, const char* text,
                                          size_t bytes) {
  void* const arguments[] = {(void*)text, (void*)(uintptr_t)bytes};
  return choir_callback_run(self, arguments);
}

choir_status_t choir_profile_print(choir_profile_t* profile,
                                   choir_profile_detail_t detail,
                                   choir_text_writer_t writer, void* self) {
  const output_t output = {writer, self};
  if (detail == CHOIR_PROFILE_NOTHING) return NULL;
  const size_t count = choir_profile_rows(profile, NULL);
  CHOIR_TRY(put(&output, "Time Profiling:\n"));
  CHOIR_TRY(put_phases(profile, count, &output));
  if (detail == CHOIR_PROFILE_PHASES) return NULL;
  const choir_profile_totals_t totals = choir_profile_totals(profile);
  CHOIR_TRY(put(&output, "%-31s %-21s %7s %10s %10s %10s %10s %7s %8s %7s\n",
                "op", "of", "calls", "total ms", "mean us", "min us", "max us",
                "share", "GFLOP/s", "GB/s"));
  for (size_t i = 0; i < count; ++i) {
    const choir_profile_row_t* row = &profile->rows[profile->order[i]];
    if (row->kind != CHOIR_SPAN_PHASE)
      CHOIR_TRY(put_op(&output, row, totals.seconds));
  }
  return put(
      &output, "%-31s %-21s %7s %10.2f %43.1f%%\n%-31s %-21s %7s %10.2f\n",
      "outside of these", "", "", 1e3 * totals.outside_seconds,
      totals.seconds > 0 ? 100 * totals.outside_seconds / totals.seconds : 0,
      "all", "", "", 1e3 * totals.seconds);
}

// ---- Events ----

// `text` as the inside of a JSON string; cut where it does not fit.
static const char* escape(const char* text, char* out, size_t bytes) {
  size_t used = 0;
  for (; *text && used + 7 < bytes; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c >= 0x7f) {
      used += (size_t)snprintf(out + used, bytes - used, "\\u%04x", c);
    } else {
      if (c == '"' || c == '\\') out[used++] = '\\';
      out[used++] = (char)c;
    }
  }
  out[used] = 0;
  return out;
}

static const char* const kind_names[CHOIR_SPAN_KIND_COUNT] = {
    [CHOIR_SPAN_OP] = "op",       [CHOIR_SPAN_COMM] = "comm",
    [CHOIR_SPAN_WAIT] = "wait",   [CHOIR_SPAN_LOADER] = "loader",
    [CHOIR_SPAN_PHASE] = "phase",
};

typedef char escaped_t[6 * CHOIR_PROFILE_TEXT_BYTES];

static choir_status_t put_event(const choir_profile_t* profile,
                                const profile_event_t* event, int32_t process,
                                double zero, const output_t* output) {
  const choir_profile_row_t* row = &profile->rows[event->row];
  escaped_t text;
  CHOIR_TRY(put(output, ",\n{\"name\":\"%s\",\"cat\":\"%s\",",
                escape(row->name, text, sizeof(text)), kind_names[row->kind]));
  CHOIR_TRY(put(output,
                "\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
                process, event->thread, 1e6 * (event->start - zero),
                1e6 * event->seconds));
  if (row->label[0])
    CHOIR_TRY(put(output, ",\"args\":{\"of\":\"%s\"}",
                  escape(row->label, text, sizeof(text))));
  return put(output, "}");
}

choir_status_t choir_profile_write_events(const choir_profile_t* profile,
                                          int32_t process,
                                          const char* process_name, double zero,
                                          choir_text_writer_t writer,
                                          void* self) {
  const output_t output = {writer, self};
  escaped_t text;
  CHOIR_TRY(put(&output,
                "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,"
                "\"args\":{\"name\":\"%s\"}}",
                process, escape(process_name, text, sizeof(text))));
  CHOIR_TRY(put(&output,
                ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,"
                "\"args\":{\"sort_index\":%d}}",
                process, process));
  if (profile->lost_events)
    CHOIR_TRY(put(&output,
                  ",\n{\"name\":\"process_labels\",\"ph\":\"M\",\"pid\":%d,"
                  "\"args\":{\"labels\":\"%lld spans had no room\"}}",
                  process, (long long)profile->lost_events));
  for (int32_t i = 0; i < profile->thread_count; ++i)
    CHOIR_TRY(put(&output,
                  ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,"
                  "\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                  process, i,
                  escape(profile->threads[i].name, text, sizeof(text))));
  for (int64_t i = 0; i < profile->event_count; ++i)
    CHOIR_TRY(put_event(profile, &profile->events[i], process, zero, &output));
  return NULL;
}
