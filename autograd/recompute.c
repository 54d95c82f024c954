// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: results that are dropped after forward, and
// computed again from the tape when backward comes to them.
#include "autograd/scope_internal.h"

struct choir__recomputed_s {
  const choir_tape_entry_t** entries;  // in the order of forward
  int32_t count;
  bool is_there;
};

static bool is_custom(const choir_tape_entry_t* entry) {
  return entry->op == CHOIR_OP_COUNT;
}

static void drop(const choir__recomputed_t* part) {
  for (int32_t i = 0; i < part->count; ++i)
    for (int32_t k = 0; k < CHOIR_OP_MAX_RESULTS; ++k) {
      choir_var_t* var = part->entries[i]->results[k];
      if (!var || var->is_kept) continue;
      choir_tensor_release(var->tensor);
      var->tensor = NULL;
    }
}

// A custom op cannot be run again, and may point to what it was given.
static void mark_kept(const choir__recomputed_t* part, choir_var_t* result) {
  for (int32_t i = 0; i < part->count; ++i)
    for (int32_t k = 0; k < CHOIR_OP_MAX_RESULTS; ++k)
      if (part->entries[i]->results[k])
        part->entries[i]->results[k]->is_kept = is_custom(part->entries[i]);
  for (int32_t i = 0; i < part->count; ++i)
    for (int32_t k = 0; k < part->entries[i]->src_count; ++k)
      if (is_custom(part->entries[i]))
        part->entries[i]->srcs[k]->is_kept = true;
  result->is_kept = true;
  for (int32_t i = 0; i < result->tuple.count; ++i)
    result->tuple.at[i]->is_kept = true;
}

void choir_scope_recompute(choir_scope_t* scope,
                           const choir_tape_entry_t* since,
                           choir_var_t* result) {
  if (scope->error || !result || scope->tape == since) return;
  if (scope->step.keeps_all) return;
  int32_t count = 0;
  const choir_tape_entry_t* at = scope->tape;
  for (; at && at != since; at = at->previous) ++count;
  if (at != since) {
    choir_scope_fail(scope, CHOIR_ERROR(INVALID_ARGUMENT,
                                        "scope_recompute: `since` is not on "
                                        "the tape of this step"));
    return;
  }
  choir__recomputed_t* part = choir_scope_alloc(scope, sizeof(*part));
  const choir_tape_entry_t** entries =
      choir_scope_alloc(scope, sizeof(void*) * (size_t)count);
  if (!part || !entries) return;
  *part = (choir__recomputed_t){.entries = entries, .count = count};
  for (at = scope->tape; at != since; at = at->previous) {
    entries[--count] = at;
    at->results[0]->recomputed = part;
  }
  mark_kept(part, result);
  drop(part);
}

static choir_status_t run_again(choir_scope_t* scope,
                                const choir_tape_entry_t* entry) {
  choir_tensor_t* srcs[CHOIR_MAX_OPERANDS] = {NULL};
  for (int32_t i = 0; i < entry->src_count; ++i)
    srcs[i] = entry->srcs[i]->tensor;
  choir_tensor_t* results[CHOIR_OP_MAX_RESULTS] = {NULL};
  CHOIR_TRY(choir_op_run(scope->stream, entry->op, srcs, entry->src_count,
                         entry->attrs, false, results));
  for (int32_t i = 0; i < CHOIR_OP_MAX_RESULTS; ++i) {
    if (!results[i]) continue;
    choir_tensor_t** tensor = &entry->results[i]->tensor;
    if (*tensor)
      choir_tensor_release(results[i]);
    else
      *tensor = results[i];
  }
  return NULL;
}

bool choir__recomputed_is_there(const choir__recomputed_t* part) {
  return !part || part->is_there;
}

choir_status_t choir__recompute(choir_scope_t* scope,
                                choir__recomputed_t* part) {
  if (choir__recomputed_is_there(part)) return NULL;
  part->is_there = true;
  for (int32_t i = 0; i < part->count; ++i) {
    const choir_tape_entry_t* entry = part->entries[i];
    bool is_complete = true;
    for (int32_t k = 0; k < CHOIR_OP_MAX_RESULTS; ++k)
      is_complete &= !entry->results[k] || entry->results[k]->tensor;
    if (is_complete) continue;
    choir_scope_set_label(scope, entry->label);
    CHOIR_TRY_NOTE(run_again(scope, entry), "%s%s%s, computed again",
                   entry->label ? entry->label : "", entry->label ? ": " : "",
                   choir_op_name(entry->op));
  }
  return NULL;
}

void choir__recomputed_visited(const choir__recomputed_t* part,
                               const choir_tape_entry_t* entry) {
  if (part && part->entries[0] == entry) drop(part);
}
