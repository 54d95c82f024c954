// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "transformer."
enum { NAME_BYTES = 96, MAX_PARTS = 3, MAX_WEIGHTS = 1024 };

// A tensor of the file and the parameters that stand side by side in it, by
// columns. Both store matrices as (in, out).
typedef struct name_s {
  const char* theirs;
  const char* ours[MAX_PARTS];
} name_t;

static const name_t outer_names[] = {{"wte.weight", {"tokens.W"}},
                                     {"wpe.weight", {"positions.W"}},
                                     {"ln_f.weight", {"norm.scale"}},
                                     {"ln_f.bias", {"norm.bias"}}};
// Behind "h.N." and "blockN."
static const name_t block_names[] = {
    {"ln_1.weight", {"norm1.scale"}},
    {"ln_1.bias", {"norm1.bias"}},
    {"attn.c_attn.weight",
     {"attention.query.W", "attention.key.W", "attention.value.W"}},
    {"attn.c_attn.bias",
     {"attention.query.b", "attention.key.b", "attention.value.b"}},
    {"attn.c_proj.weight", {"attention.out.W"}},
    {"attn.c_proj.bias", {"attention.out.b"}},
    {"ln_2.weight", {"norm2.scale"}},
    {"ln_2.bias", {"norm2.bias"}},
    {"mlp.c_fc.weight", {"expand.W"}},
    {"mlp.c_fc.bias", {"expand.b"}},
    {"mlp.c_proj.weight", {"shrink.W"}},
    {"mlp.c_proj.bias", {"shrink.b"}}};
enum {
  OUTER_NAMES = sizeof(outer_names) / sizeof(outer_names[0]),
  BLOCK_NAMES = sizeof(block_names) / sizeof(block_names[0])
};
// Masks, which some files have too: no parameters.
static const char* const mask_names[] = {"attn.bias", "attn.masked_bias"};

typedef struct weight_s {
  char name[NAME_BYTES];  // with the prefix
  choir_tensor_t* parts[MAX_PARTS];
  size_t part_count;
} weight_t;

typedef struct weights_s {
  choir_stream_t* stream;
  choir_device_t* device;
  weight_t at[MAX_WEIGHTS];
  size_t count;
} weights_t;

// block < 0: none. A model without biases lacks some.
static bool add_name(const choir_param_set_t* params, const name_t* name,
                     int block, weights_t* weights) {
  weight_t* weight = &weights->at[weights->count];
  char theirs[16] = "", ours[NAME_BYTES];
  if (block >= 0) snprintf(theirs, sizeof(theirs), "h.%d.", block);
  snprintf(weight->name, NAME_BYTES, PREFIX "%s%s", theirs, name->theirs);
  weight->part_count = 0;
  for (int i = 0; i < MAX_PARTS && name->ours[i]; ++i) {
    if (block < 0)
      snprintf(ours, NAME_BYTES, "%s", name->ours[i]);
    else
      snprintf(ours, NAME_BYTES, "block%d.%s", block, name->ours[i]);
    const choir_param_t* param = choir_param_set_find(params, ours);
    if (!param) return false;
    weight->parts[weight->part_count++] = param->value;
  }
  ++weights->count;
  return true;
}

// For the caller to free.
static choir_status_t list_weights(choir_model_t* model,
                                   weights_t** out_weights) {
  weights_t* weights = calloc(1, sizeof(weights_t));
  if (!weights) return CHOIR_ERROR(OUT_OF_MEMORY, "no memory for names");
  const choir_param_set_t* params = choir_model_params(model);
  weights->device = choir_model_device(model);
  weights->stream = choir_device_stream(weights->device);
  for (size_t i = 0; i < OUTER_NAMES; ++i)
    add_name(params, &outer_names[i], -1, weights);
  bool has_more = true;
  for (int block = 0; has_more; ++block) {
    has_more = false;
    for (size_t i = 0; i < BLOCK_NAMES && weights->count < MAX_WEIGHTS; ++i)
      has_more |= add_name(params, &block_names[i], block, weights);
  }
  *out_weights = weights;
  return NULL;
}

// ---- Reading ----

static const choir_checkpoint_entry_t* find(const choir_checkpoint_t* file,
                                            const char* name) {
  const choir_checkpoint_entry_t* entry = choir_checkpoint_find(file, name);
  return entry ? entry : choir_checkpoint_find(file, name + strlen(PREFIX));
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
  const choir_checkpoint_entry_t* entry = find(file, weight->name);
  if (!entry)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "weights: the file has no %s, which the model needs",
                       weight->name);
  CHOIR_TRY(check_shape(entry, weight));
  choir_tensor_t* whole = NULL;
  choir_status_t status = read_f32(file, entry, weights, &whole);
  const int32_t last = entry->ndim - 1;
  const int64_t columns = entry->shape[last] / (int64_t)weight->part_count;
  for (size_t i = 0; i < weight->part_count && !status; ++i) {
    choir_tensor_t* part = weight->parts[i];
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

// "h.12.attn.bias" of "h.<number>."
static bool is_mask(const char* name) {
  int length = 0;
  for (size_t i = 0; i < sizeof(mask_names) / sizeof(mask_names[0]); ++i)
    if (sscanf(name, "h.%*5[0-9].%n", &length) == 0 && length &&
        strcmp(name + length, mask_names[i]) == 0)
      return true;
  return false;
}

// The model multiplies by wte.weight at the end, so an lm_head.weight of its
// own cannot be taken.
static choir_status_t check_head(choir_checkpoint_t* file,
                                 const choir_checkpoint_entry_t* head,
                                 const weights_t* weights) {
  const choir_checkpoint_entry_t* table = find(file, PREFIX "wte.weight");
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
                         "matrix for both",
                         head->name, table->name);
  return status;
}

// That the model has a place for each tensor of the file.
static choir_status_t check_all_known(choir_checkpoint_t* file,
                                      const weights_t* weights) {
  const size_t skip = strlen(PREFIX);
  for (size_t i = 0; i < choir_checkpoint_count(file); ++i) {
    const choir_checkpoint_entry_t* entry = choir_checkpoint_get(file, i);
    const char* name = entry->name;
    if (strncmp(name, PREFIX, skip) == 0) name += skip;
    bool is_known = is_mask(name);
    for (size_t j = 0; j < weights->count && !is_known; ++j)
      is_known = strcmp(name, weights->at[j].name + skip) == 0;
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

choir_status_t gpt_read_weights(choir_model_t* model, const char* path) {
  choir_checkpoint_t* file = NULL;
  weights_t* weights = NULL;
  CHOIR_TRY(choir_checkpoint_open(path, &file));
  choir_status_t status = list_weights(model, &weights);
  if (!status) status = read_all(file, weights);
  free(weights);
  choir_checkpoint_destroy(file);
  return status;
}

// ---- Writing ----

static choir_status_t join(const weights_t* weights, const weight_t* weight,
                           choir_tensor_t** out_whole) {
  if (weight->part_count == 1) {
    choir_tensor_retain(weight->parts[0]);
    *out_whole = weight->parts[0];
    return NULL;
  }
  const choir_concat_attrs_t last = {
      .axis = choir_tensor_ndim(weight->parts[0]) - 1};
  return choir_op_run(weights->stream, CHOIR_OP_CONCAT, weight->parts,
                      weight->part_count, &last, false, out_whole);
}

choir_status_t gpt_write_weights(choir_model_t* model, const char* path) {
  // transformers asks a file which library wrote it; of PyTorch's layout.
  static const choir_metadata_t format = {"format", "pt"};
  weights_t* weights = NULL;
  choir_named_tensor_t tensors[MAX_WEIGHTS] = {0};
  CHOIR_TRY(list_weights(model, &weights));
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
