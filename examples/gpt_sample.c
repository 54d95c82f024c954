// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt_sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of random numbers: "samp".
#define STREAM 0x73616d70u

typedef struct sampler_s {
  choir_model_t* model;
  const choir_tokens_t* tokens;
  const gpt_sample_t* sample;
  choir_kv_cache_t* cache;
  int32_t* ids;  // of the prompt and what was drawn
  int64_t id_count;
  float* scores;       // (vocabulary)
  int64_t vocabulary;  // of the model
} sampler_t;

// The last row of scores y (1, t, vocabulary).
static choir_status_t read_last_row(sampler_t* s, choir_tensor_t* y) {
  const int64_t rows = choir_tensor_shape(y)[1];
  const choir_slice_attrs_t row = {
      .axis = 1, .start = rows - 1, .stop = rows, .step = 1};
  choir_tensor_t* part = NULL;
  CHOIR_TRY(choir_op_run(choir_device_stream(choir_model_device(s->model)),
                         CHOIR_OP_SLICE, &y, 1, &row, false, &part));
  choir_status_t status = NULL;
  if (!s->scores) {
    s->vocabulary = choir_tensor_shape(part)[2];
    s->scores = calloc((size_t)s->vocabulary, sizeof(float));
    if (!s->scores) status = CHOIR_ERROR(OUT_OF_MEMORY, "no memory for scores");
  }
  if (!status)
    status = choir_tensor_read(part, s->scores,
                               (size_t)s->vocabulary * sizeof(float));
  choir_tensor_release(part);
  return status;
}

// Scores of what comes next. As long as the text fits into a window, the new
// tokens alone are computed; then each window is another one, where every token
// has another place.
static choir_status_t score(sampler_t* s) {
  const int64_t context = s->sample->context;
  const int64_t seen = s->id_count < context ? s->id_count : context;
  if (s->id_count > context) choir_kv_cache_keep(s->cache, 0);
  const int64_t shape[] = {1, seen - choir_kv_cache_count(s->cache)};
  choir_tensor_t* x = NULL;
  CHOIR_TRY(choir_tensor_from_data(choir_model_device(s->model),
                                   CHOIR_DTYPE_I32, 2, shape,
                                   s->ids + s->id_count - shape[1], &x));
  choir_tensor_t* y = NULL;
  choir_status_t status = choir_model_predict_next(s->model, s->cache, x, &y);
  if (!status) status = read_last_row(s, y);
  choir_tensor_release(x);
  choir_tensor_release(y);
  return status;
}

static int32_t largest(const sampler_t* s) {
  int32_t best = 0;
  for (int32_t i = 1; i < s->vocabulary; ++i)
    if (s->scores[i] > s->scores[best]) best = i;
  return best;
}

// By the share that each token has in the sum of exp(score / temperature).
static int32_t draw(const sampler_t* s) {
  const double most = s->scores[largest(s)];
  const double temperature = s->sample->temperature;
  const choir_random_key_t key = {(uint64_t)s->sample->seed, STREAM, 0};
  double sum = 0;
  for (int64_t i = 0; i < s->vocabulary; ++i)
    sum += exp((s->scores[i] - most) / temperature);
  double left = sum * (double)choir_random_to_uniform(
                          choir_random_word(key, (uint64_t)s->id_count, 0));
  for (int32_t i = 0; i < s->vocabulary; ++i) {
    left -= exp((s->scores[i] - most) / temperature);
    if (left < 0) return i;
  }
  return largest(s);
}

static void print_token(const sampler_t* s, int32_t id) {
  size_t bytes = 0;
  const char* text = choir_tokens_text(s->tokens, id, &bytes);
  if (text)
    fwrite(text, 1, bytes, stdout);
  else
    printf("%d ", id);
  fflush(stdout);
}

static choir_status_t take_prompt(sampler_t* s) {
  const char* prompt = s->sample->prompt[0] ? s->sample->prompt : "\n";
  const size_t bytes = strlen(prompt);
  CHOIR_TRY(choir_kv_cache_create(s->model, 1, s->sample->context, &s->cache));
  s->ids = calloc(bytes + (size_t)s->sample->count + 1, sizeof(int32_t));
  if (!s->ids) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for tokens");
  size_t none = 0;
  if (choir_tokens_text(s->tokens, 0, &none))
    return choir_tokens_encode(s->tokens, prompt, bytes, s->ids, &s->id_count);
  s->id_count = 1;  // of ids the first one
  return NULL;
}

static choir_status_t run(sampler_t* s, bool prints) {
  CHOIR_TRY(take_prompt(s));
  for (int64_t i = 0; prints && i < s->id_count; ++i) print_token(s, s->ids[i]);
  for (int64_t i = 0; i < s->sample->count; ++i) {
    CHOIR_TRY(score(s));
    const int32_t id = s->sample->temperature > 0 ? draw(s) : largest(s);
    s->ids[s->id_count++] = id;
    if (prints) print_token(s, id);
  }
  if (prints) printf("\n");
  return NULL;
}

choir_status_t gpt_sample(choir_model_t* model, const choir_tokens_t* tokens,
                          const gpt_sample_t* sample, bool prints) {
  sampler_t sampler = {.model = model, .tokens = tokens, .sample = sample};
  choir_status_t status = run(&sampler, prints);
  choir_kv_cache_destroy(sampler.cache);
  free(sampler.ids);
  free(sampler.scores);
  return status;
}
