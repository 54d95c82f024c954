// SPDX-License-Identifier: Apache-2.0
#include "examples/train_options.h"

#include <stdio.h>
#include <string.h>

const char* const train_launcher_names[] = {"spawn", "mpi", NULL};
const char* const train_precision_names[] = {"f32", "bf16", "f16", NULL};
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

static const choir_field_t* find(const choir_struct_def_t* def,
                                 const char* argument) {
  for (size_t i = 0; i < def->field_count; ++i)
    if (is_flag(argument, def->fields[i].name)) return &def->fields[i];
  return NULL;
}

static void init(train_set_defaults_t set_defaults, train_options_t* options) {
  choir_struct_init(&train_dist_options_def, options);
  if (set_defaults) set_defaults(options);
}

choir_status_t train_options_parse(const choir_struct_def_t* def,
                                   train_set_defaults_t set_defaults, int argc,
                                   char** argv, train_options_t* out_options) {
  init(set_defaults, out_options);
  for (int i = 1; i < argc; ++i) {
    const choir_field_t* field = find(def, argv[i]);
    if (!field)
      return CHOIR_ERROR(NOT_FOUND, "unknown %s '%s'; --help lists the flags",
                         argv[i][0] == '-' ? "flag" : "argument", argv[i]);
    const char* equals = strchr(argv[i], '=');
    const char* value = equals ? equals + 1 : NULL;
    if (!value && field->kind == CHOIR_FIELD_KIND_BOOL) value = "true";
    if (!value && i + 1 < argc) value = argv[++i];
    if (!value || !*value)
      return CHOIR_ERROR(INVALID_ARGUMENT, "%s needs a value (%s)", argv[i],
                         field->doc);
    CHOIR_TRY(choir_struct_set(def, out_options, field->name, value));
    if (out_options->help) return NULL;
  }
  if (out_options->save_every && !out_options->save)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--save-every says when but not where; give --save FILE "
                       "too");
  if (out_options->balance && out_options->shares)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "--balance measures what --shares says; give one of "
                       "them");
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

static void print_default(const choir_field_t* field,
                          const train_options_t* options) {
  const char* value = (const char*)options + field->offset;
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

void train_options_print_flags(const choir_struct_def_t* def,
                               train_set_defaults_t set_defaults) {
  train_options_t options;
  init(set_defaults, &options);
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    char name[32];
    snprintf(name, sizeof(name), "--%s", field->name);
    for (char* c = name; *c; ++c)
      if (*c == '_') *c = '-';
    printf("  %-15s %s", name, field->doc);
    print_default(field, &options);
    printf("\n");
  }
}

choir_status_t train_options_set_steps(const train_options_t* options,
                                       choir_model_t* model) {
  static const choir_dtype_t precisions[] = {CHOIR_DTYPE_F32, CHOIR_DTYPE_BF16,
                                             CHOIR_DTYPE_F16};
  choir_model_set_graph(model, options->graph, options->sequential);
  return choir_model_set_precision(model, precisions[options->precision]);
}
