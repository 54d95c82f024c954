// SPDX-License-Identifier: Apache-2.0
// What may be asked of a collective, on one rank and over all ranks.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "dist/comm_internal.h"

static const char* reduce_name(int32_t op) {
  static const char* const names[CHOIR_REDUCE_COUNT] = {
#define CHOIR_REDUCE_NAME_(ENUM, name) #name,
      CHOIR_REDUCE_LIST(CHOIR_REDUCE_NAME_)
#undef CHOIR_REDUCE_NAME_
  };
  return op >= 0 && op < CHOIR_REDUCE_COUNT ? names[op] : "?";
}

uint64_t choir__comm_name_hash(const char* name) {
  return name ? choir_hash_bytes(CHOIR_HASH_START, name, strlen(name)) : 0;
}

void choir__comm_name_copy(const char* name, char text[CHOIR_COMM_NAME_BYTES]) {
  const size_t length = strnlen(name, CHOIR_COMM_NAME_BYTES);
  memset(text, 0, CHOIR_COMM_NAME_BYTES);
  memcpy(text, name, length < CHOIR_COMM_NAME_BYTES ? length : 0);
  if (length < CHOIR_COMM_NAME_BYTES) return;
  enum { DIGITS = 8, KEPT = CHOIR_COMM_NAME_BYTES - 1 - 3 - DIGITS };
  snprintf(text, CHOIR_COMM_NAME_BYTES, "%.*s...%08x", KEPT, name,
           (unsigned)choir__comm_name_hash(name));
}

static void check_reduction(const choir_collective_t* collective,
                            char reason[CHOIR_COMM_REASON_BYTES]) {
  if (collective->op < 0 || collective->op >= CHOIR_REDUCE_COUNT) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "op is %d; 0 .. %d are known",
             (int)collective->op, CHOIR_REDUCE_COUNT - 1);
  } else if (collective->op == CHOIR_REDUCE_AVERAGE) {
    if (collective->dtype == CHOIR_DTYPE_BOOL)
      snprintf(reason, CHOIR_COMM_REASON_BYTES, "bool has no average");
    else if (!(collective->weight >= 0) || isinf(collective->weight))
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "weight is %g; it must be finite and 0 or more",
               collective->weight);
    else if (!choir_dtype_is_float(collective->dtype) &&
             collective->weight != 1)
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "weight is %g; averages of %s take weight 1 only",
               collective->weight, choir_dtype_name(collective->dtype));
  }
  if (reason[0] || !collective->scales) return;
  if (collective->dtype == CHOIR_DTYPE_BOOL)
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "bool cannot be scaled");
  else if (!isfinite(collective->prescale) || !isfinite(collective->postscale))
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "prescale is %g and postscale is %g; they must be finite",
             collective->prescale, collective->postscale);
}

static void check_splits(const choir_comm_t* comm,
                         const choir_comm_operation_t* operation,
                         char reason[CHOIR_COMM_REASON_BYTES]) {
  const choir_collective_t* collective = &operation->collective;
  if (operation->meta_bytes > comm->sizes.exchange) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "%d ranks are too many: their splits do not fit in a message of "
             "%zu bytes",
             comm->size, comm->sizes.exchange);
    return;
  }
  if (!collective->splits) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "splits is NULL");
    return;
  }
  int64_t sum = 0;
  for (int32_t r = 0; r < comm->size; ++r) {
    if (collective->splits[r] < 0) {
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "splits[%d] is %lld; it must be 0 or more", r,
               (long long)collective->splits[r]);
      return;
    }
    if (__builtin_add_overflow(sum, collective->splits[r], &sum))
      sum = INT64_MAX;
  }
  if (sum != collective->count)
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "splits add to %lld; count, the elements of src, is %lld",
             (long long)sum, (long long)collective->count);
}

static void check_group(const choir_comm_t* comm,
                        const choir_comm_operation_t* operation,
                        char reason[CHOIR_COMM_REASON_BYTES]) {
  const int32_t* ranks = operation->collective.src;
  const int64_t count = operation->collective.count;
  if (count < 1 || count > comm->size) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "a group of %lld ranks; there are %d", (long long)count,
             comm->size);
    return;
  }
  if (!ranks) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "ranks is NULL");
    return;
  }
  for (int32_t i = 0; i < count && !reason[0]; ++i) {
    if (ranks[i] < 0 || ranks[i] >= comm->size)
      snprintf(reason, CHOIR_COMM_REASON_BYTES,
               "ranks[%d] is %d; ranks are 0 .. %d", i, ranks[i],
               comm->size - 1);
    for (int32_t k = 0; k < i && !reason[0]; ++k)
      if (ranks[k] == ranks[i])
        snprintf(reason, CHOIR_COMM_REASON_BYTES,
                 "ranks[%d] and ranks[%d] are both %d", k, i, ranks[i]);
  }
}

choir_status_t choir__comm_refusal(const choir_collective_t* c) {
  if (!c->refusal) return NULL;
  const bool is_code = c->refusal_code > CHOIR_STATUS_OK &&
                       c->refusal_code <= CHOIR_STATUS_INTERNAL;
  return choir_status_make(
      is_code ? c->refusal_code : CHOIR_STATUS_INVALID_ARGUMENT, __FILE__,
      __LINE__, __func__, "%s", c->refusal[0] ? c->refusal : "no reason given");
}

void choir__comm_check_arguments(const choir_comm_t* comm,
                                 const choir_comm_operation_t* operation,
                                 char reason[CHOIR_COMM_REASON_BYTES]) {
  const choir_collective_t* collective = &operation->collective;
  int32_t kind = operation->kind;
  const choir__collective_t* traits = choir__collective(kind);
  reason[0] = 0;
  if (kind == CHOIR_COMM_KIND_GROUP) check_group(comm, operation, reason);
  if (!choir__collective_has_data(kind)) return;
  bool is_root = comm->rank == collective->root;
  bool is_group = collective->tensors != NULL;
  bool gives = is_root || !traits->root_gives;
  bool takes = is_root || !traits->root_takes;
  bool needs_src = gives && !traits->is_in_place;
  if (is_group) choir__comm_tensors_check(comm, operation, reason);
  if (reason[0]) return;
  int64_t room =
      traits->has_own_counts ? collective->capacity : collective->count;
  if (!takes) room = 0;
  bool has_count = gives || !traits->has_own_counts;
  if (!choir_dtype_bytes(collective->dtype)) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "%d is no dtype",
             (int)collective->dtype);
  } else if (has_count && collective->count < 0) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "count is %lld; it must be 0 or more",
             (long long)collective->count);
  } else if (room < 0) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "capacity is %lld; it must be 0 or more", (long long)room);
  } else if (choir__comm_payload_bytes(comm, operation) < 0) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES,
             "%lld elements on %d ranks do not fit in 63 bits of bytes",
             (long long)collective->count, comm->size);
  } else if (!is_group &&
             ((room > 0 && !collective->dst) ||
              (needs_src && collective->count > 0 && !collective->src))) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "%s is NULL",
             collective->dst ? "src" : "dst");
  } else if (traits->has_root &&
             (collective->root < 0 || collective->root >= comm->size)) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "root is %d; ranks are 0 .. %d",
             collective->root, comm->size - 1);
  } else if (traits->has_splits && gives) {
    check_splits(comm, operation, reason);
  } else if (traits->reduces) {
    check_reduction(collective, reason);
  }
}

// ---- Over ranks ----

// What one rank has, in the words of the first field that differs.
typedef void (*describe_t)(const choir_comm_t* comm, int32_t rank, char* text,
                           size_t text_bytes);

static void describe_kind(const choir_comm_t* comm, int32_t rank, char* text,
                          size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  const char* kind = choir__activity_kind_name(header->kind);
  if (header->name[0])
    snprintf(text, text_bytes, "%s '%s'", kind, header->name);
  else if (header->name_hash)
    snprintf(text, text_bytes, "%s ''", kind);
  else
    snprintf(text, text_bytes, "%s without name", kind);
}

static void describe_step(const choir_comm_t* comm, int32_t rank, char* text,
                          size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  if (header->step < 1) {
    snprintf(text, text_bytes, "outside of a step");
    return;
  }
  const int length =
      snprintf(text, text_bytes, "at step %lld", (long long)header->step - 1);
  if (header->batch && length > 0 && (size_t)length < text_bytes)
    snprintf(text + length, text_bytes - (size_t)length, " (batch %lld)",
             (long long)header->batch);
}

static void describe_count(const choir_comm_t* comm, int32_t rank, char* text,
                           size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  if (header->kind == CHOIR_COMM_KIND_BUFFER)
    snprintf(text, text_bytes, "%lld bytes", (long long)header->count);
  else if (choir__collective(header->kind)->has_own_counts)
    snprintf(text, text_bytes, "%s",
             choir_dtype_name((choir_dtype_t)header->dtype));
  else
    snprintf(text, text_bytes, "%lld %s", (long long)header->count,
             choir_dtype_name((choir_dtype_t)header->dtype));
}

static void describe_op(const choir_comm_t* comm, int32_t rank, char* text,
                        size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  snprintf(text, text_bytes, "%s", reduce_name(header->op));
}

static void describe_root(const choir_comm_t* comm, int32_t rank, char* text,
                          size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  snprintf(text, text_bytes, "root %d", header->root);
}

static void describe_memory(const choir_comm_t* comm, int32_t rank, char* text,
                            size_t text_bytes) {
  const bool on_plane = comm->headers[rank].words & CHOIR_COMM_WORDS_PLANE;
  snprintf(text, text_bytes, "%s", on_plane ? "a GPU's memory" : "the host's");
}

static void describe_sequence(const choir_comm_t* comm, int32_t rank,
                              char* text, size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  snprintf(text, text_bytes, "operation %llu",
           (unsigned long long)header->sequence);
}

// The factors of a reduction; 1 and 1 where it is not scaled.
static void get_factors(const choir_comm_t* comm, int32_t rank,
                        double factors[2]) {
  factors[0] = factors[1] = 1;
  if (comm->headers[rank].words & CHOIR_COMM_WORDS_FACTORS)
    memcpy(factors, choir__comm_words_factors(comm->messages[rank]),
           2 * sizeof(double));
}

// The number of tensors of a group, then their counts; NULL: no group.
static const int64_t* get_tensors(const choir_comm_t* comm, int32_t rank) {
  uint8_t words = comm->headers[rank].words;
  if (!(words & CHOIR_COMM_WORDS_TENSORS)) return NULL;
  return choir__comm_words_tensors(comm->messages[rank], words);
}

// The first tensor in which ranks differ, from 1; 0: in their number.
static int64_t find_different_tensor(const choir_comm_t* comm) {
  const int64_t* first = get_tensors(comm, 0);
  int64_t found = INT64_MAX;
  for (int32_t r = 1; r < comm->size; ++r) {
    const int64_t* tensors = get_tensors(comm, r);
    if (!first || !tensors || first[0] != tensors[0]) return 0;
    for (int64_t i = first[0]; i > 0; --i)
      if (tensors[i] != first[i] && i < found) found = i;
  }
  return found;
}

static void describe_tensors(const choir_comm_t* comm, int32_t rank, char* text,
                             size_t text_bytes) {
  const int64_t* tensors = get_tensors(comm, rank);
  int64_t which = find_different_tensor(comm);
  if (!tensors)
    snprintf(text, text_bytes, "no group");
  else if (!which)
    snprintf(text, text_bytes, "a group of %lld", (long long)tensors[0]);
  else
    snprintf(text, text_bytes, "%lld %s in tensor %lld",
             (long long)tensors[which],
             choir_dtype_name((choir_dtype_t)comm->headers[rank].dtype),
             (long long)which - 1);
}

static void describe_factors(const choir_comm_t* comm, int32_t rank, char* text,
                             size_t text_bytes) {
  double factors[2];
  get_factors(comm, rank, factors);
  snprintf(text, text_bytes, "prescale %.9g and postscale %.9g", factors[0],
           factors[1]);
}

static void describe_members(const choir_comm_t* comm, int32_t rank, char* text,
                             size_t text_bytes) {
  const int32_t* ranks = choir__comm_group_ranks(comm->messages[rank]);
  text[0] = 0;
  choir__text_append(text, text_bytes, "ranks");
  for (int64_t i = 0; i < comm->headers[rank].count; ++i) {
    choir__text_append(text, text_bytes, i ? ", " : " ");
    choir__text_append_number(text, text_bytes, (uint64_t)ranks[i]);
  }
}

static bool same_members(const choir_comm_t* comm, int32_t a, int32_t b) {
  const choir_comm_header_t* headers = comm->headers;
  if (headers[a].kind != CHOIR_COMM_KIND_GROUP) return true;
  return headers[a].count == headers[b].count &&
         !memcmp(choir__comm_group_ranks(comm->messages[a]),
                 choir__comm_group_ranks(comm->messages[b]),
                 (size_t)headers[a].count * sizeof(int32_t));
}

// An operation in a step and one of another name outside of steps differ by
// their names, which comes later.
static bool same_step(const choir_comm_t* comm, int32_t a, int32_t b) {
  const choir_comm_header_t* of_a = &comm->headers[a];
  const choir_comm_header_t* of_b = &comm->headers[b];
  const bool same_name =
      of_a->kind == of_b->kind && !strcmp(of_a->name, of_b->name);
  if (!same_name && (of_a->step == 0 || of_b->step == 0)) return true;
  return of_a->step == of_b->step && of_a->batch == of_b->batch;
}
static bool same_kind(const choir_comm_t* comm, int32_t a, int32_t b) {
  return comm->headers[a].kind == comm->headers[b].kind &&
         comm->headers[a].name_hash == comm->headers[b].name_hash;
}
static bool same_count(const choir_comm_t* comm, int32_t a, int32_t b) {
  return comm->headers[a].count == comm->headers[b].count &&
         comm->headers[a].dtype == comm->headers[b].dtype;
}
static bool same_op(const choir_comm_t* comm, int32_t a, int32_t b) {
  return comm->headers[a].op == comm->headers[b].op;
}
static bool same_root(const choir_comm_t* comm, int32_t a, int32_t b) {
  return comm->headers[a].root == comm->headers[b].root;
}
static bool same_sequence(const choir_comm_t* comm, int32_t a, int32_t b) {
  return comm->headers[a].sequence == comm->headers[b].sequence;
}
static bool same_memory(const choir_comm_t* comm, int32_t a, int32_t b) {
  return !((comm->headers[a].words ^ comm->headers[b].words) &
           CHOIR_COMM_WORDS_PLANE);
}
static bool same_tensors(const choir_comm_t* comm, int32_t a, int32_t b) {
  const int64_t* of_a = get_tensors(comm, a);
  const int64_t* of_b = get_tensors(comm, b);
  if (!of_a || !of_b) return of_a == of_b;
  return of_a[0] == of_b[0] &&
         !memcmp(of_a, of_b, (size_t)(1 + of_a[0]) * sizeof(int64_t));
}
static bool same_factors(const choir_comm_t* comm, int32_t a, int32_t b) {
  double of_a[2], of_b[2];
  get_factors(comm, a, of_a);
  get_factors(comm, b, of_b);
  return of_a[0] == of_b[0] && of_a[1] == of_b[1];
}

typedef struct comparison_s {
  bool (*same)(const choir_comm_t* comm, int32_t a, int32_t b);
  describe_t describe;
  const char* verb;
  const char* verb_of_several;
  const char* needed;
} comparison_t;

// In the order in which a difference is told.
static const comparison_t comparisons[] = {
    {same_sequence, describe_sequence, "is at", "are at",
     "all ranks must run the same operations"},
    {same_step, describe_step, "is", "are",
     "all ranks must take the same steps"},
    {same_kind, describe_kind, "wants", "want",
     "all ranks must call the same operations in the same order"},
    {same_memory, describe_memory, "gives", "give",
     "all ranks need to give the same"},
    {same_members, describe_members, "wants", "want",
     "all ranks need the same list"},
    {same_tensors, describe_tensors, "has", "have", "all ranks need the same"},
    {same_count, describe_count, "has", "have", "all ranks need the same"},
    {same_op, describe_op, "wants", "want",
     "all ranks need the same reduction"},
    {same_root, describe_root, "wants", "want", "all ranks need the same root"},
    {same_factors, describe_factors, "wants", "want",
     "all ranks need the same factors"},
};

static void append(char* text, size_t text_bytes, const char* more) {
  choir__text_append(text, text_bytes, more);
}

// "rank 0 has 1024 f32, ranks 1 and 2 have 1000 f32": ranks that agree stand
// together, in order of the lowest.
static void describe_groups(const choir_comm_t* comm,
                            const comparison_t* comparison, char* text,
                            size_t text_bytes) {
  bool* told = comm->flags;
  bool* group = told + comm->size;
  text[0] = 0;
  memset(told, 0, 2 * (size_t)comm->size);
  // They have no request of their own.
  for (int32_t r = 0; r < comm->size; ++r) told[r] = comm->joins.joined[r];
  const char* separator = "";
  for (int32_t first = 0; first < comm->size; ++first) {
    if (told[first]) continue;
    for (int32_t r = first; r < comm->size; ++r) {
      group[r] = !told[r] && comparison->same(comm, first, r);
      told[r] = told[r] || group[r];
    }
    int32_t members = 0;
    for (int32_t r = first; r < comm->size; ++r) members += group[r];
    char ranks[96];
    char what[128];
    choir__comm_rank_list(group, comm->size, ranks, sizeof(ranks));
    comparison->describe(comm, first, what, sizeof(what));
    const char* verb =
        members > 1 ? comparison->verb_of_several : comparison->verb;
    append(text, text_bytes, separator);
    separator = ", ";
    append(text, text_bytes, ranks);
    append(text, text_bytes, " ");
    append(text, text_bytes, verb);
    append(text, text_bytes, " ");
    append(text, text_bytes, what);
    for (int32_t r = first; r < comm->size; ++r) group[r] = false;
  }
}

static void print_operation(const choir_comm_header_t* header, char* text,
                            size_t text_bytes) {
  choir_activity_t activity = {
      .kind = header->kind, .waiting_for = -1, .sequence = header->sequence};
  memcpy(activity.name, header->name, sizeof(activity.name));
  choir__activity_print(&activity, text, text_bytes);
}

static choir_status_t explain_refusal(choir_comm_t* comm, int32_t rank) {
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  char reason[CHOIR_COMM_REASON_BYTES];
  print_operation(&comm->headers[rank], operation, sizeof(operation));
  snprintf(reason, sizeof(reason), "%.*s", (int)sizeof(reason) - 1,
           (const char*)comm->messages[rank]->data);
  return choir_status_make((choir_status_code_t)comm->headers[rank].refused,
                           __FILE__, __LINE__, __func__, "%s: rank %d: %s",
                           operation, rank, reason);
}

static choir_status_t explain_difference(choir_comm_t* comm) {
  size_t which = 0;
  size_t comparison_count = sizeof(comparisons) / sizeof(comparisons[0]);
  for (; which < comparison_count; ++which) {
    bool same = true;
    for (int32_t r = 1; r < comm->size; ++r)
      same = same && comparisons[which].same(comm, 0, r);
    if (!same) break;
  }
  if (which == comparison_count)
    return CHOIR_ERROR(INTERNAL, "operation %llu: headers differ",
                       (unsigned long long)comm->run.sequence);
  char groups[600];
  describe_groups(comm, &comparisons[which], groups, sizeof(groups));
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  bool same_operation = comparisons[which].same != same_kind &&
                        comparisons[which].same != same_sequence;
  if (same_operation)
    print_operation(&comm->headers[0], operation, sizeof(operation));
  else
    snprintf(operation, sizeof(operation), "operation %llu",
             (unsigned long long)comm->run.sequence);
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s; %s", operation, groups,
                     comparisons[which].needed);
}

// For those who tell of them.
static void fetch_names(choir_comm_t* comm) {
  for (int32_t r = 0; r < comm->size; ++r) {
    memcpy(comm->headers[r].name, comm->messages[r]->header.name,
           CHOIR_COMM_NAME_BYTES);
    comm->headers[r].name[CHOIR_COMM_NAME_BYTES - 1] = 0;
    comm->headers[r].step = comm->messages[r]->header.step;
    comm->headers[r].batch = comm->messages[r]->header.batch;
  }
}

static void describe_given(const choir_comm_t* comm, int32_t rank, char* text,
                           size_t text_bytes) {
  const choir_comm_header_t* header = &comm->headers[rank];
  snprintf(text, text_bytes, "%lld %s", (long long)header->count,
           choir_dtype_name((choir_dtype_t)header->dtype));
}

// "all_gather_v 'x' (operation 5): rank 0 gives 3 f32, ranks 1 and 2 give 4
// f32: 11 in all for rank 1, which has room for 10".
static choir_status_t explain_lack(choir_comm_t* comm,
                                   const choir__comm_lack_t* lack) {
  static const comparison_t given = {same_count, describe_given, "gives",
                                     "give", NULL};
  fetch_names(comm);
  char groups[600];
  describe_groups(comm, &given, groups, sizeof(groups));
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  print_operation(&comm->headers[0], operation, sizeof(operation));
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: %s: %lld in all for rank %d, which has room for %lld",
                     operation, groups, (long long)lack->needed, lack->rank,
                     (long long)lack->capacity);
}

static choir_status_t check_weights(choir_comm_t* comm) {
  double sum = 0;
  for (int32_t r = 0; r < comm->size; ++r) sum += comm->headers[r].weight;
  if (!(sum > 0) || isinf(sum)) {
    fetch_names(comm);
    char operation[CHOIR_ACTIVITY_TEXT_BYTES];
    print_operation(&comm->headers[0], operation, sizeof(operation));
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s: the weights of all ranks add to %g; one must be "
                       "above 0",
                       operation, sum);
  }
  choir__comm_set_shares(comm);
  return NULL;
}

// What ranks that joined can take part in.
static choir_status_t check_joined(choir_comm_t* comm) {
  const choir_comm_header_t* header = &comm->headers[0];
  const bool on_plane = header->words & CHOIR_COMM_WORDS_PLANE;
  if (header->kind == CHOIR_COLLECTIVE_ALL_REDUCE && !on_plane &&
      (header->op == CHOIR_REDUCE_SUM || header->op == CHOIR_REDUCE_AVERAGE))
    return NULL;
  fetch_names(comm);
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  char ranks[96];
  int32_t count = 0;
  for (int32_t r = 0; r < comm->size; ++r) count += comm->joins.joined[r];
  print_operation(header, operation, sizeof(operation));
  choir__comm_rank_list(comm->joins.joined, comm->size, ranks, sizeof(ranks));
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: %s %s joined; until all ranks have, only sums and "
                     "averages by all_reduce are possible%s",
                     operation, ranks, count == 1 ? "has" : "have",
                     on_plane ? ", of host memory" : "");
}

// What is compared and told below lies within the message.
static bool is_possible(const choir_comm_t* comm, int32_t rank) {
  const choir_comm_header_t* header = &comm->headers[rank];
  if (header->kind >= CHOIR_COMM_KIND_COUNT) return false;
  if (header->refused) return true;
  if (header->count < 0 || header->op >= CHOIR_REDUCE_COUNT ||
      header->root < 0 || header->root >= comm->size)
    return false;
  if (choir__collective_has_data(header->kind)) {
    const size_t bytes = choir_dtype_bytes((choir_dtype_t)header->dtype);
    if (!bytes || header->count > INT64_MAX / (int64_t)bytes / comm->size)
      return false;
  }
  const int64_t words = (int64_t)(comm->sizes.exchange / sizeof(int64_t));
  const int64_t* tensors = get_tensors(comm, rank);
  if (tensors && (tensors[0] < 0 || tensors[0] > words - 3)) return false;
  return header->kind != CHOIR_COMM_KIND_GROUP ||
         (header->count > 0 && header->count <= comm->size);
}

choir_status_t choir__comm_check_headers(
    choir_comm_t* comm, const choir_comm_operation_t* operation) {
  bool same = true;
  int32_t refused = -1;
  for (int32_t r = 0; r < comm->size; ++r) {
    memcpy(&comm->headers[r].root, &comm->messages[r]->header.root,
           offsetof(choir_comm_header_t, step) - CHOIR_COMM_HEADER_START);
    if (!is_possible(comm, r)) return choir__comm_break_by_message(comm, r);
  }
  int32_t joined = choir__comm_note_joined(comm);
  if (joined == comm->size) return NULL;
  for (int32_t r = comm->size - 1; r >= 0; --r) {
    if (comm->headers[r].refused) refused = r;
    same = same &&
           !memcmp(&comm->headers[r].root, &comm->headers[comm->size - 1].root,
                   CHOIR_COMM_HEADER_COMPARED);
  }
  if (refused >= 0 || !same) fetch_names(comm);
  if (refused >= 0) return explain_refusal(comm, refused);
  if (!same) return explain_difference(comm);
  bool has_words =
      comm->headers[0].words || comm->headers[0].kind == CHOIR_COMM_KIND_GROUP;
  for (int32_t r = 1; r < comm->size && has_words; ++r)
    same = same && same_factors(comm, 0, r) && same_tensors(comm, 0, r) &&
           same_members(comm, 0, r);
  if (!same) {
    fetch_names(comm);
    return explain_difference(comm);
  }
  if (joined) {
    CHOIR_TRY(check_joined(comm));
    CHOIR_TRY(choir__comm_zero_joined(comm));
  }
  const choir__collective_t* traits = choir__collective(comm->headers[0].kind);
  if (traits->moves) {
    choir__comm_lack_t lack;
    CHOIR_TRY(choir__comm_plan_moves(comm, operation, &lack));
    return lack.rank < 0 ? NULL : explain_lack(comm, &lack);
  }
  if (traits->reduces && comm->headers[0].op == CHOIR_REDUCE_AVERAGE)
    return check_weights(comm);
  return NULL;
}
