// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_PROFILE_H_
#define CHOIR_CORE_PROFILE_H_

#include "core/memory.h"
#include "core/record.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where the time goes. A running profile hears of every record of every stream
// of the process, timed on the thread and at the moment where it executes (a
// stage would see when it was submitted), and of spans that layers and programs
// mark: a wait for a peer, a batch being filled. It keeps a table with one row
// for each name and label, and the single spans where it is told to.
//
//   choir_profile_t* profile;
//   CHOIR_TRY(choir_profile_create(NULL, &profile));
//   CHOIR_TRY(choir_profile_start(profile));
//   ... work; synchronize the streams ...
//   choir_profile_stop(profile);
//   CHOIR_TRY(choir_profile_print(profile, CHOIR_PROFILE_OPS, writer, file));
//
// Work on a device that computes elsewhere is timed as its kernel's call. One
// profile runs at a time; where none does, a record costs one load more. All
// memory is taken by _create.
//
// Ownership: unique. Threads: spans come from any thread; the calls on a
// profile from one thread at a time.

typedef struct choir_profile_s choir_profile_t;

typedef struct choir_profile_options_s {
  int32_t max_rows;    // 0: 1024; what does not fit is in the row "others"
  int64_t max_events;  // single spans kept; those after them are counted only
  choir_allocator_t allocator;  // all zeros: the process default
} choir_profile_options_t;

// options NULL: the defaults, no events.
CHOIR_API choir_status_t choir_profile_create(
    const choir_profile_options_t* options, choir_profile_t** out_profile)
    CHOIR_NODISCARD;
// Stops it first. NULL is allowed.
CHOIR_API void choir_profile_destroy(choir_profile_t* profile);

// From now on spans that begin are noted; the caller's thread is the one whose
// time outside of spans is told. FAILED_PRECONDITION while a profile runs.
CHOIR_API choir_status_t choir_profile_start(choir_profile_t* profile)
    CHOIR_NODISCARD;
// Spans that did not end by now are lost. The profile may be started again and
// goes on adding.
CHOIR_API void choir_profile_stop(choir_profile_t* profile);
// Empties the table; events stay.
CHOIR_API void choir_profile_reset(choir_profile_t* profile);
// Whether spans that end are kept one by one; not so at first.
CHOIR_API void choir_profile_keep_events(choir_profile_t* profile, bool keep);

// ---- Spans ----

typedef enum choir_span_kind_e {
  CHOIR_SPAN_OP,      // a record's kernel
  CHOIR_SPAN_COMM,    // a collective
  CHOIR_SPAN_WAIT,    // for a peer or another stream
  CHOIR_SPAN_LOADER,  // a batch: filled, or waited for
  CHOIR_SPAN_PHASE,   // a part of a step, which holds spans of other kinds
  CHOIR_SPAN_KIND_COUNT,
} choir_span_kind_t;

typedef struct choir_span_s {
  double start;  // below 0: no profile ran
  choir_span_kind_t kind;
  double nested_before;  // of spans that ended earlier inside the one around it
} choir_span_t;

// Each _begin needs its _end, on the same thread; spans nest. name and label
// (may be NULL) are copied, 47 characters at most. cost may be NULL.
CHOIR_API choir_span_t choir_span_begin(choir_span_kind_t kind);
CHOIR_API void choir_span_end(const choir_span_t* span, const char* name,
                              const char* label, const choir_cost_t* cost);

// ---- Results: of a stopped profile ----

#define CHOIR_PROFILE_TEXT_BYTES 48

typedef struct choir_profile_row_s {
  char name[CHOIR_PROFILE_TEXT_BYTES];   // "conv2d/onednn"
  char label[CHOIR_PROFILE_TEXT_BYTES];  // "conv1" or ""
  choir_span_kind_t kind;
  bool beside;  // on another thread than the one that started the profile
  int64_t calls;
  double seconds;  // of all calls, those of spans inside it included
  double min_seconds;
  double max_seconds;
  choir_cost_t cost;  // of all calls; zeros where nobody told
} choir_profile_row_t;

typedef struct choir_profile_totals_s {
  double seconds;  // between start and stop
  // Of these, on the thread that started the profile, in spans of each kind,
  // without those nested in them. PHASE: 0, as phases are only names for what
  // is in them.
  double self_seconds[CHOIR_SPAN_KIND_COUNT];
  // The rest: on that thread outside of all spans but phases, what is not
  // kernels, waits or the loader.
  double outside_seconds;
  double first_seconds;  // choir_clock_seconds of the first event; else 0
  int64_t events;        // kept
  int64_t lost_events;   // for which there was no room
} choir_profile_totals_t;

CHOIR_API choir_profile_totals_t
choir_profile_totals(const choir_profile_t* profile);
// The rows with calls, the most seconds first. Returns how many there are;
// out_rows has room for as many, or is NULL.
CHOIR_API size_t choir_profile_rows(choir_profile_t* profile,
                                    choir_profile_row_t* out_rows);

// Takes a piece of text that it does not keep; no NUL behind it.
typedef choir_status_t (*choir_text_writer_t)(void* self, const char* text,
                                              size_t bytes);
// A choir_text_writer_t whose self is a choir_callback_t (core/callback.h);
// arguments: text, bytes.
CHOIR_API choir_status_t choir_text_writer_callback(void* self,
                                                    const char* text,
                                                    size_t bytes)
    CHOIR_NODISCARD;

// As SINGA's verbosity.
typedef enum choir_profile_detail_e {
  CHOIR_PROFILE_NOTHING = 0,
  CHOIR_PROFILE_PHASES = 1,  // forward, backward, ...: calls and mean
  CHOIR_PROFILE_OPS = 2,     // and the whole table
} choir_profile_detail_t;

// Writes the table as lines of text. Fails when the writer does.
CHOIR_API choir_status_t choir_profile_print(choir_profile_t* profile,
                                             choir_profile_detail_t detail,
                                             choir_text_writer_t writer,
                                             void* self) CHOIR_NODISCARD;
// Writes the events as elements of a Chrome trace's array, separated by ",\n":
// process `process`, called process_name; times count from `zero` (of
// choir_clock_seconds). Events that were lost are told as the process's label.
// For a whole file see choir_timeline_write
// (dist/timeline.h).
CHOIR_API choir_status_t choir_profile_write_events(
    const choir_profile_t* profile, int32_t process, const char* process_name,
    double zero, choir_text_writer_t writer, void* self) CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_PROFILE_H_
