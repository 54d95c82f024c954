// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_CORE_DEVICE_CUDA_CUDA_DEVICE_H_
#define CHOIR_CORE_DEVICE_CUDA_CUDA_DEVICE_H_

#include <pthread.h>

#include "core/allocator_internal.h"
#include "core/cuda_backend.h"
#include "core/cuda_driver_internal.h"
#include "core/device_backend.h"

// What the files of the CUDA device share.
//
// Threads: `lock` guards the pool, what it knows of the streams, and modules,
// `copy_lock` the copies, `attach_lock` the attachments; who takes `lock` and
// another takes the other first. Functions below
// are called with the GPU's context current (choir__cuda_enter).

typedef struct cuda_device_s cuda_device_t;

// One stream of the GPU. Its records are numbered 1, 2, 3, ...; `launched` and
// `completed` are the numbers of the last that was handed to the GPU and of the
// last that is known to be done.
typedef struct cuda_queue_s {
  choir__cu_stream_t handle;
  int slot;  // in cuda_device_t.queues; -1: none
  // Under the device's lock:
  uint64_t launched;
  uint64_t completed;
  // An event behind record number `fenced`, for other streams to wait on.
  choir__cu_event_t fence;
  uint64_t fenced;
} cuda_queue_t;

// Streams of a device at a time: a bit each.
enum { CUDA_QUEUES = 32 };

// A piece of the GPU's memory, for as long as the pool has it.
typedef struct cuda_block_s {
  struct cuda_block_s* next;  // in the cache
  choir__cu_address_t address;
  size_t bytes;
  // By slot, for the bits that are set: the last record that uses the block,
  // since it was handed out and before that.
  uint64_t used[CUDA_QUEUES];
  uint64_t inherited[CUDA_QUEUES];
  uint32_t used_mask;
  uint32_t inherited_mask;
  // Streams that wait for all that was inherited.
  uint32_t ordered_mask;
} cuda_block_t;

// Reuse in stream order: a freed block is handed out at once, with the list of
// the streams that still work on it. Who uses it first on a stream makes that
// stream wait for the others.
typedef struct cuda_pool_s {
  cuda_block_t** blocks;  // all, by address
  size_t count;
  size_t capacity;
  cuda_block_t* cached[CHOIR__POOL_CLASSES];
  choir_pool_stats_t stats;
} cuda_pool_t;

// Pinned host memory through which copies go; two pieces, made by the first.
enum { CUDA_STAGES = 2, CUDA_STAGE_BYTES = 4 << 20 };
typedef struct cuda_stage_s {
  char* memory;
  choir__cu_event_t event;  // behind the last copy from or to it
} cuda_stage_t;

typedef struct cuda_copier_s {
  cuda_queue_t queue;
  choir__cu_event_t order;  // behind the work that a copy comes after
  cuda_stage_t stages[CUDA_STAGES];
} cuda_copier_t;

// cuda_module.c: what was loaded, and by hash of their address the kernels that
// were looked up.
typedef struct cuda_module_s cuda_module_t;
typedef struct cuda_function_s cuda_function_t;
enum { CUDA_FUNCTION_BUCKETS = 64 };

// cuda_attach.c: what libraries keep for the device.
typedef struct cuda_attached_s cuda_attached_t;

// Text that a failure on the GPU names: long enough for a kernel and a layer.
enum { CUDA_LAST_BYTES = 96 };
// Pieces of scratch memory that one record may have.
enum { CUDA_SCRATCH_PIECES = 4 };

// What the record under way, or the last one, asked the device for.
typedef struct cuda_seen_s {
  int32_t launches;                     // of Choir's kernels
  bool library;                         // somebody else has the stream
  bool host;                            // waited, copied, ordered streams, ...
  size_t scratch[CUDA_SCRATCH_PIECES];  // bytes
} cuda_seen_t;

typedef struct cuda_stream_s {
  choir_stream_t base;
  cuda_queue_t queue;
  // For failures that show later: the last record, and how many there were
  // since all was known to be well.
  char last[CUDA_LAST_BYTES];
  uint64_t since;
  void* scratch[CUDA_SCRATCH_PIECES];  // of the record that runs
  int32_t scratch_count;
  bool is_running;  // a record's run
  cuda_seen_t seen;
  // Whose CUDA graph launches become a part of; NULL: they go to the stream.
  choir_segments_t* segments;
} cuda_stream_t;

struct cuda_device_s {
  choir_device_t base;
  char who[24];  // "cuda:0", for messages
  choir_allocator_t objects;
  const choir__cuda_driver_t* driver;
  choir__cu_gpu_t gpu;
  choir__cu_context_t context;  // the primary one; NULL: not yet
  pthread_mutex_t lock;
  pthread_mutex_t copy_lock;
  pthread_mutex_t attach_lock;
  cuda_queue_t* queues[CUDA_QUEUES];  // by slot
  cuda_pool_t pool;
  cuda_copier_t copier;
  cuda_module_t* modules;
  cuda_attached_t* attached;
  cuda_function_t* functions[CUDA_FUNCTION_BUCKETS];
  int background_priority;
};

// The status of a driver call for this device.
#define CUDA_CALL(device, symbol, ...) \
  CHOIR__CUDA_CALL((device)->driver, (device)->who, symbol, __VA_ARGS__)

// ---- cuda_device.c ----

// Makes the GPU's context current on this thread, and takes it away again.
choir_status_t choir__cuda_enter(cuda_device_t* device) CHOIR_NODISCARD;
void choir__cuda_leave(cuda_device_t* device);
// status = call, a status too, with the context current meanwhile; or why it
// could not be, and no call.
#define CUDA_WITHIN(device, status, call) \
  do {                                    \
    (status) = choir__cuda_enter(device); \
    if (!(status)) {                      \
      (status) = (call);                  \
      choir__cuda_leave(device);          \
    }                                     \
  } while (0)
// One of this device's streams.
cuda_stream_t* choir__cuda_stream_of(choir_stream_t* stream);
// What a call that waited for the stream returned, with the records that it may
// have been.
choir_status_t choir__cuda_stream_tell(cuda_stream_t* stream,
                                       choir_status_t status) CHOIR_NODISCARD;
// Later failures are of this record, or one before it.
void choir__cuda_stream_note(cuda_stream_t* stream,
                             const choir_record_t* record);
// The stream's next work uses the view's memory: puts it behind what others
// still do with that. *out_foreign is set if it is not of the pool. Under the
// lock.
choir_status_t choir__cuda_stream_order(cuda_device_t* device,
                                        cuda_stream_t* stream,
                                        const choir_view_t* view,
                                        bool* out_foreign) CHOIR_NODISCARD;
// Logs and frees a failure of which nobody can be told.
void choir__cuda_warn(const char* what, choir_status_t status);

// ---- cuda_module.c ----

void choir__cuda_modules_close(cuda_device_t* device);

// ---- cuda_graph.c ----

extern const choir_segments_vtable_t choir__cuda_segments;
// While launches do not go to the stream: a kernel's, a library's, a record's
// piece of scratch memory.
choir_status_t choir__cuda_segments_launch(
    choir_segments_t* segments, const choir__cu_kernel_params_t* params)
    CHOIR_NODISCARD;
choir__cu_stream_t choir__cuda_segments_stream(choir_segments_t* segments);
choir_status_t choir__cuda_segments_scratch(choir_segments_t* segments,
                                            int32_t piece, size_t bytes,
                                            void** out_data) CHOIR_NODISCARD;
// The record under way does something with the host: FAILED_PRECONDITION while
// launches do not go to the stream.
choir_status_t choir__cuda_see_host(cuda_stream_t* stream) CHOIR_NODISCARD;

// ---- cuda_attach.c ----

void choir__cuda_attached_close(cuda_device_t* device);

// ---- cuda_queue.c ----

// An event that orders and takes no time. Closing none is fine.
choir_status_t choir__cuda_event_open(cuda_device_t* device,
                                      choir__cu_event_t* out_event)
    CHOIR_NODISCARD;
void choir__cuda_event_close(cuda_device_t* device, choir__cu_event_t event);

choir_status_t choir__cuda_queue_open(cuda_device_t* device,
                                      cuda_queue_t* queue, int priority)
    CHOIR_NODISCARD;
// Waits for the queue's work. Takes one that was never opened, or in part.
void choir__cuda_queue_close(cuda_device_t* device, cuda_queue_t* queue);
// Blocks until all work is done.
choir_status_t choir__cuda_queue_synchronize(cuda_device_t* device,
                                             cuda_queue_t* queue)
    CHOIR_NODISCARD;
// Later work of `queue` starts after record `number` of `other`. Under the
// lock.
choir_status_t choir__cuda_queue_follow(cuda_device_t* device,
                                        cuda_queue_t* queue,
                                        cuda_queue_t* other, uint64_t number)
    CHOIR_NODISCARD;

// The queue's next work uses the memory at `address`, and comes after what
// others still do with it.
choir_status_t choir__cuda_queue_use(cuda_device_t* device, cuda_queue_t* queue,
                                     const void* address) CHOIR_NODISCARD;

// ---- cuda_pool.c ----

choir_status_t choir__cuda_pool_alloc(cuda_device_t* device, size_t bytes,
                                      void** out_data) CHOIR_NODISCARD;
void choir__cuda_pool_free(cuda_device_t* device, void* data);
// Gives cached blocks back to the GPU.
void choir__cuda_pool_trim(cuda_device_t* device);
// After the last block was freed.
void choir__cuda_pool_close(cuda_device_t* device);
choir_pool_stats_t choir__cuda_pool_stats(cuda_device_t* device);
// The block that holds this address; NULL: memory of somebody else. Under the
// lock.
cuda_block_t* choir__cuda_pool_find(cuda_device_t* device, const void* data);
// Work that `queue` is given from now on may use the block. Under the lock.
choir_status_t choir__cuda_block_acquire(cuda_device_t* device,
                                         cuda_block_t* block,
                                         cuda_queue_t* queue) CHOIR_NODISCARD;
// The queue's next record uses the block. Under the lock.
void choir__cuda_block_use(cuda_block_t* block, const cuda_queue_t* queue);
// The queue's work is done and its slot may get another. Under the lock.
void choir__cuda_pool_forget(cuda_device_t* device, int slot);

// ---- cuda_copy.c ----

// Also closes what was opened in part.
choir_status_t choir__cuda_copier_open(cuda_device_t* device) CHOIR_NODISCARD;
void choir__cuda_copier_close(cuda_device_t* device);
// Blocking copies, after the work that `queue` has.
choir_status_t choir__cuda_copy_to_host(cuda_device_t* device,
                                        cuda_queue_t* queue,
                                        const void* device_src, void* host_dst,
                                        size_t bytes) CHOIR_NODISCARD;
choir_status_t choir__cuda_copy_to_device(cuda_device_t* device,
                                          cuda_queue_t* queue,
                                          const void* host_src,
                                          void* device_dst, size_t bytes)
    CHOIR_NODISCARD;

#endif  // CHOIR_CORE_DEVICE_CUDA_CUDA_DEVICE_H_
