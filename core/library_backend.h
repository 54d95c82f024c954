// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_LIBRARY_BACKEND_H_
#define CHOIR_CORE_LIBRARY_BACKEND_H_

#include <pthread.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// For code that calls a shared library which need not be on the machine: a
// table of its functions, filled in when first used. The library stays open
// until the process ends, as it may have started threads of its own.
//
//   static foo_table_t foo;  // { int (*init)(void); }
//   static const choir_library_symbol_t symbols[] = {{"foo_init", &foo.init}};
//   static choir_library_t library = {
//       .who = "foo",
//       .needs = "foo 3",
//       .variable = "CHOIR_FOO_LIBRARY",
//       .files = {"libfoo.so.3"},
//       .table = &foo,
//       .symbols = symbols,
//       .symbol_count = 1,
//       .lock = PTHREAD_MUTEX_INITIALIZER,
//   };
//   const void* table = NULL;
//   CHOIR_TRY(choir__library_open(&library, &table));

typedef struct choir_library_symbol_s {
  const char* name;
  void* place;  // a pointer to a function, that is filled in
} choir_library_symbol_t;

typedef struct choir_library_s {
  const char* who;       // starts each message
  const char* needs;     // what the user is to install; ends it
  const char* variable;  // of the environment: a path to take instead; or NULL
  const char* without;   // what happens without it, for _is_there; or NULL
  const char* files[4];  // names or paths, tried in turn; NULL after the last
  const void* table;     // that the symbols fill in
  const choir_library_symbol_t* symbols;
  size_t symbol_count;
  // The call's own.
  pthread_mutex_t lock;
  bool tried;
  bool told;
  const void* replacement;
  char failure[768];  // empty: open
} choir_library_t;

// Opens the library and fills in all symbols, the first time, and gives the
// table. UNAVAILABLE, then and later, with what was tried and why each failed,
// or with the symbol that is not there. Any thread.
choir_status_t choir__library_open(choir_library_t* library,
                                   const void** out_table) CHOIR_NODISCARD;

// The same for a caller that can do without: whether it is open. Why not, and
// `without`, is logged the first time. Any thread.
bool choir__library_is_there(choir_library_t* library);

// For tests: `table` takes the place of the machine's library, whether or not
// there is one, until NULL is given. While nobody uses the table.
void choir__library_replace(choir_library_t* library, const void* table);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_CORE_LIBRARY_BACKEND_H_
