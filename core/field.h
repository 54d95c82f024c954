// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_FIELD_H_
#define CHOIR_CORE_FIELD_H_

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// A field table describes a plain struct (attributes of an op, config of a
// layer or optimizer, options of a command line) once; defaults, checks,
// printing, hashing, flags and Python read it.
//
//   static const choir_field_t fields[] = {
//     CHOIR_FIELD_FLOAT(choir_sgd_config_t, lr, 0.1, 0, 1e9, "step size"),
//     ...
//   };
//   const choir_struct_def_t choir_sgd_config_def =
//       CHOIR_STRUCT_DEF("sgd", choir_sgd_config_t, fields, "...");
//
// Ownership: tables are static. A STRING field borrows the text it is set to.

typedef enum choir_field_kind_e {
  CHOIR_FIELD_KIND_BOOL,    // bool
  CHOIR_FIELD_KIND_INT,     // int64_t
  CHOIR_FIELD_KIND_FLOAT,   // double
  CHOIR_FIELD_KIND_ENUM,    // int32_t, index into enum_names
  CHOIR_FIELD_KIND_STRING,  // const char*, may be NULL
} choir_field_kind_t;

typedef struct choir_field_s {
  const char* name;
  choir_field_kind_t kind;
  size_t offset;
  int32_t count;  // > 1: an array of that many
  double default_value;
  const char* default_text;  // STRING
  double minimum;            // INT and FLOAT: inclusive
  double maximum;
  const char* const* enum_names;  // ENUM: NULL-terminated
  const char* doc;
} choir_field_t;

typedef struct choir_struct_def_s {
  const char* name;
  const char* doc;
  size_t bytes;
  const choir_field_t* fields;
  size_t field_count;
} choir_struct_def_t;

#define CHOIR_FIELD_BOOL(type, field, def, doc)                               \
  {                                                                           \
#field, CHOIR_FIELD_KIND_BOOL, offsetof(type, field), 1, def, NULL, 0, 1, \
        NULL, doc                                                             \
  }
#define CHOIR_FIELD_INT(type, field, def, min, max, doc)               \
  {                                                                    \
#field, CHOIR_FIELD_KIND_INT, offsetof(type, field), 1, def, NULL, \
        (double)(min), (double)(max), NULL, doc                        \
  }
#define CHOIR_FIELD_INTS(type, field, n, def, min, max, doc)           \
  {                                                                    \
#field, CHOIR_FIELD_KIND_INT, offsetof(type, field), n, def, NULL, \
        (double)(min), (double)(max), NULL, doc                        \
  }
#define CHOIR_FIELD_FLOAT(type, field, def, min, max, doc)                    \
  {                                                                           \
#field, CHOIR_FIELD_KIND_FLOAT, offsetof(type, field), 1, def, NULL, min, \
        max, NULL, doc                                                        \
  }
#define CHOIR_FIELD_ENUM(type, field, names, def, doc)                        \
  {                                                                           \
#field, CHOIR_FIELD_KIND_ENUM, offsetof(type, field), 1, def, NULL, 0, 0, \
        names, doc                                                            \
  }
#define CHOIR_FIELD_STRING(type, field, def, doc)                            \
  {                                                                          \
#field, CHOIR_FIELD_KIND_STRING, offsetof(type, field), 1, 0, def, 0, 0, \
        NULL, doc                                                            \
  }
#define CHOIR_STRUCT_DEF(name, type, fields, doc) \
  { name, doc, sizeof(type), fields, sizeof(fields) / sizeof(fields[0]) }

// Writes every field's default into the struct.
CHOIR_API void choir_struct_init(const choir_struct_def_t* def, void* object);
// INVALID_ARGUMENT names struct, field, value and allowed range.
CHOIR_API choir_status_t choir_struct_check(const choir_struct_def_t* def,
                                            const void* object) CHOIR_NODISCARD;
// Sets one field (all elements of an array from "2,2" or one "2") from text
// and checks it; '-' and '_' in names are the same. An unknown name fails
// with NOT_FOUND and lists the known ones.
CHOIR_API choir_status_t choir_struct_set(const choir_struct_def_t* def,
                                          void* object, const char* name,
                                          const char* text) CHOIR_NODISCARD;
// Sets several fields from "name=value,name=value", one after the other; a
// failure leaves those before it set. Not for texts and arrays.
CHOIR_API choir_status_t choir_struct_set_list(const choir_struct_def_t* def,
                                               void* object, const char* text)
    CHOIR_NODISCARD;
// The field called `name`, or NULL.
CHOIR_API const choir_field_t* choir_struct_find(const choir_struct_def_t* def,
                                                 const char* name);
// "lr=0.1 momentum=0.9" into `text`, cut at text_bytes. Returns `text`.
CHOIR_API const char* choir_struct_print(const choir_struct_def_t* def,
                                         const void* object, char* text,
                                         size_t text_bytes);
// Whether all values are the same, to the bit, whatever lies between them.
CHOIR_API bool choir_struct_equal(const choir_struct_def_t* def, const void* a,
                                  const void* b);
// 64 bits over the values, independent of padding.
CHOIR_API uint64_t choir_struct_hash(const choir_struct_def_t* def,
                                     const void* object);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_FIELD_H_
