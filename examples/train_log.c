// SPDX-License-Identifier: Apache-2.0
#include "examples/train_log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct train_log_s {
  FILE* file;
  const char* path;
  bool has_run;  // in an earlier report
};

choir_status_t train_log_open(const char* path, bool append,
                              train_log_t** out_log) {
  *out_log = NULL;
  FILE* file = fopen(path, append ? "a" : "w");
  if (!file)
    return CHOIR_ERROR(NOT_FOUND, "log-json: cannot write to %s: %s", path,
                       strerror(errno));
  train_log_t* log = calloc(1, sizeof(*log));
  if (!log) {
    fclose(file);
    return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for a log");
  }
  log->file = file;
  log->path = path;
  *out_log = log;
  return NULL;
}

void train_log_close(train_log_t* log) {
  if (!log) return;
  fclose(log->file);
  free(log);
}

// ---- Values ----

static void put_text(FILE* file, const char* text) {
  fputc('"', file);
  for (const char* at = text; *at; ++at) {
    const unsigned char c = (unsigned char)*at;
    if (c < 0x20)
      fprintf(file, "\\u%04x", c);
    else if (c == '"' || c == '\\')
      fprintf(file, "\\%c", c);
    else
      fputc(c, file);
  }
  fputc('"', file);
}

// JSON has no infinity and no NaN, which a run that diverges has.
static void put_number(FILE* file, const char* key, double value) {
  if (isfinite(value))
    fprintf(file, ", \"%s\": %.17g", key, value);
  else
    fprintf(file, ", \"%s\": null", key);
}

static void put_count(FILE* file, const char* key, int64_t value) {
  fprintf(file, ", \"%s\": %" PRId64, key, value);
}

static void put_named(FILE* file, const char* key, const char* text) {
  fprintf(file, ", \"%s\": ", key);
  put_text(file, text);
}

// ---- Objects ----

static int32_t size_of(const train_run_t* run) {
  return run->comm ? choir_comm_size(run->comm) : 1;
}

static void put_hosts(FILE* file, const train_run_t* run) {
  char own[72] = "?";
  gethostname(own, sizeof(own) - 1);
  fputs(", \"hosts\": [", file);
  for (int32_t r = 0; r < size_of(run); ++r) {
    if (r > 0) fputs(", ", file);
    put_text(file, run->comm ? choir_comm_host(run->comm, r) : own);
  }
  fputc(']', file);
}

static void put_run(FILE* file, const train_run_t* run) {
  fputs(", \"run\": {\"program\": ", file);
  put_text(file, program_invocation_short_name);
  put_named(file, "version", choir_version());
  put_named(file, "model", run->model);
  put_count(file, "parameters", run->parameters);
  put_named(file, "strategy", run->strategy);
  put_named(file, "comm", run->comm ? choir_comm_backend(run->comm) : "none");
  put_named(file, "device", run->device);
  put_count(file, "threads", run->threads);
  put_count(file, "batch", run->batch);
  put_count(file, "training_samples", run->training_samples);
  put_count(file, "evaluation_samples", run->evaluation_samples);
  put_count(file, "last_step", run->last_step);
  put_hosts(file, run);
  fputc('}', file);
}

static void put_times(FILE* file, const train_run_t* run,
                      const train_times_t* times) {
  fputs(", \"ranks\": [", file);
  for (int32_t r = 0; r < size_of(run); ++r) {
    fprintf(file, "%s{\"rank\": %d", r > 0 ? ", " : "", (int)r);
    put_count(file, run->labels, (int64_t)times[r].labels);
    put_number(file, "seconds", times[r].seconds);
    put_number(file, "compute_seconds", times[r].compute_seconds);
    put_number(file, "data_seconds", times[r].data_seconds);
    put_number(file, "wait_seconds", times[r].wait_seconds);
    put_number(file, "exchange_seconds", times[r].exchange_seconds);
    fputc('}', file);
  }
  fputc(']', file);
}

choir_status_t train_log_write(train_log_t* log, const train_run_t* run,
                               const train_report_t* report,
                               const train_times_t* times) {
  FILE* file = log->file;
  fprintf(file, "{\"epoch\": %" PRId64, report->epoch);
  put_count(file, "step", report->step);
  put_count(file, "workers", size_of(run));
  put_number(file, "training_loss",
             run->logs_loss_sum ? report->loss_sum : report->loss);
  put_number(file, "training_accuracy", report->training_accuracy);
  put_number(file, "evaluation_loss", report->evaluation_loss);
  put_number(file, "evaluation_accuracy", report->evaluation_accuracy);
  fprintf(file, ", \"%s_per_second\": %.1f, \"seconds\": %.3f", run->labels,
          report->labels_per_second, report->seconds);
  fprintf(file, ", \"digest\": \"%016" PRIx64 "\"", report->digest);
  put_count(file, "steps", report->steps);
  put_number(file, "loss", report->loss);
  put_times(file, run, times);
  if (!log->has_run) put_run(file, run);
  log->has_run = true;
  fputs("}\n", file);
  if (fflush(file) == 0 && !ferror(file)) return NULL;
  return CHOIR_ERROR(UNAVAILABLE, "log-json: cannot write to %s: %s", log->path,
                     strerror(errno));
}
