// SPDX-License-Identifier: Apache-2.0
#include "core/field.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

// One element of a field, whatever its kind.
typedef union element_u {
  bool boolean;
  int64_t integer;
  double number;
  int32_t choice;
  const char* string;
} element_t;

static size_t element_bytes(choir_field_kind_t kind) {
  switch (kind) {
    case CHOIR_FIELD_KIND_BOOL:
      return sizeof(bool);
    case CHOIR_FIELD_KIND_INT:
      return sizeof(int64_t);
    case CHOIR_FIELD_KIND_FLOAT:
      return sizeof(double);
    case CHOIR_FIELD_KIND_ENUM:
      return sizeof(int32_t);
    case CHOIR_FIELD_KIND_STRING:
      return sizeof(const char*);
  }
  return 0;
}

// An element through memcpy: the table knows where it lies, the compiler must
// not guess what else does.
static element_t load(const choir_field_t* field, const void* object,
                      int32_t index) {
  element_t element;
  memset(&element, 0, sizeof(element));
  size_t bytes = element_bytes(field->kind);
  memcpy(&element, (const char*)object + field->offset + (size_t)index * bytes,
         bytes);
  return element;
}

static void store(const choir_field_t* field, void* object, int32_t index,
                  element_t element) {
  size_t bytes = element_bytes(field->kind);
  memcpy((char*)object + field->offset + (size_t)index * bytes, &element,
         bytes);
}

static int32_t enum_count(const choir_field_t* field) {
  int32_t count = 0;
  while (field->enum_names[count]) ++count;
  return count;
}

void choir_struct_init(const choir_struct_def_t* def, void* object) {
  memset(object, 0, def->bytes);
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    element_t element;
    memset(&element, 0, sizeof(element));
    switch (field->kind) {
      case CHOIR_FIELD_KIND_BOOL:
        element.boolean = field->default_value != 0.0;
        break;
      case CHOIR_FIELD_KIND_INT:
        element.integer = (int64_t)field->default_value;
        break;
      case CHOIR_FIELD_KIND_FLOAT:
        element.number = field->default_value;
        break;
      case CHOIR_FIELD_KIND_ENUM:
        element.choice = (int32_t)field->default_value;
        break;
      case CHOIR_FIELD_KIND_STRING:
        element.string = field->default_text;
        break;
    }
    for (int32_t k = 0; k < field->count; ++k) store(field, object, k, element);
  }
}

// ---- Text ----

// Appends to a text of fixed size; what does not fit is cut.
typedef struct text_s {
  char* start;
  size_t bytes;
  size_t used;
} text_t;

static void put(text_t* text, const char* string) {
  while (*string && text->used + 1 < text->bytes)
    text->start[text->used++] = *string++;
  if (text->bytes > 0) text->start[text->used] = '\0';
}

// The host program may have set a locale whose decimal point is a comma (GTK
// and Qt do). Texts of Choir have a point everywhere.
static char locale_point(void) {
  const struct lconv* conventions = localeconv();
  const char* point = conventions ? conventions->decimal_point : NULL;
  return point && point[0] && !point[1] ? point[0] : '.';
}

enum { NUMBER_BYTES = 48 };

// The shortest of the usual forms that reads back as the same double.
static const char* print_number(double value, char text[NUMBER_BYTES]) {
  for (int digits = 6; digits <= 17; ++digits) {
    snprintf(text, NUMBER_BYTES, "%.*g", digits, value);
    if (value != value || strtod(text, NULL) == value) break;
  }
  char point = locale_point();
  for (char* c = text; *c; ++c)
    if (*c == point) *c = '.';
  return text;
}

static void put_element(text_t* text, const choir_field_t* field,
                        element_t element) {
  char number[NUMBER_BYTES];
  switch (field->kind) {
    case CHOIR_FIELD_KIND_BOOL:
      put(text, element.boolean ? "true" : "false");
      return;
    case CHOIR_FIELD_KIND_INT:
      snprintf(number, sizeof(number), "%lld", (long long)element.integer);
      put(text, number);
      return;
    case CHOIR_FIELD_KIND_FLOAT:
      put(text, print_number(element.number, number));
      return;
    case CHOIR_FIELD_KIND_ENUM:
      if (element.choice >= 0 && element.choice < enum_count(field)) {
        put(text, field->enum_names[element.choice]);
      } else {
        snprintf(number, sizeof(number), "%d", element.choice);
        put(text, number);
      }
      return;
    case CHOIR_FIELD_KIND_STRING:
      put(text, element.string ? element.string : "");
      return;
  }
}

// What a field takes: "0 to 1e+09", "one of mean, sum".
static void put_needed(text_t* text, const choir_field_t* field) {
  char number[NUMBER_BYTES];
  switch (field->kind) {
    case CHOIR_FIELD_KIND_BOOL:
      put(text, "true or false");
      return;
    case CHOIR_FIELD_KIND_INT:
    case CHOIR_FIELD_KIND_FLOAT:
      put(text, field->kind == CHOIR_FIELD_KIND_INT ? "a whole number from "
                                                    : "a number from ");
      put(text, print_number(field->minimum, number));
      put(text, " to ");
      put(text, print_number(field->maximum, number));
      return;
    case CHOIR_FIELD_KIND_ENUM:
      put(text, "one of ");
      for (int32_t k = 0; field->enum_names[k]; ++k) {
        if (k > 0) put(text, ", ");
        put(text, field->enum_names[k]);
      }
      return;
    case CHOIR_FIELD_KIND_STRING:
      put(text, "a text");
      return;
  }
}

enum { TEXT_BYTES = 512 };

static choir_status_t refuse(const choir_struct_def_t* def,
                             const choir_field_t* field, const char* given) {
  char needed_bytes[TEXT_BYTES] = "";
  text_t needed = {needed_bytes, sizeof(needed_bytes), 0};
  put_needed(&needed, field);
  bool has_doc = field->doc && field->doc[0];
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s is %s; needs %s%s%s%s",
                     def->name, field->name, given, needed_bytes,
                     has_doc ? " (" : "", has_doc ? field->doc : "",
                     has_doc ? ")" : "");
}

static bool is_allowed(const choir_field_t* field, element_t element) {
  switch (field->kind) {
    case CHOIR_FIELD_KIND_INT:
      return (double)element.integer >= field->minimum &&
             (double)element.integer <= field->maximum;
    case CHOIR_FIELD_KIND_FLOAT:
      // False for NaN.
      return element.number >= field->minimum &&
             element.number <= field->maximum;
    case CHOIR_FIELD_KIND_ENUM:
      return element.choice >= 0 && element.choice < enum_count(field);
    case CHOIR_FIELD_KIND_BOOL:
    case CHOIR_FIELD_KIND_STRING:
      return true;
  }
  return false;
}

choir_status_t choir_struct_check(const choir_struct_def_t* def,
                                  const void* object) {
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    for (int32_t k = 0; k < field->count; ++k) {
      // Strings pass, and reading a bool that is neither 0 nor 1 is undefined.
      if (field->kind == CHOIR_FIELD_KIND_BOOL ||
          field->kind == CHOIR_FIELD_KIND_STRING)
        continue;
      element_t element = load(field, object, k);
      if (is_allowed(field, element)) continue;
      char given_bytes[TEXT_BYTES] = "";
      text_t given = {given_bytes, sizeof(given_bytes), 0};
      put_element(&given, field, element);
      return refuse(def, field, given_bytes);
    }
  }
  return NULL;
}

// ---- Names ----

// '-' and '_' are the same, so that a flag --weight-decay finds weight_decay.
static bool same_name(const char* a, const char* b) {
  for (; *a && *b; ++a, ++b) {
    char ca = *a == '-' ? '_' : *a;
    char cb = *b == '-' ? '_' : *b;
    if (ca != cb) return false;
  }
  return *a == *b;
}

const choir_field_t* choir_struct_find(const choir_struct_def_t* def,
                                       const char* name) {
  for (size_t i = 0; name && i < def->field_count; ++i)
    if (same_name(def->fields[i].name, name)) return &def->fields[i];
  return NULL;
}

// ---- Parsing ----

static bool parse_bool(const char* text, bool* out_value) {
  static const char* const words[2][4] = {{"false", "0", "no", "off"},
                                          {"true", "1", "yes", "on"}};
  for (int value = 0; value < 2; ++value) {
    for (int k = 0; k < 4; ++k) {
      if (strcmp(text, words[value][k]) == 0) {
        *out_value = value == 1;
        return true;
      }
    }
  }
  return false;
}

// `text` is a private copy and may be changed.
static bool parse_element(const choir_field_t* field, char* text,
                          element_t* out_element) {
  memset(out_element, 0, sizeof(*out_element));
  char* end = NULL;
  switch (field->kind) {
    case CHOIR_FIELD_KIND_BOOL:
      return parse_bool(text, &out_element->boolean);
    case CHOIR_FIELD_KIND_INT:
      errno = 0;
      out_element->integer = strtoll(text, &end, 10);
      return end != text && *end == '\0' && errno == 0;
    case CHOIR_FIELD_KIND_FLOAT: {
      char point = locale_point();
      for (char* c = text; *c; ++c)
        if (*c == '.') *c = point;
      out_element->number = strtod(text, &end);
      return end != text && *end == '\0';
    }
    case CHOIR_FIELD_KIND_ENUM:
      for (int32_t k = 0; field->enum_names[k]; ++k) {
        if (same_name(field->enum_names[k], text)) {
          out_element->choice = k;
          return true;
        }
      }
      return false;
    case CHOIR_FIELD_KIND_STRING:
      return false;  // not parsed but borrowed whole
  }
  return false;
}

choir_status_t choir_struct_set(const choir_struct_def_t* def, void* object,
                                const char* name, const char* text) {
  const choir_field_t* field = choir_struct_find(def, name);
  if (!field) {
    char known_bytes[TEXT_BYTES] = "";
    text_t known = {known_bytes, sizeof(known_bytes), 0};
    for (size_t i = 0; i < def->field_count; ++i) {
      if (i > 0) put(&known, ", ");
      put(&known, def->fields[i].name);
    }
    return CHOIR_ERROR(NOT_FOUND, "%s: no field is called '%s'; known are %s",
                       def->name, name ? name : "(null)", known_bytes);
  }
  if (field->kind == CHOIR_FIELD_KIND_STRING) {
    element_t element;
    memset(&element, 0, sizeof(element));
    element.string = text;
    store(field, object, 0, element);
    return NULL;
  }
  char given[TEXT_BYTES];
  if (!text || strlen(text) + 3 > sizeof(given))
    return refuse(def, field, text ? "a very long text" : "(null)");
  snprintf(given, sizeof(given), "'%s'", text);

  // Twice through the text: nothing is written before all of it is right.
  for (int pass = 0; pass < 2; ++pass) {
    char copy[TEXT_BYTES];
    strcpy(copy, text);
    element_t element;
    memset(&element, 0, sizeof(element));
    int32_t count = 0;
    char* rest = copy;
    while (rest) {
      char* comma = field->count > 1 ? strchr(rest, ',') : NULL;
      if (comma) *comma = '\0';
      if (count == field->count || !parse_element(field, rest, &element) ||
          !is_allowed(field, element))
        return refuse(def, field, given);
      if (pass == 1) store(field, object, count, element);
      ++count;
      rest = comma ? comma + 1 : NULL;
    }
    if (count != 1 && count != field->count) {
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: %s is %s, %d values; needs 1 or %d", def->name,
                         field->name, given, count, field->count);
    }
    if (pass == 1 && count == 1)
      for (int32_t k = 1; k < field->count; ++k)
        store(field, object, k, element);
  }
  return NULL;
}

// ---- Printing, comparing and hashing ----

const char* choir_struct_print(const choir_struct_def_t* def,
                               const void* object, char* text,
                               size_t text_bytes) {
  text_t out = {text, text_bytes, 0};
  put(&out, "");
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    if (i > 0) put(&out, " ");
    put(&out, field->name);
    put(&out, "=");
    for (int32_t k = 0; k < field->count; ++k) {
      if (k > 0) put(&out, ",");
      put_element(&out, field, load(field, object, k));
    }
  }
  return text;
}

choir_status_t choir_struct_set_list(const choir_struct_def_t* def,
                                     void* object, const char* text) {
  char copy[TEXT_BYTES];
  if (!text || strlen(text) >= sizeof(copy))
    return CHOIR_ERROR(INVALID_ARGUMENT, "%s: the list of settings is %s",
                       def->name, text ? "too long" : "NULL");
  strcpy(copy, text);
  for (char *name = copy, *next = NULL; name; name = next) {
    next = strchr(name, ',');
    if (next) *next++ = '\0';
    char* value = strchr(name, '=');
    if (!value)
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: '%s' in a list of settings; name=value is needed",
                         def->name, name);
    *value++ = '\0';
    const choir_field_t* field = choir_struct_find(def, name);
    if (field && (field->kind == CHOIR_FIELD_KIND_STRING || field->count > 1))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "%s: '%s' cannot be set in a list of settings",
                         def->name, name);
    CHOIR_TRY(choir_struct_set(def, object, name, value));
  }
  return NULL;
}

static bool same_text(const char* a, const char* b) {
  return a == b || (a && b && strcmp(a, b) == 0);
}

bool choir_struct_equal(const choir_struct_def_t* def, const void* a,
                        const void* b) {
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    for (int32_t k = 0; k < field->count; ++k) {
      const element_t x = load(field, a, k);
      const element_t y = load(field, b, k);
      const bool is_same =
          field->kind == CHOIR_FIELD_KIND_STRING
              ? same_text(x.string, y.string)
              : memcmp(&x, &y, element_bytes(field->kind)) == 0;
      if (!is_same) return false;
    }
  }
  return true;
}

uint64_t choir_struct_hash(const choir_struct_def_t* def, const void* object) {
  uint64_t hash = CHOIR_HASH_START;
  for (size_t i = 0; i < def->field_count; ++i) {
    const choir_field_t* field = &def->fields[i];
    for (int32_t k = 0; k < field->count; ++k) {
      element_t element = load(field, object, k);
      if (field->kind == CHOIR_FIELD_KIND_STRING) {
        // With the NUL, so that neighbours do not run together; a byte before
        // it tells NULL from "".
        unsigned char is_set = element.string != NULL;
        hash = choir_hash_bytes(hash, &is_set, 1);
        if (is_set)
          hash = choir_hash_bytes(hash, element.string,
                                  strlen(element.string) + 1);
        continue;
      }
      // -0 equals 0 and must hash so.
      if (field->kind == CHOIR_FIELD_KIND_FLOAT && element.number == 0.0)
        element.number = 0.0;
      hash = choir_hash_bytes(hash, &element, element_bytes(field->kind));
    }
  }
  return hash;
}
