// SPDX-License-Identifier: Apache-2.0
// Trains a GPT on a text with several workers, and lets it write.
#include <limits.h>
#include <stdio.h>

#include "examples/dist_main.h"
#include "examples/gpt.h"
#include "examples/gpt_optimizer.h"
#include "examples/gpt_sample.h"
#include "examples/gpt_weights.h"

static const char* const preset_names[] = {"nano", "10m", "gpt2", "llama",
                                           NULL};
static const char* const unit_names[] = {"characters", "bytes", NULL};

#define FLAGS(X, T)                                                            \
  X(T, ENUM, preset, 0, preset_names, 0,                                       \
    "sizes and rates: nanoGPT's for CPUs, its small one for GPUs, GPT-2's or " \
    "a small Llama's")                                                         \
  GPT_FIELDS(X, T)                                                             \
  X(T, ENUM, unit, 0, unit_names, 0, "what a token of a text is")              \
  X(T, STRING, tokenizer, NULL, 0, 0,                                          \
    "folder with GPT-2's vocab.json and merges.txt: tokens are its byte "      \
    "pairs")                                                                   \
  X(T, STRING, tokens, NULL, 0, 0,                                             \
    "in place of a text: file of token ids, of 16 bits or with llm.c's "       \
    "header")                                                                  \
  X(T, STRING, weights, NULL, 0, 0,                                            \
    "begin with those of this file, index of files or folder of either, in "   \
    "Hugging Face's names for GPT-2 or Llama")                                 \
  X(T, STRING, export, NULL, 0, 0, "write the trained weights so")             \
  X(T, INT, sample, 300, 0, 1e9, "tokens to write at the end")                 \
  X(T, FLOAT, temperature, 0.8, 0, 1e6,                                        \
    "of the sample; 0: always the likeliest token")                            \
  X(T, STRING, prompt, NULL, 0, 0, "how the sample begins; else a new line")   \
  X(T, INT, sample_seed, 0, 0, 9007199254740992.0, "of the sample")
CHOIR_CONFIG_STRUCT(flags_t, FLAGS);
static const choir_field_t flag_fields[] = {CHOIR_CONFIG_TABLE(flags_t, FLAGS)};
static const choir_struct_def_t flags_def =
    CHOIR_STRUCT_DEF("flags", flags_t, flag_fields, "");

static flags_t flags;
static choir_tokens_t* tokens;  // opened with the data

typedef struct preset_s {
  int64_t global_batch, steps, evaluate_every;
  double lr, beta2;
  gpt_config_t sizes;
} preset_t;

// Sizes: layers, heads, width, context, vocabulary, dropout, bias.
static const preset_t presets[] = {
    {12, 2000, 250, 2e-3, 0.99, GPT_SIZES(4, 4, 128, 64)},
    {8, 5000, 250, 1e-3, 0.99, GPT_SIZES(6, 6, 384, 256, 0, 0.2)},
    {4, 1000, 100, 6e-4, 0.95,
     GPT_SIZES(12, 12, 768, 1024, 50257, 0, true, CHOIR_HIDDEN_GELU_TANH)},
    {8, 5000, 250, 1e-3, 0.99,
     GPT_SIZES(6, 6, 384, 256, 0, 0.2, false, CHOIR_HIDDEN_SILU, .gated = true,
               .hidden = 1024, .kv_heads = 2, .rotary = 10000, .rms_norm = true,
               .head = true)}};

static void set_defaults(train_options_t* options) {
  const preset_t* p = &presets[flags.preset];
  const int32_t preset = flags.preset;
  choir_struct_init(&flags_def, &flags);
  flags.preset = preset;
#define SET(T, KIND, name, ...) flags.name = p->sizes.name;
  GPT_FIELDS(SET, )
#undef SET
  options->global_batch = p->global_batch;
  options->steps = p->steps;
  options->epochs = 0;  // so that --steps 0 only writes
  options->evaluate_every = p->evaluate_every;
  options->lr = p->lr;
  options->weight_decay = 0.1;
}

static choir_status_t open_pairs(const char* path) {
  char vocab[PATH_MAX], merges[PATH_MAX];
  if (flags.unit)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--unit and --tokenizer both say what a token is; give "
                       "one of them");
  snprintf(vocab, PATH_MAX, "%s/vocab.json", flags.tokenizer);
  snprintf(merges, PATH_MAX, "%s/merges.txt", flags.tokenizer);
  return choir_tokens_open_byte_pairs(path, vocab, merges, &tokens);
}

static choir_status_t open_tokens(const train_options_t* options) {
  if (flags.tokens && (options->data || flags.tokenizer))
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--tokens has ids, --data and --tokenizer make them "
                       "of a text; give one of them");
  if (flags.tokens && !flags.vocabulary)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--tokens needs --vocabulary, as ids do not say how "
                       "many there are");
  if (flags.tokens)
    return choir_tokens_open_ids(flags.tokens, 0, flags.vocabulary, &tokens);
  char own[PATH_MAX];
  const char* path = options->data;
  if (!path) {
    CHOIR_TRY(trainer_find_data(
        "examples/data/shakespeare/tiny_shakespeare.txt.gz", own));
    path = own;
  }
  CHOIR_TRY(flags.tokenizer
                ? open_pairs(path)
                : choir_tokens_open_text(path, (choir_text_unit_t)flags.unit,
                                         &tokens));
  const int64_t found = choir_tokens_vocabulary(tokens);
  if (!flags.vocabulary) flags.vocabulary = found;
  if (flags.vocabulary >= found) return NULL;
  return CHOIR_ERROR(
      INVALID_ARGUMENT, "--vocabulary %lld: %s has %lld different tokens",
      (long long)flags.vocabulary, flags.tokenizer ? flags.tokenizer : path,
      (long long)found);
}

// The first nine tenths to learn from, the others, in windows that do not
// overlap, to see what was learnt.
static choir_status_t open_data(const train_options_t* options,
                                choir_split_t split, char* note,
                                choir_dataset_t** out_dataset) {
  (void)note;
  if (!tokens) CHOIR_TRY(open_tokens(options));
  const int64_t cut = choir_tokens_count(tokens) / 10 * 9 +
                      choir_tokens_count(tokens) % 10 * 9 / 10;
  const bool is_training = split == CHOIR_SPLIT_TRAIN;
  const choir_windows_t windows = {.first = is_training ? 0 : cut,
                                   .count = is_training ? cut : 0,
                                   .length = flags.context,
                                   .stride = is_training ? 1 : flags.context};
  return choir_dataset_create_windows(tokens, &windows, out_dataset);
}

static gpt_config_t sizes(void) {
#define SAME(T, KIND, name, ...) .name = flags.name,
  return (gpt_config_t){GPT_FIELDS(SAME, )};
#undef SAME
}

static train_task_t task;

static void set_up(const train_options_t* options, void* self) {
  gpt_t* gpt = self;
  gpt->config = sizes();
  if (gpt_has_large_scores(&gpt->config, options->global_batch))
    task.model = &gpt_loss_def;
}

// The rate goes up and then down along a cosine to a tenth.
static choir_status_t make_optimizer(const train_options_t* options, double lr,
                                     choir_optimizer_t** out_optimizer) {
  CHOIR_TRY(gpt_make_optimizer(lr, presets[flags.preset].beta2,
                               options->weight_decay, out_optimizer));
  const int64_t steps = options->steps ? options->steps : 1;
  const choir_schedule_config_t schedule = {.kind = CHOIR_SCHEDULE_COSINE,
                                            .period = steps,
                                            .factor = 0.1,
                                            .warmup = options->steps / 20};
  return choir_optimizer_set_schedule(*out_optimizer, &schedule);
}

static choir_status_t begin(const train_options_t* options,
                            choir_model_t* model, int32_t rank) {
  if (flags.export && rank == 0)
    CHOIR_TRY(trainer_check_folder("export", flags.export));
  if (flags.weights && options->resume)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--weights and --resume both say how to begin; give one "
                       "of them");
  const gpt_config_t config = sizes();
  if (flags.weights || flags.export) CHOIR_TRY(gpt_check_names(&config));
  return flags.weights ? gpt_read_weights(model, &config, flags.weights) : NULL;
}

static choir_status_t finish(const train_options_t* options,
                             choir_model_t* model, int32_t rank) {
  const gpt_config_t config = sizes();
  if (flags.export && rank == 0)
    CHOIR_TRY(gpt_write_weights(model, &config, flags.export));
  const gpt_sample_t sample = {.prompt = flags.prompt ? flags.prompt : "",
                               .count = flags.sample,
                               .temperature = flags.temperature,
                               .context = flags.context,
                               .seed = flags.sample_seed};
  const bool prints = rank == 0 && !options->quiet;
  return flags.sample ? gpt_sample(model, tokens, &sample, prints) : NULL;
}

int main(int argc, char** argv) {
  static const char* const absent[] = {"epochs", "momentum", "limit",
                                       "sync_batch_norm", NULL};
  task = (train_task_t){
      .what = "Trains a GPT on a text",
      .data =
          "a text in UTF-8, gzipped or not; else Tiny Shakespeare, which "
          "comes with Choir",
      .model = &gpt_def,
      .model_bytes = sizeof(gpt_t),
      .micro_shard = 1,
      .absent_flags = absent,
      .own_flags = &flags_def,
      .own = &flags,
      .set_defaults = set_defaults,
      .set_up = set_up,
      .make_optimizer = make_optimizer,
      .begin = begin,
      .finish = finish,
      .open_data = open_data};
  const int status = dist_main("gpt_dist", &task, argc, argv);
  choir_tokens_release(tokens);
  return status;
}
