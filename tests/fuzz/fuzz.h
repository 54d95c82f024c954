// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_FUZZ_FUZZ_H_
#define CHOIR_TESTS_FUZZ_FUZZ_H_

#include <stddef.h>
#include <stdint.h>

// Each target takes bytes that are not trusted and must do nothing worse than
// fail. It defines these two; driver.c runs them.

// Any bytes. Returns 0.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);
// The inputs to begin with, by number; 0 bytes behind the last one. At most
// CHOIR_FUZZ_MOST_BYTES.
enum { CHOIR_FUZZ_MOST_BYTES = 4096 };
size_t choir_fuzz_seed(int number, uint8_t* out_data);

// The path of a file with these bytes, the same one each time.
const char* choir_fuzz_file(const uint8_t* data, size_t bytes);

#endif  // CHOIR_TESTS_FUZZ_FUZZ_H_
