// SPDX-License-Identifier: Apache-2.0
// Files of parameters: safetensors, with and without Choir's own lines.
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "io/checkpoint.h"
#include "tensor/tensor.h"
#include "tests/fuzz/fuzz.h"

static const char* const headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
    "{\"__metadata__\":{\"format\":\"pt\",\"key\":\"value\"},"
    "\"w\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
    "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]},"
    "\"c\":{\"dtype\":\"BOOL\",\"shape\":[3,1],\"data_offsets\":[16,19]},"
    "\"d\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[19,19]}}",
    "{\"__metadata__\":{\"choir.format\":\"1\","
    "\"choir.sum\":\"0123456789abcdef\"},"
    "\"w\\u00e9\":{\"dtype\":\"U8\",\"shape\":[2,2,2],\"data_offsets\":[0,8]}}",
};

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  if (number >= (int)(sizeof(headers) / sizeof(headers[0]))) return 0;
  const uint64_t bytes = strlen(headers[number]);
  memcpy(out_data, &bytes, sizeof(bytes));
  memcpy(out_data + sizeof(bytes), headers[number], bytes);
  memset(out_data + sizeof(bytes) + bytes, 0x3c, 24);
  return sizeof(bytes) + bytes + (number == 0 ? 24 : number == 1 ? 19 : 8);
}

static void read_entry(choir_checkpoint_t* file,
                       const choir_checkpoint_entry_t* entry,
                       choir_device_t* device) {
  choir_tensor_t* tensor = NULL;
  if (entry->bytes > CHOIR_FUZZ_MOST_BYTES) abort();  // the file is shorter
  choir_status_t status = choir_tensor_create(device, entry->dtype, entry->ndim,
                                              entry->shape, &tensor);
  if (!status) status = choir_checkpoint_read(file, entry->name, tensor);
  choir_status_free(status);
  choir_tensor_release(tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static choir_device_t* device;
  if (!device && choir_device_create("cpu", NULL, &device)) abort();
  choir_checkpoint_t* file = NULL;
  choir_status_t status =
      choir_checkpoint_open(choir_fuzz_file(data, bytes), &file);
  if (status && (file || !choir_status_message(status)[0])) abort();
  choir_status_free(status);
  if (!file) return 0;
  for (size_t i = 0; i < choir_checkpoint_count(file); ++i)
    read_entry(file, choir_checkpoint_get(file, i), device);
  for (size_t i = 0; i < choir_checkpoint_metadata_count(file); ++i) {
    const choir_metadata_t line = choir_checkpoint_metadata_get(file, i);
    if (!choir_checkpoint_metadata(file, line.key)) abort();
  }
  choir_checkpoint_destroy(file);
  return 0;
}
