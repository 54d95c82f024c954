// SPDX-License-Identifier: Apache-2.0
#include "examples/train_options.h"

#include <stdio.h>
#include <string.h>

const char* const train_launcher_names[] = {"spawn", "mpi", NULL};
const char* const train_precision_names[] = {"f32", "bf16", "f16", "auto",
                                             NULL};
// As choir_trace_detail_t.
const char* const train_trace_names[] = {"tensor", "layer", "step", NULL};
const char* const train_comm_names[] = {"auto", "shm",  "tcp",
                                        "mpi",  "nccl", NULL};

static const choir_field_t fields[] = {
    CHOIR_CONFIG_TABLE(train_options_t, TRAIN_ALL_OPTIONS)};

// The first of all fields: those that TRAIN_OPTIONS names.
#define COUNT_ONE(...) +1
enum { COMMON_COUNT = 0 TRAIN_OPTIONS(COUNT_ONE, ) };

const choir_struct_def_t train_options_def = {
    "flags", "", sizeof(train_options_t), fields, COMMON_COUNT};
const choir_struct_def_t train_dist_options_def =
    CHOIR_STRUCT_DEF("flags", train_options_t, fields, "");

// Whether `argument` is --name or --name=value, where '-' and '_' in names are
// the same.
static bool is_flag(const char* argument, const char* name) {
  if (strncmp(argument, "--", 2) != 0) return false;
  argument += 2;
  for (; *name; ++name, ++argument) {
    const char given = *argument == '-' ? '_' : *argument;
    if (given != *name) return false;
  }
  return *argument == 0 || *argument == '=';
}

static bool is_absent(const train_flags_t* flags, const char* name) {
  for (const char* const* at = flags->absent; at && *at; ++at)
    if (strcmp(*at, name) == 0) return true;
  return false;
}

static const choir_field_t* find(const choir_struct_def_t* def,
                                 const char* argument) {
  for (size_t i = 0; def && i < def->field_count; ++i)
    if (is_flag(argument, def->fields[i].name)) return &def->fields[i];
  return NULL;
}

// Values as they are without any flag.
static void init(const train_flags_t* flags, train_options_t* options) {
  choir_struct_init(&train_dist_options_def, options);
  if (flags->set_defaults) flags->set_defaults(options);
}

static choir_status_t read_flags(const train_flags_t* flags, int argc,
                                 char** argv, train_options_t* options) {
  for (int i = 1; i < argc; ++i) {
    const choir_struct_def_t* def = flags->own_def;
    void* values = flags->own;
    const choir_field_t* field = find(def, argv[i]);
    if (!field) {
      def = flags->def;
      values = options;
      field = find(def, argv[i]);
    }
    if (!field || (def == flags->def && is_absent(flags, field->name)))
      return CHOIR_ERROR(NOT_FOUND, "unknown %s '%s'; --help lists the flags",
                         argv[i][0] == '-' ? "flag" : "argument", argv[i]);
    const char* equals = strchr(argv[i], '=');
    const char* value = equals ? equals + 1 : NULL;
    if (!value && field->kind == CHOIR_FIELD_KIND_BOOL) value = "true";
    if (!value && i + 1 < argc) value = argv[++i];
    if (!value || !*value)
      return CHOIR_ERROR(INVALID_ARGUMENT, "%s needs a value (%s)", argv[i],
                         field->doc);
    CHOIR_TRY(choir_struct_set(def, values, field->name, value));
    if (options->help) return NULL;
  }
  return NULL;
}

choir_status_t train_options_parse(const train_flags_t* flags, int argc,
                                   char** argv, train_options_t* out_options) {
  train_options_t* options = out_options;
  if (flags->own_def) choir_struct_init(flags->own_def, flags->own);
  choir_struct_init(&train_dist_options_def, options);
  CHOIR_TRY(read_flags(flags, argc, argv, options));
  init(flags, options);
  CHOIR_TRY(read_flags(flags, argc, argv, options));
  if (options->help) return NULL;
  if (options->save_every && !options->save)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--save-every says when but not where; give --save FILE "
                       "too");
  if (options->balance && options->shares)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--balance measures what --shares says; give one of "
                       "them");
  if (train_options_given(argc, argv, "batch_size")) {
    if (train_options_given(argc, argv, "global_batch"))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "--batch-size is for each worker, --global-batch for "
                         "all of them; give one of them");
    options->global_batch = 0;  // the program's default
  }
  return NULL;
}

bool train_options_given(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i)
    if (is_flag(argv[i], flag)) return true;
  return false;
}

choir_status_t train_options_strategy(const train_options_t* options,
                                      const choir_strategy_def_t** out_def,
                                      choir_strategy_config_t* out_config) {
  return choir_strategy_config_read(
      options->plan ? "auto" : options->dist_option, options->spars,
      options->dist_settings, out_def, out_config);
}

static void print_default(const choir_field_t* field, const void* values) {
  const char* value = (const char*)values + field->offset;
  switch (field->kind) {
    case CHOIR_FIELD_KIND_INT:
      printf(" [%lld]", (long long)*(const int64_t*)value);
      break;
    case CHOIR_FIELD_KIND_FLOAT:
      printf(" [%.10g]", *(const double*)value);
      break;
    case CHOIR_FIELD_KIND_ENUM:
      printf(" (%s", field->enum_names[0]);
      for (int i = 1; field->enum_names[i]; ++i)
        printf(", %s", field->enum_names[i]);
      printf(") [%s]", field->enum_names[*(const int32_t*)value]);
      break;
    case CHOIR_FIELD_KIND_STRING:
      if (*(const char* const*)value)
        printf(" [%s]", *(const char* const*)value);
      break;
    case CHOIR_FIELD_KIND_BOOL:
      if (*(const bool*)value) printf(" [on; --%s=false]", field->name);
      break;
  }
}

static void print_flag(const choir_field_t* field, const void* values) {
  char name[32];
  snprintf(name, sizeof(name), "--%s", field->name);
  for (char* c = name; *c; ++c)
    if (*c == '_') *c = '-';
  printf("  %-15s %s", name, field->doc);
  print_default(field, values);
  printf("\n");
}

void train_options_print_flags(const train_flags_t* flags) {
  train_options_t options;
  init(flags, &options);
  for (size_t i = 0; flags->own_def && i < flags->own_def->field_count; ++i)
    print_flag(&flags->own_def->fields[i], flags->own);
  for (size_t i = 0; i < flags->def->field_count; ++i)
    if (!is_absent(flags, flags->def->fields[i].name))
      print_flag(&flags->def->fields[i], &options);
}

choir_status_t train_options_set_steps(const train_options_t* options,
                                       choir_model_t* model) {
  static const choir_dtype_t precisions[] = {
      [TRAIN_PRECISION_F32] = CHOIR_DTYPE_F32,
      [TRAIN_PRECISION_BF16] = CHOIR_DTYPE_BF16,
      [TRAIN_PRECISION_F16] = CHOIR_DTYPE_F16,
      [TRAIN_PRECISION_AUTO] = CHOIR_DTYPE_F32};
  choir_model_set_graph(model, options->graph, options->sequential);
  CHOIR_TRY(choir_model_set_loss_check(model, true));
  return choir_model_set_precision(model, precisions[options->precision]);
}
