// SPDX-License-Identifier: Apache-2.0
// Settings that are text: of strategies, shares of workers. The first byte
// chooses.
#include <stdlib.h>
#include <string.h>

#include "dist/strategy.h"
#include "io/shares.h"
#include "tests/fuzz/fuzz.h"

static const char* const options[] = {"sparseLocal", "dgc", "powerSGD", "fp16",
                                      NULL};
static const char* const seeds[] = {
    "\0period=8,delay=4,values=f32,spars=1e-3", "\1warmup_steps=10,clip=0.5",
    "\2rank=4", "\3exponent=-3,overlap=false", "\0041,0,32"};

size_t choir_fuzz_seed(int number, uint8_t* out_data) {
  if (number >= (int)(sizeof(seeds) / sizeof(seeds[0]))) return 0;
  // The first byte may be 0.
  const size_t bytes = 1 + strlen(seeds[number] + 1);
  memcpy(out_data, seeds[number], bytes);
  return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  char* text = malloc(bytes);
  if (!text) return 0;
  memcpy(text, data + 1, bytes - 1);
  text[bytes - 1] = 0;
  const char* option = options[data[0] % 5];
  choir_status_t status;
  if (option) {
    const choir_strategy_def_t* def;
    choir_strategy_config_t config;
    status = choir_strategy_config_read(option, 0, text, &def, &config);
    if (!status != (def != NULL)) abort();
  } else {
    int64_t shares[3] = {0};
    status = choir_shares_parse(text, 3, shares);
    for (int i = 0; i < 3 && !status; ++i)
      if (shares[i] < 0) abort();
  }
  choir_status_free(status);
  free(text);
  return 0;
}
