// SPDX-License-Identifier: Apache-2.0
// Files into memory and into the structs of ONNX's schema, by protobuf-c, whose
// reader recurses as deep as a file says and takes what memory it says; so both
// are limited here.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onnx/onnx_internal.h"

// A graph in a node's attribute is four messages deeper.
enum { MAX_MESSAGES = 4 * CHOIR__ONNX_MAX_DEPTH + 8 };

// ---- The wire format, to bound its depth ----
// https://protobuf.dev/programming-guides/encoding

typedef struct wire_s {
  const uint8_t* at;
  const uint8_t* end;
} wire_t;

static bool read_number(wire_t* wire, uint64_t* out_number) {
  *out_number = 0;
  for (int shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
    const uint8_t byte = *wire->at++;
    *out_number |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return true;
  }
  return false;
}

static choir_status_t check_depth(const ProtobufCMessageDescriptor* message,
                                  wire_t wire, int32_t depth) {
  if (depth > MAX_MESSAGES)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: messages lie in one another more than %d deep",
                       MAX_MESSAGES);
  while (wire.at < wire.end) {
    uint64_t key, bytes = 0;
    bool is_ok = read_number(&wire, &key);
    const unsigned kind = (unsigned)(key & 7);
    if (is_ok && kind == 0 && read_number(&wire, &bytes)) continue;
    if (is_ok && kind == 2) is_ok = read_number(&wire, &bytes);
    if (kind == 1) bytes = 8;
    if (kind == 5) bytes = 4;
    if (!is_ok || (kind != 1 && kind != 2 && kind != 5) ||
        bytes > (uint64_t)(wire.end - wire.at))
      return CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: the bytes are no ONNX model, or cut off");
    const wire_t part = {wire.at, wire.at + bytes};
    wire.at += bytes;
    if (kind != 2 || key >> 3 > INT32_MAX) continue;
    const ProtobufCFieldDescriptor* field =
        protobuf_c_message_descriptor_get_field(message, (unsigned)(key >> 3));
    if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
      CHOIR_TRY(check_depth(field->descriptor, part, depth + 1));
  }
  return NULL;
}

// ---- protobuf-c with a limit ----

enum { BLOCK_HEAD = 16 };  // keeps what follows aligned

static void* limited_alloc(void* self, size_t bytes) {
  choir_onnx_t* onnx = self;
  if (bytes > onnx->proto_limit - onnx->proto_bytes) return NULL;
  char* block = malloc(bytes + BLOCK_HEAD);
  if (!block) return NULL;
  memcpy(block, &bytes, sizeof bytes);
  onnx->proto_bytes += bytes;
  return block + BLOCK_HEAD;
}

static void limited_free(void* self, void* memory) {
  if (!memory) return;
  choir_onnx_t* onnx = self;
  char* block = (char*)memory - BLOCK_HEAD;
  size_t bytes;
  memcpy(&bytes, block, sizeof bytes);
  onnx->proto_bytes -= bytes;
  free(block);
}

static choir_status_t unpack(choir_onnx_t* onnx, const void* bytes,
                             size_t size) {
  const wire_t wire = {bytes, (const uint8_t*)bytes + size};
  CHOIR_TRY(check_depth(&onnx__model_proto__descriptor, wire, 0));
  onnx->proto_memory = (ProtobufCAllocator){
      .alloc = limited_alloc, .free = limited_free, .allocator_data = onnx};
  // An empty message of two bytes is a struct of some hundred; of a large file
  // most bytes are data.
  const uint64_t small = size < 1 << 20 ? size : 1 << 20;
  onnx->proto_limit = (1 << 20) + small * 160 + (uint64_t)size * 16;
  onnx->proto = onnx__model_proto__unpack(&onnx->proto_memory, size, bytes);
  if (!onnx->proto || !onnx->proto->graph || !onnx->proto->has_ir_version)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "onnx: the %zu bytes are no ONNX model, or cut off",
                       size);
  return NULL;
}

// ---- Opening ----

static void destroy(choir_onnx_t* onnx) {
  for (int32_t i = 0; onnx->own_params && i < onnx->param_count; ++i) {
    choir_tensor_release(onnx->own_params[i].value);
    choir_tensor_release(onnx->own_params[i].grad);
  }
  choir_param_set_release(onnx->param_set);
  choir_status_free(onnx->define_failure);
  choir_scope_destroy(onnx->known);
  choir__onnx_forget(onnx);
  choir__onnx_release_graphs(onnx);
  choir__onnx_release_made(onnx);
  if (onnx->proto)
    onnx__model_proto__free_unpacked(onnx->proto, &onnx->proto_memory);
  choir_arena_destroy(onnx->arena);
  choir_device_release(onnx->device);
  choir_device_release(onnx->host);
  free(onnx->folder);
  free(onnx->chosen);
  free(onnx);
}

static choir_status_t fill(choir_onnx_t* onnx, const void* bytes, size_t size,
                           const char* folder) {
  if (folder && !(onnx->folder = strdup(folder)))
    return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a path");
  const choir_device_options_t options = {.threads = 1};
  CHOIR_TRY(choir_device_create("cpu", &options, &onnx->host));
  CHOIR_TRY(choir_scope_create(onnx->host, &onnx->known));
  CHOIR_TRY(choir_arena_create(choir_device_allocator(onnx->host), 1 << 16,
                               &onnx->arena));
  CHOIR_TRY(unpack(onnx, bytes, size));
  return choir__onnx_build(onnx);
}

choir_status_t choir_onnx_parse(const void* bytes, size_t size,
                                const char* folder, choir_onnx_t** out_onnx) {
  *out_onnx = NULL;
  if (!bytes) return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: the bytes are NULL");
  choir_onnx_t* onnx = calloc(1, sizeof *onnx);
  if (!onnx) return CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory");
  onnx->references = 1;
  choir_status_t status = fill(onnx, bytes, size, folder);
  if (status) {
    destroy(onnx);
    return status;
  }
  *out_onnx = onnx;
  return NULL;
}

static choir_status_t map_file(const char* path, void** out_bytes,
                               size_t* out_size) {
  // Without O_NONBLOCK opening a pipe waits for a writer.
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR)
      return CHOIR_ERROR(NOT_FOUND, "onnx: cannot open '%s': no such file",
                         path);
    return CHOIR_ERROR(FAILED_PRECONDITION, "onnx: cannot open '%s' (errno %d)",
                       path, error);
  }
  struct stat info;
  choir_status_t status = NULL;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    status = CHOIR_ERROR(INVALID_ARGUMENT,
                         "onnx: '%s' is empty or no regular file", path);
  } else {
    *out_size = (size_t)info.st_size;
    *out_bytes = mmap(NULL, *out_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*out_bytes == MAP_FAILED)
      status = CHOIR_ERROR(OUT_OF_MEMORY, "onnx: cannot map '%s', %zu bytes",
                           path, *out_size);
  }
  close(fd);
  return status;
}

choir_status_t choir_onnx_open(const char* path, choir_onnx_t** out_onnx) {
  *out_onnx = NULL;
  if (!path) return CHOIR_ERROR(INVALID_ARGUMENT, "onnx: the path is NULL");
  void* bytes = NULL;
  size_t size = 0;
  CHOIR_TRY(map_file(path, &bytes, &size));
  const char* slash = strrchr(path, '/');
  char* folder =
      slash ? strndup(path, (size_t)(slash - path + 1)) : strdup(".");
  choir_status_t status =
      folder ? choir_onnx_parse(bytes, size, folder, out_onnx)
             : CHOIR_ERROR(OUT_OF_MEMORY, "onnx: no memory for a path");
  free(folder);
  (void)munmap(bytes, size);
  CHOIR_TRY_NOTE(status, "%s", path);
  return NULL;
}

void choir_onnx_retain(choir_onnx_t* onnx) {
  if (onnx) ++onnx->references;
}

void choir_onnx_release(choir_onnx_t* onnx) {
  if (onnx && --onnx->references == 0) destroy(onnx);
}
