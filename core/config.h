// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_CONFIG_H_
#define CHOIR_CORE_CONFIG_H_

#include "core/field.h"

// A config struct, its defaults and its field table from one list, so that no
// second place repeats them:
//
//   #define CHOIR_SGD_FIELDS(X, T) [continued lines]
//     X(T, FLOAT, lr, 0.1, 0, 1e9, "step size")
//     X(T, BOOL, nesterov, false, 0, 1, "look ahead")
//   CHOIR_CONFIG_STRUCT(choir_sgd_config_t, CHOIR_SGD_FIELDS);
//
//   choir_sgd_config_t config = {CHOIR_CONFIG_DEFAULTS(CHOIR_SGD_FIELDS)};
//
//   static const choir_field_t sgd_fields[] = {                 // in one .c
//       CHOIR_CONFIG_TABLE(choir_sgd_config_t, CHOIR_SGD_FIELDS)};
//
// X(T, KIND, name, default, minimum, maximum, doc). KIND is BOOL (bool), INT
// (int64_t), FLOAT (double), ENUM (int32_t; `minimum` is the NULL-terminated
// array of names) or STRING (const char*).

#define CHOIR_CONFIG_TYPE_BOOL bool
#define CHOIR_CONFIG_TYPE_INT int64_t
#define CHOIR_CONFIG_TYPE_FLOAT double
#define CHOIR_CONFIG_TYPE_ENUM int32_t
#define CHOIR_CONFIG_TYPE_STRING const char*

#define CHOIR_CONFIG_MEMBER_(T, KIND, name, def, min, max, doc) \
  CHOIR_CONFIG_TYPE_##KIND name;
#define CHOIR_CONFIG_STRUCT(T, FIELDS) \
  typedef struct {                     \
    FIELDS(CHOIR_CONFIG_MEMBER_, T)    \
  } T

#define CHOIR_CONFIG_DEFAULT_(T, KIND, name, def, min, max, doc) .name = def,
#define CHOIR_CONFIG_DEFAULTS(FIELDS) FIELDS(CHOIR_CONFIG_DEFAULT_, )

#define CHOIR_CONFIG_ROW_BOOL(T, name, def, min, max, doc) \
  CHOIR_FIELD_BOOL(T, name, def, doc)
#define CHOIR_CONFIG_ROW_INT(T, name, def, min, max, doc) \
  CHOIR_FIELD_INT(T, name, def, min, max, doc)
#define CHOIR_CONFIG_ROW_FLOAT(T, name, def, min, max, doc) \
  CHOIR_FIELD_FLOAT(T, name, def, min, max, doc)
#define CHOIR_CONFIG_ROW_ENUM(T, name, def, names, max, doc) \
  CHOIR_FIELD_ENUM(T, name, names, def, doc)
#define CHOIR_CONFIG_ROW_STRING(T, name, def, min, max, doc) \
  CHOIR_FIELD_STRING(T, name, def, doc)
#define CHOIR_CONFIG_ROW_(T, KIND, name, def, min, max, doc) \
  CHOIR_CONFIG_ROW_##KIND(T, name, def, min, max, doc),
#define CHOIR_CONFIG_TABLE(T, FIELDS) FIELDS(CHOIR_CONFIG_ROW_, T)

// `call`, whose argument is a struct with defaults and, after them, the user's
// own values for some of the same fields. Compilers warn of that (-Wextra);
// here it is meant.
#if defined(__GNUC__)
#define CHOIR_CONFIG_CALL_(type, call)                                     \
  __extension__({                                                          \
    _Pragma("GCC diagnostic push")                                         \
        _Pragma("GCC diagnostic ignored \"-Woverride-init\"") type made_ = \
            (call);                                                        \
    _Pragma("GCC diagnostic pop") made_;                                   \
  })
#else
#define CHOIR_CONFIG_CALL_(type, call) (call)
#endif

#endif  // CHOIR_CORE_CONFIG_H_
