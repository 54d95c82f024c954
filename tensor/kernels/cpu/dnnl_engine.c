// SPDX-License-Identifier: Apache-2.0
#include "tensor/kernels/cpu/dnnl_engine.h"

#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "tensor/kernels/cpu/cpu_internal.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

choir_status_t choir__dnnl_error(dnnl_status_t status, const char* call,
                                 const char* file, int line,
                                 const char* function) {
  const choir_status_code_t code =
      status == dnnl_out_of_memory   ? CHOIR_STATUS_OUT_OF_MEMORY
      : status == dnnl_unimplemented ? CHOIR_STATUS_UNIMPLEMENTED
                                     : CHOIR_STATUS_INTERNAL;
  // The call's arguments say nothing to a user.
  const int length = (int)strcspn(call, "(");
  return choir_status_make(code, file, line, function,
                           "oneDNN: %.*s failed with status %d", length, call,
                           (int)status);
}

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t the_engine;
static dnnl_status_t engine_status;

static void make_engine(void) {
  engine_status = dnnl_engine_create(&the_engine, dnnl_cpu, 0);
}

choir_status_t choir__dnnl_engine(dnnl_engine_t* out_engine) {
  *out_engine = NULL;
  pthread_once(&engine_once, make_engine);
  if (engine_status != dnnl_success)
    return choir__dnnl_error(engine_status, "dnnl_engine_create", __FILE__,
                             __LINE__, __func__);
  *out_engine = the_engine;
  return NULL;
}

choir__isa_t choir__dnnl_isa(void) {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  if ((isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core)
    return CHOIR__ISA_AVX512;
  if ((isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2) return CHOIR__ISA_AVX2;
  return CHOIR__ISA_BASE;
}

bool choir__dnnl_has_bf16(void) {
  return choir__isa() == CHOIR__ISA_AVX512 &&
         (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
             dnnl_cpu_isa_avx512_core_bf16;
}

bool choir__dnnl_has_amx(void) {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) ==
         dnnl_cpu_isa_avx512_core_amx;
}

bool choir__dnnl_takes_dtypes(const choir_record_t* record) {
  const choir_dtype_t from = choir_record_src(record, 0)->dtype;
  if (from != CHOIR_DTYPE_F32 &&
      (from != CHOIR_DTYPE_BF16 || !choir__dnnl_has_bf16()))
    return false;
  for (int32_t i = 1; i < record->src_count; ++i)
    if (choir_record_src(record, i)->dtype != from) return false;
  for (int32_t i = 0; i < record->dst_count; ++i) {
    const choir_dtype_t to = choir_record_dst(record, i)->dtype;
    if (to != from && to != CHOIR_DTYPE_F32) return false;
  }
  return true;
}

dnnl_data_type_t choir__dnnl_dtype(choir_dtype_t dtype) {
  return dtype == CHOIR_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

int32_t choir__dnnl_threads_begin(int32_t threads) {
  if (threads > 1) choir_threads_started();
#if defined(_OPENMP)
  // A setting of the calling thread, as cheap to write as a variable.
  const int32_t before = omp_get_max_threads();
  if (before != threads) omp_set_num_threads(threads);
  return before;
#else
  return threads;
#endif
}

void choir__dnnl_threads_end(int32_t before) {
#if defined(_OPENMP)
  if (omp_get_max_threads() != before) omp_set_num_threads(before);
#else
  (void)before;
#endif
}

choir_status_t choir__dnnl_attr(bool accumulate,
                                dnnl_primitive_attr_t* out_attr) {
  *out_attr = NULL;
  dnnl_primitive_attr_t attr;
  CHOIR__DNNL_TRY(dnnl_primitive_attr_create(&attr));
  dnnl_post_ops_t ops = NULL;
  dnnl_status_t status =
      dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
  if (accumulate && status == dnnl_success) {
    status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success)
      status = dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
    if (status == dnnl_success)
      status = dnnl_primitive_attr_set_post_ops(attr, ops);
    if (ops) dnnl_post_ops_destroy(ops);
  }
  if (status != dnnl_success) dnnl_primitive_attr_destroy(attr);
  CHOIR__DNNL_TRY(status);
  *out_attr = attr;
  return NULL;
}

// ---- Plans ----

#define SLOTS 16
#define CALLS 8
#define ARGUMENTS 8
#define ALIGNMENT 64

typedef struct slot_s {
  dnnl_memory_t memory;
  int32_t operand;  // -1: scratch
  size_t offset;    // scratch: from the block's start
  size_t bytes;
  void* data;  // what it was last set to
} slot_t;

typedef struct call_s {
  dnnl_primitive_t primitive;
  dnnl_exec_arg_t arguments[ARGUMENTS];
  int32_t argument_count;
  size_t reorder_bytes;     // > 0: a reorder that is counted
  int32_t reordered;        // its source, if that is an operand; else -1
  choir__dnnl_slot_t kept;  // where a reorder writes what is kept; else -1
} call_t;

struct choir__dnnl_plan_s {
  uint64_t hash;
  choir__dnnl_build_fn_t build;
  choir__key_t key;
  dnnl_engine_t engine;  // lent
  dnnl_stream_t stream;
  slot_t slots[SLOTS];
  int32_t slot_count;
  call_t calls[CALLS];
  int32_t call_count;
  size_t scratch_bytes;
  uint64_t used;  // the cache's clock when it was given back
  bool busy;
};

static void plan_destroy(choir__dnnl_plan_t* plan) {
  if (!plan) return;
  for (int32_t i = 0; i < plan->call_count; i++)
    dnnl_primitive_destroy(plan->calls[i].primitive);
  for (int32_t i = 0; i < plan->slot_count; i++)
    dnnl_memory_destroy(plan->slots[i].memory);
  if (plan->stream) dnnl_stream_destroy(plan->stream);
  choir_deallocate(choir_allocator_default(), plan, sizeof(*plan));
}

static choir_status_t add_slot(choir__dnnl_plan_t* plan, int32_t operand,
                               const_dnnl_memory_desc_t md,
                               choir__dnnl_slot_t* out_slot) {
  *out_slot = -1;
  if (plan->slot_count == SLOTS)
    return CHOIR_ERROR(INTERNAL, "oneDNN plan: more than %d memory objects",
                       SLOTS);
  slot_t* slot = &plan->slots[plan->slot_count];
  slot->operand = operand;
  slot->bytes = dnnl_memory_desc_get_size(md);
  slot->data = NULL;
  CHOIR__DNNL_TRY(
      dnnl_memory_create(&slot->memory, md, plan->engine, DNNL_MEMORY_NONE));
  if (operand < 0) {
    slot->offset = plan->scratch_bytes;
    plan->scratch_bytes +=
        (slot->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
  *out_slot = plan->slot_count++;
  return NULL;
}

choir_status_t choir__dnnl_operand(choir__dnnl_plan_t* plan, int32_t index,
                                   const_dnnl_memory_desc_t md,
                                   choir__dnnl_slot_t* out_slot) {
  return add_slot(plan, index, md, out_slot);
}

choir_status_t choir__dnnl_scratch(choir__dnnl_plan_t* plan,
                                   const_dnnl_memory_desc_t md,
                                   choir__dnnl_slot_t* out_slot) {
  return add_slot(plan, -1, md, out_slot);
}

choir_status_t choir__dnnl_call(choir__dnnl_plan_t* plan,
                                dnnl_primitive_desc_t pd,
                                const int32_t (*arguments)[2],
                                int32_t argument_count) {
  dnnl_status_t made = dnnl_out_of_memory;
  const_dnnl_memory_desc_t pad =
      dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
  choir__dnnl_slot_t pad_slot = -1;
  choir_status_t status = NULL;
  if (plan->call_count == CALLS || argument_count >= ARGUMENTS)
    status = CHOIR_ERROR(INTERNAL, "oneDNN plan: more than %d calls", CALLS);
  if (!status && pad && dnnl_memory_desc_get_size(pad) > 0)
    status = choir__dnnl_scratch(plan, pad, &pad_slot);
  call_t* call = &plan->calls[plan->call_count];
  if (!status) made = dnnl_primitive_create(&call->primitive, pd);
  dnnl_primitive_desc_destroy(pd);
  if (status) return status;
  CHOIR__DNNL_TRY(made);
  for (int32_t i = 0; i < argument_count; i++) {
    call->arguments[i].arg = arguments[i][0];
    call->arguments[i].memory = plan->slots[arguments[i][1]].memory;
  }
  call->argument_count = argument_count;
  call->reorder_bytes = 0;
  call->reordered = -1;
  call->kept = -1;
  if (pad_slot >= 0) {
    call->arguments[argument_count].arg = DNNL_ARG_SCRATCHPAD;
    call->arguments[argument_count].memory = plan->slots[pad_slot].memory;
    call->argument_count++;
  }
  plan->call_count++;
  return NULL;
}

static choir_status_t add_reorder(choir__dnnl_plan_t* plan,
                                  choir__dnnl_slot_t from,
                                  choir__dnnl_slot_t to, bool accumulate) {
  const_dnnl_memory_desc_t from_md, to_md;
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t pd = NULL;
  CHOIR__DNNL_TRY(
      dnnl_memory_get_memory_desc(plan->slots[from].memory, &from_md));
  CHOIR__DNNL_TRY(dnnl_memory_get_memory_desc(plan->slots[to].memory, &to_md));
  CHOIR_TRY(choir__dnnl_attr(accumulate, &attr));
  const dnnl_status_t made = dnnl_reorder_primitive_desc_create(
      &pd, from_md, plan->engine, to_md, plan->engine, attr);
  dnnl_primitive_attr_destroy(attr);
  CHOIR__DNNL_TRY(made);
  const int32_t arguments[][2] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  CHOIR_TRY(choir__dnnl_call(plan, pd, arguments, 2));
  call_t* call = &plan->calls[plan->call_count - 1];
  call->reorder_bytes = plan->slots[to].bytes;
  call->reordered = plan->slots[from].operand;
  return NULL;
}

choir_status_t choir__dnnl_input(choir__dnnl_plan_t* plan, int32_t index,
                                 const_dnnl_memory_desc_t own,
                                 const_dnnl_memory_desc_t wanted,
                                 choir__dnnl_slot_t* out_slot) {
  choir__dnnl_slot_t operand;
  CHOIR_TRY(choir__dnnl_operand(plan, index, own, &operand));
  *out_slot = operand;
  if (dnnl_memory_desc_equal(own, wanted)) return NULL;
  CHOIR_TRY(choir__dnnl_scratch(plan, wanted, out_slot));
  return add_reorder(plan, operand, *out_slot, false);
}

choir_status_t choir__dnnl_weights(choir__dnnl_plan_t* plan, int32_t index,
                                   const_dnnl_memory_desc_t own,
                                   const_dnnl_memory_desc_t wanted,
                                   choir__dnnl_slot_t* out_slot) {
  const int32_t before = plan->call_count;
  CHOIR_TRY(choir__dnnl_input(plan, index, own, wanted, out_slot));
  if (plan->call_count > before) plan->calls[before].kept = *out_slot;
  return NULL;
}

choir_status_t choir__dnnl_output(choir__dnnl_plan_t* plan, int32_t index,
                                  const_dnnl_memory_desc_t own,
                                  const_dnnl_memory_desc_t wanted,
                                  bool accumulate, choir__dnnl_output_t* out) {
  out->accumulate = accumulate;
  CHOIR_TRY(choir__dnnl_operand(plan, index, own, &out->operand));
  out->slot = out->operand;
  if (!accumulate && dnnl_memory_desc_equal(own, wanted)) return NULL;
  return choir__dnnl_scratch(plan, wanted, &out->slot);
}

choir_status_t choir__dnnl_output_finish(choir__dnnl_plan_t* plan,
                                         const choir__dnnl_output_t* output) {
  if (output->slot == output->operand) return NULL;
  return add_reorder(plan, output->slot, output->operand, output->accumulate);
}

// ---- The cache ----

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t hashes[CHOIR__DNNL_PLANS];  // beside the plans: one look
static choir__dnnl_plan_t* plans[CHOIR__DNNL_PLANS];
static int32_t plan_count;
static uint64_t cache_clock;
static choir__dnnl_cache_stats_t cache_stats;

static choir__dnnl_plan_t* find_free(uint64_t hash,
                                     choir__dnnl_build_fn_t build,
                                     const choir__key_t* key) {
  choir__dnnl_plan_t* found = NULL;
  pthread_mutex_lock(&cache_lock);
  for (int32_t i = 0; i < plan_count && !found; i++) {
    if (hashes[i] != hash || plans[i]->busy || plans[i]->build != build ||
        !choir__key_equal(&plans[i]->key, key))
      continue;
    found = plans[i];
    found->busy = true;
    cache_stats.reused++;
  }
  pthread_mutex_unlock(&cache_lock);
  return found;
}

// Puts a new, busy plan in, for the one that was idle longest if the cache is
// full. False when all are busy: the plan then goes after its run.
static bool keep(choir__dnnl_plan_t* plan) {
  choir__dnnl_plan_t* dropped = NULL;
  int32_t at = -1;
  pthread_mutex_lock(&cache_lock);
  cache_stats.built++;
  if (plan_count < CHOIR__DNNL_PLANS) {
    at = plan_count++;
  } else {
    for (int32_t i = 0; i < plan_count; i++)
      if (!plans[i]->busy && (at < 0 || plans[i]->used < plans[at]->used))
        at = i;
    if (at >= 0) {
      dropped = plans[at];
      cache_stats.dropped++;
    }
  }
  if (at >= 0) {
    plans[at] = plan;
    hashes[at] = plan->hash;
  }
  cache_stats.kept = plan_count;
  pthread_mutex_unlock(&cache_lock);
  plan_destroy(dropped);
  return at >= 0;
}

static void give_back(choir__dnnl_plan_t* plan) {
  bool kept = false;
  pthread_mutex_lock(&cache_lock);
  for (int32_t i = 0; i < plan_count && !kept; i++) kept = plans[i] == plan;
  if (kept) {
    plan->busy = false;
    plan->used = ++cache_clock;
  }
  pthread_mutex_unlock(&cache_lock);
  if (!kept) plan_destroy(plan);
}

// One at a time: the first ones fill tables of oneDNN's own, behind locks that
// a race detector does not see.
static choir_status_t build_alone(choir__dnnl_plan_t* plan,
                                  dnnl_engine_t engine, const void* problem) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  const dnnl_status_t made =
      dnnl_stream_create(&plan->stream, engine, dnnl_stream_default_flags);
  choir_status_t status = made == dnnl_success
                              ? plan->build(plan, engine, problem)
                              : choir__dnnl_error(made, "dnnl_stream_create",
                                                  __FILE__, __LINE__, __func__);
  pthread_mutex_unlock(&lock);
  return status;
}

static choir_status_t take(const choir__key_t* key,
                           choir__dnnl_build_fn_t build, const void* problem,
                           choir__dnnl_plan_t** out_plan) {
  *out_plan = NULL;
  CHOIR_TRY(choir__key_check(key, "oneDNN plan"));
  const uint64_t hash = choir__key_hash(key);
  *out_plan = find_free(hash, build, key);
  if (*out_plan) return NULL;

  dnnl_engine_t engine;
  CHOIR_TRY(choir__dnnl_engine(&engine));
  void* memory;
  CHOIR_TRY(choir_allocate(choir_allocator_default(),
                           sizeof(choir__dnnl_plan_t), "oneDNN plan", &memory));
  choir__dnnl_plan_t* plan = memory;
  plan->hash = hash;
  plan->build = build;
  plan->key = *key;
  plan->engine = engine;
  plan->busy = true;
  choir_status_t status = build_alone(plan, engine, problem);
  if (status) {
    plan_destroy(plan);
    return status;
  }
  keep(plan);
  *out_plan = plan;
  return NULL;
}

static choir_status_t set_data(slot_t* slot, void* data) {
  if (slot->data == data) return NULL;
  CHOIR__DNNL_TRY(dnnl_memory_set_data_handle(slot->memory, data));
  slot->data = data;
  return NULL;
}

// ---- What weights are reordered to ----

// One for each call; NULL: its result is not kept.
typedef struct kept_s {
  choir__packed_t* of[CALLS];
} kept_t;

// A problem's form of a source: what has the same key is reordered alike.
typedef struct form_key_s {
  choir__dnnl_build_fn_t build;
  int64_t call;
  int64_t offset;  // of the view in its buffer
  int64_t words[CHOIR__KEY_WORDS];
} form_key_t;

static choir_buffer_t* weights_of(const choir__dnnl_plan_t* plan, int32_t i,
                                  const choir__dnnl_blocks_t* blocks) {
  const choir_record_t* record = blocks->record;
  const call_t* call = &plan->calls[i];
  const int32_t k = call->reordered;
  return record && !record->is_part && call->kept >= 0 &&
                 blocks->strides[k] == 0
             ? choir_record_src(record, k)->buffer
             : NULL;
}

static choir_status_t take_kept(const choir__dnnl_plan_t* plan,
                                const choir__dnnl_blocks_t* blocks,
                                kept_t* kept) {
  for (int32_t i = 0; i < plan->call_count; i++) {
    choir_buffer_t* buffer = weights_of(plan, i, blocks);
    if (!buffer) continue;
    form_key_t key;
    memset(&key, 0, sizeof(key));
    key.build = plan->build;
    key.call = i;
    key.offset =
        choir_record_src(blocks->record, plan->calls[i].reordered)->offset;
    memcpy(key.words, plan->key.words,
           (size_t)plan->key.count * sizeof(key.words[0]));
    CHOIR_TRY(choir__packed_take(buffer, &key, sizeof(key),
                                 plan->slots[plan->calls[i].kept].bytes,
                                 &kept->of[i]));
  }
  return NULL;
}

// is_filled: all of them have been.
static void give_kept(const choir__dnnl_plan_t* plan,
                      const choir__dnnl_blocks_t* blocks, kept_t* kept,
                      bool is_filled) {
  for (int32_t i = 0; i < plan->call_count; i++) {
    if (!kept->of[i]) continue;
    if (is_filled) choir__packed_keep(weights_of(plan, i, blocks), kept->of[i]);
    choir__packed_release(kept->of[i]);
  }
}

static choir_status_t execute(choir__dnnl_plan_t* plan, char* scratch,
                              void* const* operands,
                              const choir__dnnl_blocks_t* blocks,
                              const kept_t* kept, int64_t block) {
  void* places[SLOTS] = {NULL};
  for (int32_t i = 0; i < plan->call_count; i++)
    if (kept->of[i])
      places[plan->calls[i].kept] = choir__packed_data(kept->of[i]);
  for (int32_t i = 0; i < plan->slot_count; i++) {
    slot_t* slot = &plan->slots[i];
    CHOIR_TRY(set_data(
        slot, places[i] ? places[i]
              : slot->operand < 0
                  ? scratch + slot->offset
                  : (char*)operands[slot->operand] +
                        (size_t)block * blocks->strides[slot->operand]));
  }
  for (int32_t i = 0; i < plan->call_count; i++) {
    call_t* call = &plan->calls[i];
    if (block > 0 && call->reordered >= 0 &&
        blocks->strides[call->reordered] == 0)
      continue;
    if (kept->of[i] && choir__packed_is_kept(kept->of[i])) continue;
    if (call->reorder_bytes) choir__count_reorder(call->reorder_bytes);
    CHOIR__DNNL_TRY(dnnl_primitive_execute(
        call->primitive, plan->stream, call->argument_count, call->arguments));
  }
  CHOIR__DNNL_TRY(dnnl_stream_wait(plan->stream));
  return NULL;
}

// Gives the plan back.
static choir_status_t run(choir__dnnl_plan_t* plan, choir_stream_t* stream,
                          void* const* operands,
                          const choir__dnnl_blocks_t* blocks) {
  const choir_allocator_t pool =
      choir_device_allocator(choir_stream_device(stream));
  void* scratch = NULL;
  choir_status_t status = NULL;
  if (plan->scratch_bytes > 0) {
    scratch = pool.alloc(pool.self, plan->scratch_bytes, ALIGNMENT);
    if (!scratch)
      status = CHOIR_ERROR(OUT_OF_MEMORY, "oneDNN scratch: no %zu bytes",
                           plan->scratch_bytes);
  }
  kept_t kept = {.of = {NULL}};
  if (!status) status = take_kept(plan, blocks, &kept);
  for (int64_t block = 0; block < blocks->count && !status; block++) {
    status = execute(plan, scratch, operands, blocks, &kept, block);
    if (!status && blocks->after)
      status = blocks->after(blocks->context, block);
  }
  give_kept(plan, blocks, &kept, !status && blocks->count > 0);
  if (scratch) pool.free(pool.self, scratch, plan->scratch_bytes, ALIGNMENT);
  give_back(plan);
  return status;
}

choir_status_t choir__dnnl_run(choir__key_t* key, choir__dnnl_build_fn_t build,
                               const void* problem, choir_stream_t* stream,
                               void* const* operands) {
  static const size_t none[CHOIR_MAX_OPERANDS] = {0};
  const choir__dnnl_blocks_t all = {.count = 1, .strides = none};
  return choir__dnnl_run_blocks(key, build, problem, stream, operands, &all);
}

choir_status_t choir__dnnl_run_blocks(choir__key_t* key,
                                      choir__dnnl_build_fn_t build,
                                      const void* problem,
                                      choir_stream_t* stream,
                                      void* const* operands,
                                      const choir__dnnl_blocks_t* blocks) {
  const int32_t threads = choir__cpu_threads(stream);
  choir__key_add(key, threads);
  // A primitive is made for a number of threads and run with it.
  const int32_t before = choir__dnnl_threads_begin(threads);
  choir__dnnl_plan_t* plan;
  choir_status_t status = take(key, build, problem, &plan);
  if (!status) status = run(plan, stream, operands, blocks);
  choir__dnnl_threads_end(before);
  return status;
}

choir__dnnl_cache_stats_t choir__dnnl_cache_stats(void) {
  pthread_mutex_lock(&cache_lock);
  const choir__dnnl_cache_stats_t stats = cache_stats;
  pthread_mutex_unlock(&cache_lock);
  return stats;
}

void choir__dnnl_cache_clear(void) {
  pthread_mutex_lock(&cache_lock);
  int32_t kept = 0;
  for (int32_t i = 0; i < plan_count; i++) {
    if (!plans[i]->busy) {
      plan_destroy(plans[i]);
      continue;
    }
    plans[kept] = plans[i];
    hashes[kept++] = hashes[i];
  }
  plan_count = kept;
  cache_stats.kept = kept;
  pthread_mutex_unlock(&cache_lock);
}
