// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "core/device/cpu/cpu_device.h"
#include "core/random.h"

// A device for tests: the CPU's memory and kernels, but every stream is a
// thread, as on a GPU, and they walk unevenly. A program that leaves out an
// event or a synchronize runs right on "cpu" and wrong here.
//
// Unevenness in stretches shows more than in single steps: a stream that
// hurries for eight records while another one dawdles gets ahead by a whole
// layer.

enum { STRETCH = 8 };

static void nap(uint32_t microseconds) {
  struct timespec duration = {0, (long)microseconds * 1000};
  nanosleep(&duration, NULL);
}

static void pace(void* self, uint64_t number) {
  const choir_cpu_stream_t* stream = self;
  choir_random_key_t key = {stream->seed, stream->index, 0};
  uint32_t mood = choir_random_word(key, 0, number / STRETCH) % 8;
  if (mood < 4) return;  // hurries
  uint32_t draw = choir_random_word(key, 1, number);
  if (mood < 7) {
    nap(draw % 50);
  } else {
    nap(100 + draw % 200);
  }
}

choir_status_t choir__cpu_async_device_make(
    const choir_device_options_t* options, choir_pool_t* pool,
    choir_device_t** out_device) {
  return choir__cpu_device_make_with(/*runs_inline=*/false, pace, options->seed,
                                     pool, out_device);
}
