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

const choir__comm_traits_t* choir__comm_traits(int32_t kind) {
  static const choir__comm_traits_t traits[CHOIR_COMM_KIND_COUNT] = {
      [CHOIR_COLLECTIVE_ALL_REDUCE] = {.has_data = true, .reduces = true},
      [CHOIR_COLLECTIVE_BROADCAST] = {.has_data = true, .has_root = true},
      [CHOIR_COLLECTIVE_ALL_GATHER] = {.has_data = true, .moves = true},
      [CHOIR_COLLECTIVE_REDUCE_SCATTER] = {.has_data = true, .reduces = true},
      [CHOIR_COLLECTIVE_ALL_GATHER_V] = {.has_data = true,
                                         .moves = true,
                                         .has_own_counts = true},
  };
  return &traits[kind];
}

int64_t choir__comm_payload_bytes(const choir_comm_t* comm,
                                  const choir_comm_operation_t* operation) {
  if (!choir__comm_traits(operation->kind)->has_data) return 0;
  int64_t bytes;
  if (__builtin_mul_overflow(operation->collective.count,
                             (int64_t)operation->element_bytes, &bytes))
    return -1;
  int64_t all;
  if (__builtin_mul_overflow(bytes, (int64_t)comm->size, &all)) return -1;
  return operation->kind == CHOIR_COLLECTIVE_REDUCE_SCATTER ? all : bytes;
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
}

void choir__comm_check_arguments(const choir_comm_t* comm,
                                 const choir_comm_operation_t* operation,
                                 char reason[CHOIR_COMM_REASON_BYTES]) {
  const choir_collective_t* collective = &operation->collective;
  int32_t kind = operation->kind;
  const choir__comm_traits_t* traits = choir__comm_traits(kind);
  reason[0] = 0;
  if (!traits->has_data) return;
  bool needs_src = kind != CHOIR_COLLECTIVE_BROADCAST;
  int64_t room =
      traits->has_own_counts ? collective->capacity : collective->count;
  if (!choir_dtype_bytes(collective->dtype)) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "%d is no dtype",
             (int)collective->dtype);
  } else if (collective->count < 0) {
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
  } else if ((room > 0 && !collective->dst) ||
             (needs_src && collective->count > 0 && !collective->src)) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "%s is NULL",
             collective->dst ? "src" : "dst");
  } else if (traits->has_root &&
             (collective->root < 0 || collective->root >= comm->size)) {
    snprintf(reason, CHOIR_COMM_REASON_BYTES, "root is %d; ranks are 0 .. %d",
             collective->root, comm->size - 1);
  } else if (traits->reduces) {
    check_reduction(collective, reason);
  }
}

// ---- Over ranks ----

// What one rank has, in the words of the first field that differs.
typedef void (*describe_t)(const choir_comm_header_t* header, char* text,
                           size_t text_bytes);

static void describe_kind(const choir_comm_header_t* header, char* text,
                          size_t text_bytes) {
  const char* kind = choir__activity_kind_name(header->kind);
  if (header->name[0])
    snprintf(text, text_bytes, "%s '%s'", kind, header->name);
  else if (header->name_hash)
    snprintf(text, text_bytes, "%s ''", kind);
  else
    snprintf(text, text_bytes, "%s without name", kind);
}

static void describe_count(const choir_comm_header_t* header, char* text,
                           size_t text_bytes) {
  if (header->kind == CHOIR_COMM_KIND_BUFFER)
    snprintf(text, text_bytes, "%lld bytes", (long long)header->count);
  else if (choir__comm_traits(header->kind)->has_own_counts)
    snprintf(text, text_bytes, "%s",
             choir_dtype_name((choir_dtype_t)header->dtype));
  else
    snprintf(text, text_bytes, "%lld %s", (long long)header->count,
             choir_dtype_name((choir_dtype_t)header->dtype));
}

static void describe_op(const choir_comm_header_t* header, char* text,
                        size_t text_bytes) {
  snprintf(text, text_bytes, "%s", reduce_name(header->op));
}

static void describe_root(const choir_comm_header_t* header, char* text,
                          size_t text_bytes) {
  snprintf(text, text_bytes, "root %d", header->root);
}

static void describe_sequence(const choir_comm_header_t* header, char* text,
                              size_t text_bytes) {
  snprintf(text, text_bytes, "operation %llu",
           (unsigned long long)header->sequence);
}

static bool same_kind(const choir_comm_header_t* a,
                      const choir_comm_header_t* b) {
  return a->kind == b->kind && a->name_hash == b->name_hash;
}
static bool same_count(const choir_comm_header_t* a,
                       const choir_comm_header_t* b) {
  return a->count == b->count && a->dtype == b->dtype;
}
static bool same_op(const choir_comm_header_t* a,
                    const choir_comm_header_t* b) {
  return a->op == b->op;
}
static bool same_root(const choir_comm_header_t* a,
                      const choir_comm_header_t* b) {
  return a->root == b->root;
}
static bool same_sequence(const choir_comm_header_t* a,
                          const choir_comm_header_t* b) {
  return a->sequence == b->sequence;
}

typedef struct comparison_s {
  bool (*same)(const choir_comm_header_t*, const choir_comm_header_t*);
  describe_t describe;
  const char* verb;
  const char* verb_of_several;
  const char* needed;
} comparison_t;

// In the order in which a difference is told.
static const comparison_t comparisons[] = {
    {same_sequence, describe_sequence, "is at", "are at",
     "all ranks must run the same operations"},
    {same_kind, describe_kind, "wants", "want",
     "all ranks must call the same operations in the same order"},
    {same_count, describe_count, "has", "have", "all ranks need the same"},
    {same_op, describe_op, "wants", "want",
     "all ranks need the same reduction"},
    {same_root, describe_root, "wants", "want", "all ranks need the same root"},
};

static void append(char* text, size_t text_bytes, const char* more) {
  choir__text_append(text, text_bytes, more);
}

// "rank 0 has 1024 f32, ranks 1 and 2 have 1000 f32": ranks that agree stand
// together, in order of the lowest.
static void describe_groups(const choir_comm_t* comm,
                            const comparison_t* comparison, char* text,
                            size_t text_bytes) {
  const choir_comm_header_t* headers = comm->headers;
  bool* told = comm->flags;
  bool* group = told + comm->size;
  text[0] = 0;
  memset(told, 0, 2 * (size_t)comm->size);
  for (int32_t first = 0; first < comm->size; ++first) {
    if (told[first]) continue;
    for (int32_t r = first; r < comm->size; ++r) {
      group[r] = !told[r] && comparison->same(&headers[first], &headers[r]);
      told[r] = told[r] || group[r];
    }
    int32_t members = 0;
    for (int32_t r = first; r < comm->size; ++r) members += group[r];
    char ranks[96];
    char what[128];
    choir__comm_rank_list(group, comm->size, ranks, sizeof(ranks));
    comparison->describe(&headers[first], what, sizeof(what));
    const char* verb =
        members > 1 ? comparison->verb_of_several : comparison->verb;
    if (first) append(text, text_bytes, ", ");
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
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: rank %d: %s", operation, rank,
                     reason);
}

static choir_status_t explain_difference(choir_comm_t* comm) {
  size_t which = 0;
  size_t comparison_count = sizeof(comparisons) / sizeof(comparisons[0]);
  for (; which < comparison_count; ++which) {
    bool same = true;
    for (int32_t r = 1; r < comm->size; ++r)
      same =
          same && comparisons[which].same(&comm->headers[0], &comm->headers[r]);
    if (!same) break;
  }
  if (which == comparison_count)
    return CHOIR_ERROR(INTERNAL, "operation %llu: headers differ",
                       (unsigned long long)comm->sequence);
  char groups[600];
  describe_groups(comm, &comparisons[which], groups, sizeof(groups));
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  bool same_operation = comparisons[which].same != same_kind &&
                        comparisons[which].same != same_sequence;
  if (same_operation)
    print_operation(&comm->headers[0], operation, sizeof(operation));
  else
    snprintf(operation, sizeof(operation), "operation %llu",
             (unsigned long long)comm->sequence);
  return CHOIR_ERROR(INVALID_ARGUMENT, "%s: %s; %s", operation, groups,
                     comparisons[which].needed);
}

// For those who tell of them.
static void fetch_names(choir_comm_t* comm) {
  for (int32_t r = 0; r < comm->size; ++r) {
    memcpy(comm->headers[r].name, comm->messages[r]->header.name,
           CHOIR_COMM_NAME_BYTES);
    comm->headers[r].name[CHOIR_COMM_NAME_BYTES - 1] = 0;
  }
}

static void describe_given(const choir_comm_header_t* header, char* text,
                           size_t text_bytes) {
  snprintf(text, text_bytes, "%lld %s", (long long)header->count,
           choir_dtype_name((choir_dtype_t)header->dtype));
}

choir_status_t choir__comm_explain_room(choir_comm_t* comm, int32_t rank,
                                        int64_t needed, int64_t capacity) {
  static const comparison_t given = {same_count, describe_given, "gives",
                                     "give", NULL};
  fetch_names(comm);
  char groups[600];
  describe_groups(comm, &given, groups, sizeof(groups));
  char operation[CHOIR_ACTIVITY_TEXT_BYTES];
  print_operation(&comm->headers[0], operation, sizeof(operation));
  return CHOIR_ERROR(INVALID_ARGUMENT,
                     "%s: %s: %lld in all for rank %d, which has room for %lld",
                     operation, groups, (long long)needed, rank,
                     (long long)capacity);
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

choir_status_t choir__comm_check_headers(
    choir_comm_t* comm, const choir_comm_operation_t* operation) {
  bool same = true;
  int32_t refused = -1;
  for (int32_t r = comm->size - 1; r >= 0; --r) {
    memcpy(&comm->headers[r].root, &comm->messages[r]->header.root,
           offsetof(choir_comm_header_t, name) - CHOIR_COMM_HEADER_START);
    if (comm->headers[r].refused) refused = r;
    same = same &&
           !memcmp(&comm->headers[r].root, &comm->headers[comm->size - 1].root,
                   CHOIR_COMM_HEADER_COMPARED);
  }
  if (refused >= 0 || !same) fetch_names(comm);
  if (refused >= 0) return explain_refusal(comm, refused);
  if (!same) return explain_difference(comm);
  const choir__comm_traits_t* traits = choir__comm_traits(operation->kind);
  if (traits->moves) return choir__comm_plan_moves(comm, operation);
  if (traits->reduces && operation->collective.op == CHOIR_REDUCE_AVERAGE)
    return check_weights(comm);
  return NULL;
}
