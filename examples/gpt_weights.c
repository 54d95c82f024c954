// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96, MAX_PARTS = 3, MAX_WEIGHTS = 32 * GPT_MAX_LAYERS };

typedef enum place_e {
  HEAD,   // the name is the whole one
  OUTER,  // behind the format's prefix
  BLOCK   // behind that and the block's number; ours behind "blockN."
} place_t;

typedef enum kind_e {
  SAME,    // weight and bias are our W and b
  LINEAR,  // so, but their weight is (out, in) and ours (in, out)
  NORM     // weight and bias are our scale and bias
} kind_t;

// A layer of the file and the model's, whose parameters stand side by side in
// the file's, by columns.
typedef struct name_s {
  place_t place;
  kind_t kind;
  const char* theirs;
  const char* ours[MAX_PARTS];
} name_t;

static const name_t gpt2_names[] = {
    {OUTER, SAME, "wte", {"tokens"}},
    {OUTER, SAME, "wpe", {"positions"}},
    {BLOCK, NORM, "ln_1", {"norm1"}},
    {BLOCK,
     SAME,
     "attn.c_attn",
     {"attention.query", "attention.key", "attention.value"}},
    {BLOCK, SAME, "attn.c_proj", {"attention.out"}},
    {BLOCK, NORM, "ln_2", {"norm2"}},
    {BLOCK, SAME, "mlp.c_fc", {"mlp.expand"}},
    {BLOCK, SAME, "mlp.c_proj", {"mlp.shrink"}},
    {OUTER, NORM, "ln_f", {"norm"}},
    {HEAD, LINEAR, "lm_head", {"head"}}};
static const name_t llama_names[] = {
    {OUTER, SAME, "embed_tokens", {"tokens"}},
    {BLOCK, NORM, "input_layernorm", {"norm1"}},
    {BLOCK, LINEAR, "self_attn.q_proj", {"attention.query"}},
    {BLOCK, LINEAR, "self_attn.k_proj", {"attention.key"}},
    {BLOCK, LINEAR, "self_attn.v_proj", {"attention.value"}},
    {BLOCK, LINEAR, "self_attn.o_proj", {"attention.out"}},
    {BLOCK, NORM, "post_attention_layernorm", {"norm2"}},
    {BLOCK, LINEAR, "mlp.gate_proj", {"mlp.gate"}},
    {BLOCK, LINEAR, "mlp.up_proj", {"mlp.expand"}},
    {BLOCK, LINEAR, "mlp.down_proj", {"mlp.shrink"}},
    {OUTER, NORM, "norm", {"norm"}},
    {HEAD, LINEAR, "lm_head", {"head"}}};

typedef struct format_s {
  const char *prefix, *block;
  const name_t* names;
  size_t count;
} format_t;
#define NAMES(names) names, sizeof(names) / sizeof((names)[0])
static const format_t gpt2 = {"transformer.", "h", NAMES(gpt2_names)};
static const format_t llama = {"model.", "layers", NAMES(llama_names)};
// How names of what is no parameter end: masks, frequencies.
static const char* const buffer_ends[] = {".attn.bias", ".attn.masked_bias",
                                          ".rotary_emb.inv_freq"};

typedef struct weight_s {
  char name[NAME_BYTES];
  size_t prefix_bytes;  // of the name, which files may lack
  choir_tensor_t* parts[MAX_PARTS];
  size_t part_count;
  bool transposed;
} weight_t;

typedef struct weights_s {
  choir_stream_t* stream;
  choir_device_t* device;
  weight_t at[MAX_WEIGHTS];  // the first one: the tokens'
  size_t count;
} weights_t;

static bool is_llama(const gpt_config_t* c) {
  return c->rms_norm && c->rotary > 0 && c->gated;
}

choir_status_t gpt_check_names(const gpt_config_t* c) {
  const bool is_gpt2 = !c->rms_norm && c->rotary == 0 && !c->gated &&
                       (c->kv_heads == 0 || c->kv_heads == c->heads);
  if (is_llama(c) || is_gpt2) return NULL;
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "weights: there are names for Llama's settings "
                     "(--rms-norm, --rotary and --gated) and for GPT-2's (none "
                     "of these, no --kv-heads); the model has others");
}

// A model without biases or head lacks some.
static void add_name(const choir_param_set_t* params, const format_t* format,
                     const name_t* name, int block, bool is_bias,
                     weights_t* weights) {
  weight_t* weight = &weights->at[weights->count];
  const char* prefix = name->place == HEAD ? "" : format->prefix;
  const char* weight_end = name->kind == NORM ? "scale" : "W";
  const char* bias_end = name->kind == NORM ? "bias" : "b";
  char theirs[32] = "", ours[32] = "", full[NAME_BYTES];
  if (name->place == BLOCK) {
    snprintf(theirs, sizeof(theirs), "%s.%d.", format->block, block);
    snprintf(ours, sizeof(ours), "block%d.", block);
  }
  snprintf(weight->name, NAME_BYTES, "%s%s%s.%s", prefix, theirs, name->theirs,
           is_bias ? "bias" : "weight");
  weight->prefix_bytes = strlen(prefix);
  weight->transposed = name->kind == LINEAR && !is_bias;
  weight->part_count = 0;
  for (int i = 0; i < MAX_PARTS && name->ours[i]; ++i) {
    snprintf(full, NAME_BYTES, "%s%s.%s", ours, name->ours[i],
             is_bias ? bias_end : weight_end);
    const choir_param_t* param = choir_param_set_find(params, full);
    if (!param) return;
    weight->parts[weight->part_count++] = param->value;
  }
  ++weights->count;
}

// For the caller to free.
static choir_status_t list_weights(choir_model_t* model,
                                   const gpt_config_t* config,
                                   weights_t** out_weights) {
  const format_t* format = is_llama(config) ? &llama : &gpt2;
  CHOIR_TRY(gpt_check_names(config));
  weights_t* weights = calloc(1, sizeof(weights_t));
  if (!weights) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for names");
  weights->device = choir_model_device(model);
  weights->stream = choir_device_stream(weights->device);
  for (size_t i = 0; i < format->count; ++i) {
    const name_t* name = &format->names[i];
    const int64_t times = name->place == BLOCK ? config->layers : 1;
    for (int j = 0; j < 2 * times; ++j)
      add_name(choir_model_params(model), format, name, j / 2, j % 2, weights);
  }
  *out_weights = weights;
  return NULL;
}

// In the place of *tensor, a matrix, its transpose.
static choir_status_t transpose(const weights_t* weights,
                                choir_tensor_t** tensor) {
  const choir_transpose_attrs_t reversed = {
      .axes = {-1, -1, -1, -1, -1, -1, -1, -1}};
  choir_tensor_t* made = NULL;
  choir_status_t status = choir_op_run(weights->stream, CHOIR_OP_TRANSPOSE,
                                       tensor, 1, &reversed, false, &made);
  choir_tensor_release(*tensor);
  *tensor = made;
  return status;
}

// ---- Reading ----

static const choir_checkpoint_entry_t* find(const choir_checkpoint_t* file,
                                            const weight_t* weight) {
  const choir_checkpoint_entry_t* entry =
      choir_checkpoint_find(file, weight->name);
  return entry
             ? entry
             : choir_checkpoint_find(file, weight->name + weight->prefix_bytes);
}

// A tensor of the file as f32; the caller's reference.
static choir_status_t read_f32(choir_checkpoint_t* file,
                               const choir_checkpoint_entry_t* entry,
                               const weights_t* weights,
                               choir_tensor_t** out_tensor) {
  if (entry->dtype != CHOIR_DTYPE_F32 && entry->dtype != CHOIR_DTYPE_F16 &&
      entry->dtype != CHOIR_DTYPE_BF16)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "weights: %s is %s; needs f32, f16 or bf16", entry->name,
                       choir_dtype_name(entry->dtype));
  choir_tensor_t* read = NULL;
  CHOIR_TRY(choir_tensor_create(weights->device, entry->dtype, entry->ndim,
                                entry->shape, &read));
  choir_status_t status = choir_checkpoint_read(file, entry->name, read);
  if (status || entry->dtype == CHOIR_DTYPE_F32) {
    *out_tensor = read;
    return status;
  }
  const choir_cast_attrs_t cast = {.dtype = CHOIR_DTYPE_F32};
  status = choir_op_run(weights->stream, CHOIR_OP_CAST, &read, 1, &cast, false,
                        out_tensor);
  choir_tensor_release(read);
  return status;
}

static void print_shape(int32_t ndim, const int64_t* shape, char text[64]) {
  int used = snprintf(text, 64, "(");
  for (int32_t i = 0; i < ndim && used < 64; ++i)
    used += snprintf(text + used, 64 - (size_t)used, "%s%lld", i ? ", " : "",
                     (long long)shape[i]);
  if (used < 64) snprintf(text + used, 64 - (size_t)used, ")");
}

// The shape that the file's tensor must have.
static choir_status_t check_shape(const choir_checkpoint_entry_t* entry,
                                  const weight_t* weight) {
  const int32_t ndim = choir_tensor_ndim(weight->parts[0]);
  int64_t shape[CHOIR_MAX_NDIM];
  memcpy(shape, choir_tensor_shape(weight->parts[0]),
         (size_t)ndim * sizeof(shape[0]));
  shape[ndim - 1] *= (int64_t)weight->part_count;
  if (weight->transposed) {
    const int64_t in = shape[0];
    shape[0] = shape[1];
    shape[1] = in;
  }
  if (entry->ndim == ndim &&
      memcmp(entry->shape, shape, (size_t)ndim * sizeof(shape[0])) == 0)
    return NULL;
  char has[64], needs[64];
  print_shape(entry->ndim, entry->shape, has);
  print_shape(ndim, shape, needs);
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "weights: %s is %s in the file; the model needs %s",
                     entry->name, has, needs);
}

static choir_status_t read_weight(choir_checkpoint_t* file,
                                  const weight_t* weight,
                                  const weights_t* weights) {
  const choir_checkpoint_entry_t* entry = find(file, weight);
  if (!entry)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "weights: the file has no %s, which the model needs",
                       weight->name);
  CHOIR_TRY(check_shape(entry, weight));
  choir_tensor_t* whole = NULL;
  choir_status_t status = read_f32(file, entry, weights, &whole);
  if (weight->transposed && !status) status = transpose(weights, &whole);
  const int32_t last = entry->ndim - 1;
  for (size_t i = 0; i < weight->part_count && !status; ++i) {
    choir_tensor_t* part = weight->parts[i];
    const int64_t columns = choir_tensor_shape(part)[last];
    const choir_slice_attrs_t at = {.axis = last,
                                    .start = (int64_t)i * columns,
                                    .stop = (int64_t)(i + 1) * columns,
                                    .step = 1};
    status = choir_op_run(weights->stream, CHOIR_OP_SLICE, &whole, 1, &at,
                          false, &part);
  }
  choir_tensor_release(whole);
  return status;
}

static bool is_buffer(const char* name) {
  for (size_t i = 0; i < sizeof(buffer_ends) / sizeof(buffer_ends[0]); ++i) {
    const char* end = buffer_ends[i];
    const size_t bytes = strlen(name), end_bytes = strlen(end);
    if (bytes > end_bytes && strcmp(name + bytes - end_bytes, end) == 0)
      return true;
  }
  return false;
}

// The model multiplies by the tokens' table at the end, so an lm_head.weight of
// its own cannot be taken.
static choir_status_t check_head(choir_checkpoint_t* file,
                                 const choir_checkpoint_entry_t* head,
                                 const weights_t* weights) {
  const choir_checkpoint_entry_t* table = find(file, &weights->at[0]);
  choir_tensor_t *a = NULL, *b = NULL;
  choir_status_t status = NULL;
  uint64_t digests[2] = {0, 1};
  if (table->dtype == head->dtype && table->bytes == head->bytes) {
    status = read_f32(file, table, weights, &a);
    if (!status) status = read_f32(file, head, weights, &b);
    for (int i = 0; i < 2 && !status; ++i)
      status = choir_tensor_digest(
          &(choir_named_tensor_t){.name = "W", .tensor = i ? b : a}, 1,
          &digests[i]);
  }
  choir_tensor_release(a);
  choir_tensor_release(b);
  if (!status && digests[0] != digests[1])
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "weights: %s differs from %s; the model has one "
                         "matrix for both (--head: two)",
                         head->name, table->name);
  return status;
}

// That the model has a place for each tensor of the file.
static choir_status_t check_all_known(choir_checkpoint_t* file,
                                      const weights_t* weights) {
  for (size_t i = 0; i < choir_checkpoint_count(file); ++i) {
    const choir_checkpoint_entry_t* entry = choir_checkpoint_get(file, i);
    bool is_known = is_buffer(entry->name);
    for (size_t j = 0; j < weights->count && !is_known; ++j) {
      const weight_t* weight = &weights->at[j];
      is_known = strcmp(entry->name, weight->name) == 0 ||
                 strcmp(entry->name, weight->name + weight->prefix_bytes) == 0;
    }
    if (is_known) continue;
    if (strcmp(entry->name, "lm_head.weight") != 0)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "weights: the model has no place for %s; are its "
                         "layers and --bias those of the file?",
                         entry->name);
    CHOIR_TRY(check_head(file, entry, weights));
  }
  return NULL;
}

static choir_status_t read_all(choir_checkpoint_t* file,
                               const weights_t* weights) {
  for (size_t i = 0; i < weights->count; ++i)
    CHOIR_TRY(read_weight(file, &weights->at[i], weights));
  return check_all_known(file, weights);
}

choir_status_t gpt_read_weights(choir_model_t* model,
                                const gpt_config_t* config, const char* path) {
  choir_checkpoint_t* file = NULL;
  weights_t* weights = NULL;
  CHOIR_TRY(choir_checkpoint_open(path, &file));
  choir_status_t status = list_weights(model, config, &weights);
  if (!status) status = read_all(file, weights);
  free(weights);
  choir_checkpoint_destroy(file);
  return status;
}

// ---- Writing ----

// What the file shall have; the caller's reference.
static choir_status_t join(const weights_t* weights, const weight_t* weight,
                           choir_tensor_t** out_whole) {
  const choir_concat_attrs_t last = {
      .axis = choir_tensor_ndim(weight->parts[0]) - 1};
  choir_status_t status = NULL;
  if (weight->part_count > 1)
    status = choir_op_run(weights->stream, CHOIR_OP_CONCAT, weight->parts,
                          weight->part_count, &last, false, out_whole);
  else
    choir_tensor_retain(*out_whole = weight->parts[0]);
  return weight->transposed && !status ? transpose(weights, out_whole) : status;
}

choir_status_t gpt_write_weights(choir_model_t* model,
                                 const gpt_config_t* config, const char* path) {
  // transformers asks a file which library wrote it; of PyTorch's layout.
  static const choir_metadata_t format = {"format", "pt"};
  weights_t* weights = NULL;
  choir_named_tensor_t tensors[MAX_WEIGHTS] = {0};
  CHOIR_TRY(list_weights(model, config, &weights));
  choir_status_t status = NULL;
  for (size_t i = 0; i < weights->count && !status; ++i) {
    tensors[i].name = weights->at[i].name;
    status = join(weights, &weights->at[i], &tensors[i].tensor);
  }
  if (!status)
    status = choir_checkpoint_save(path, tensors, weights->count, &format, 1);
  for (size_t i = 0; i < weights->count; ++i)
    choir_tensor_release(tensors[i].tensor);
  free(weights);
  return status;
}
