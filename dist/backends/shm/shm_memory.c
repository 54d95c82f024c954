// SPDX-License-Identifier: Apache-2.0
// Shared memory and the buffers in it. Every page is asked from the kernel
// before use, so that too little memory is a status; used without that, it
// would be a signal in the middle of a step.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dist/backends/shm/shm_internal.h"
#include "dist/memory_file_internal.h"

#define BLOCK_ALIGNMENT 256
#define PLACE_SHIFT 48

// ---- From the kernel ----

// Bytes that the system can still give; SIZE_MAX when it does not say.
static size_t available_memory(void) {
  size_t available = SIZE_MAX;
  FILE* file = fopen("/proc/meminfo", "re");
  if (file) {
    char line[128];
    unsigned long long kilobytes;
    while (fgets(line, sizeof(line), file))
      if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1)
        available = (size_t)kilobytes * 1024;
    fclose(file);
  }
  // A container may have less; only there do these files exist at the root.
  unsigned long long limit, used;
  FILE* limit_file = fopen("/sys/fs/cgroup/memory.max", "re");
  FILE* used_file = fopen("/sys/fs/cgroup/memory.current", "re");
  if (limit_file && used_file && fscanf(limit_file, "%llu", &limit) == 1 &&
      fscanf(used_file, "%llu", &used) == 1) {
    size_t left = limit > used ? (size_t)(limit - used) : 0;
    if (left < available) available = left;
  }
  if (limit_file) fclose(limit_file);
  if (used_file) fclose(used_file);
  return available;
}

choir_status_t choir_shm_create_memory(size_t bytes, int* out_fd) {
  *out_fd = -1;
  size_t available = available_memory();
  if (bytes > available)
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "shared memory: %zu bytes are needed for all ranks; "
                       "the system has %zu",
                       bytes, available);
  return choir__memory_file_create("choir", bytes, out_fd);
}

choir_status_t choir_shm_map(int fd, size_t bytes, unsigned char** out_base) {
  *out_base = NULL;
  CHOIR_TRY(choir__memory_file_check(fd, bytes));
  // Populating now saves a page fault for each page of the first step.
  void* base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED)
    return CHOIR_ERROR(OUT_OF_MEMORY, "shared memory: cannot map %zu bytes: %s",
                       bytes, strerror(errno));
  *out_base = base;
  return NULL;
}

// ---- Handing over ----

choir_status_t choir_shm_send_fd(int socket, int fd) {
  char byte = 'm';
  struct iovec data = {&byte, 1};
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  memset(&control, 0, sizeof(control));
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  // Without a file it is the news that there is none.
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) == 1) return NULL;
  return CHOIR_ERROR(ABORTED, "shared memory: cannot hand it over: %s",
                     strerror(errno));
}

bool choir_shm_try_receive_fd(int socket, int* out_fd) {
  *out_fd = -1;
  char byte;
  struct iovec data = {&byte, 1};
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof(control.bytes)};
  if (recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
    return false;
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS)
    memcpy(out_fd, CMSG_DATA(header), sizeof(*out_fd));
  return true;
}

choir_status_t choir_shm_receive_fd(choir_shm_comm_t* shm, int32_t rank,
                                    int* out_fd) {
  choir_comm_t* comm = &shm->base;
  choir_comm_wait_t wait;
  choir__comm_wait_begin(comm, &wait, rank);
  for (;;) {
    bool over = choir__comm_wait_is_over(comm, &wait);
    if (choir_shm_try_receive_fd(shm->sockets[rank], out_fd)) break;
    if (over) return choir__comm_wait_fail(comm, &wait);
    usleep(500);
  }
  choir__comm_wait_end(comm, &wait);
  return NULL;
}

// ---- Blocks ----
// First fit in a short sorted list: buffers are few and live long.

static size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Finds a gap; *out_index is where the new block stands in the list.
static bool find_gap(const choir_shm_comm_t* shm, size_t bytes,
                     choir_shm_block_t* out_block, size_t* out_index) {
  size_t index = 0;
  for (int32_t s = 0; s < shm->segment_count; ++s) {
    size_t at = 0;
    for (; index < shm->block_count && shm->blocks[index].segment == s;
         ++index) {
      if (shm->blocks[index].offset - at >= bytes) break;
      at = shm->blocks[index].offset + shm->blocks[index].bytes;
    }
    if (shm->segments[s].slice_bytes - at >= bytes) {
      *out_block = (choir_shm_block_t){s, at, bytes};
      *out_index = index;
      return true;
    }
    while (index < shm->block_count && shm->blocks[index].segment == s) ++index;
  }
  return false;
}

static unsigned char* own_slice(const choir_shm_comm_t* shm, int32_t segment) {
  const choir_shm_segment_t* data = &shm->segments[segment];
  return data->base + (size_t)shm->base.rank * data->slice_bytes;
}

bool choir_shm_buffer_has_room(choir_comm_t* comm, size_t bytes) {
  choir_shm_comm_t* shm = (choir_shm_comm_t*)comm;
  choir_shm_block_t block;
  size_t index;
  pthread_mutex_lock(&shm->block_mutex);
  bool found = find_gap(shm, round_up(bytes, BLOCK_ALIGNMENT), &block, &index);
  pthread_mutex_unlock(&shm->block_mutex);
  return found;
}

static choir_status_t reserve_block_list(choir_shm_comm_t* shm) {
  if (shm->block_count < shm->block_capacity) return NULL;
  size_t capacity = shm->block_capacity ? 2 * shm->block_capacity : 16;
  void* blocks = NULL;
  CHOIR_TRY(choir_allocate(shm->base.allocator,
                           capacity * sizeof(choir_shm_block_t),
                           "shared buffers", &blocks));
  if (shm->blocks) {
    memcpy(blocks, shm->blocks, shm->block_count * sizeof(choir_shm_block_t));
    choir_deallocate(shm->base.allocator, shm->blocks,
                     shm->block_capacity * sizeof(choir_shm_block_t));
  }
  shm->blocks = blocks;
  shm->block_capacity = capacity;
  return NULL;
}

void* choir_shm_buffer_alloc(choir_comm_t* comm, size_t bytes) {
  choir_shm_comm_t* shm = (choir_shm_comm_t*)comm;
  choir_shm_block_t block;
  size_t index;
  void* data = NULL;
  pthread_mutex_lock(&shm->block_mutex);
  choir_status_t status = reserve_block_list(shm);
  if (!status &&
      find_gap(shm, round_up(bytes, BLOCK_ALIGNMENT), &block, &index)) {
    memmove(shm->blocks + index + 1, shm->blocks + index,
            (shm->block_count - index) * sizeof(block));
    shm->blocks[index] = block;
    ++shm->block_count;
    data = own_slice(shm, block.segment) + block.offset;
  }
  pthread_mutex_unlock(&shm->block_mutex);
  choir_status_free(status);
  return data;
}

void choir_shm_buffer_free(choir_comm_t* comm, void* data) {
  choir_shm_comm_t* shm = (choir_shm_comm_t*)comm;
  pthread_mutex_lock(&shm->block_mutex);
  for (size_t i = 0; i < shm->block_count; ++i) {
    const choir_shm_block_t* block = &shm->blocks[i];
    if (own_slice(shm, block->segment) + block->offset != data) continue;
    --shm->block_count;
    memmove(shm->blocks + i, shm->blocks + i + 1,
            (shm->block_count - i) * sizeof(*shm->blocks));
    break;
  }
  pthread_mutex_unlock(&shm->block_mutex);
}

// ---- Segments ----

// Rank 0 makes the memory; every rank gets it or the news that there is none.
static choir_status_t share_memory(choir_shm_comm_t* shm, size_t bytes,
                                   int* out_fd) {
  choir_comm_t* comm = &shm->base;
  if (comm->rank != 0) return choir_shm_receive_fd(shm, 0, out_fd);
  choir_status_t made = choir_shm_create_memory(bytes, out_fd);
  // A peer whose socket failed is dead; the next wait tells so.
  for (int32_t r = 1; r < comm->size; ++r)
    choir_status_free(choir_shm_send_fd(shm->sockets[r], *out_fd));
  return made;
}

// All ranks learn whether all succeeded: each sends its failure's text.
static choir_status_t agree(choir_comm_t* comm, choir_status_t own) {
  choir_comm_message_t* message = comm->vtable->stage(comm);
  snprintf((char*)message->data, CHOIR_COMM_REASON_BYTES, "%s",
           own ? choir_status_message(own) : "");
  choir_status_free(own);
  CHOIR_TRY(comm->vtable->exchange(comm, CHOIR_COMM_REASON_BYTES));
  for (int32_t r = 0; r < comm->size; ++r)
    if (comm->messages[r]->data[0])
      return CHOIR_ERROR(OUT_OF_MEMORY, "%s: %.199s", comm->peers[r].text,
                         (const char*)comm->messages[r]->data);
  return NULL;
}

choir_status_t choir_shm_buffer_grow(choir_comm_t* comm, size_t bytes) {
  choir_shm_comm_t* shm = (choir_shm_comm_t*)comm;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t slice = bytes > shm->segment_bytes ? bytes : shm->segment_bytes;
  slice = round_up(slice, page);
  size_t total;
  if (shm->segment_count == CHOIR_SHM_MAX_SEGMENTS ||
      __builtin_mul_overflow(slice, (size_t)comm->size, &total) ||
      total >= (size_t)1 << PLACE_SHIFT)
    return CHOIR_ERROR(OUT_OF_MEMORY,
                       "shared memory: %zu bytes more for each of %d ranks do "
                       "not fit; make segment_bytes larger, or buffers fewer",
                       bytes, comm->size);
  int fd = -1;
  choir_status_t status = share_memory(shm, total, &fd);
  unsigned char* base = NULL;
  // Without a file, rank 0 tells why.
  if (!status && fd >= 0) status = choir_shm_map(fd, total, &base);
  if (fd >= 0) close(fd);
  status = agree(comm, status);
  if (status || !base) {
    if (base) munmap(base, total);
    return status ? status
                  : CHOIR_ERROR(INTERNAL, "shared memory: none was given");
  }
  pthread_mutex_lock(&shm->block_mutex);
  shm->segments[shm->segment_count++] = (choir_shm_segment_t){base, slice};
  pthread_mutex_unlock(&shm->block_mutex);
  return NULL;
}

void choir_shm_free_memory(choir_shm_comm_t* shm) {
  size_t size = (size_t)shm->base.size;
  for (int32_t s = 0; s < shm->segment_count; ++s)
    munmap(shm->segments[s].base, size * shm->segments[s].slice_bytes);
  if (shm->control) munmap(shm->control, shm->control_bytes);
  if (shm->blocks)
    choir_deallocate(shm->base.allocator, shm->blocks,
                     shm->block_capacity * sizeof(choir_shm_block_t));
  pthread_mutex_destroy(&shm->block_mutex);
}

// ---- Places ----
// (segment + 1) << 48 | offset within a rank's slice.

uint64_t choir_shm_place(choir_shm_comm_t* shm, const void* data,
                         size_t bytes) {
  const unsigned char* at = data;
  for (int32_t s = 0; s < shm->segment_count; ++s) {
    const unsigned char* slice = own_slice(shm, s);
    if (at >= slice && at - slice <= (ptrdiff_t)shm->segments[s].slice_bytes &&
        bytes <= shm->segments[s].slice_bytes - (size_t)(at - slice))
      return (uint64_t)(s + 1) << PLACE_SHIFT | (uint64_t)(at - slice);
  }
  return 0;
}

void* choir_shm_at(const choir_shm_comm_t* shm, int32_t rank, uint64_t place) {
  const choir_shm_segment_t* segment =
      &shm->segments[(place >> PLACE_SHIFT) - 1];
  return segment->base + (size_t)rank * segment->slice_bytes +
         (place & (((uint64_t)1 << PLACE_SHIFT) - 1));
}
