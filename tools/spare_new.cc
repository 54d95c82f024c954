// SPDX-License-Identifier: Apache-2.0
// oneDNN 2.6 reads one element past the end of a std::vector when it makes an
// AMX convolution of few rows (jit_brgemm_amx_uker: the mask of the block after
// the last one) and drops what it read. Other allocators have readable memory
// there; AddressSanitizer's may end there, so that the read is a signal. These
// operators give every block some bytes more, which are still poisoned: code
// that is watched gets its report as before. Linked into programs and tests
// under --config=asan.
#include <sanitizer/asan_interface.h>

#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kSpare = 64;

void* Allocate(std::size_t bytes) noexcept {
  // Poison starts at a multiple of 8.
  const std::size_t end = (bytes + 7) / 8 * 8;
  char* block = static_cast<char*>(std::malloc(end + kSpare));
  if (block) ASAN_POISON_MEMORY_REGION(block + end, kSpare);
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* block = Allocate(bytes);
  if (!block) std::abort();  // built without exceptions
  return block;
}

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}

void operator delete(void* block) noexcept { std::free(block); }

void operator delete(void* block, std::size_t) noexcept { std::free(block); }
