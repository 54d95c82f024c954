// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_library.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_cuda.h"

namespace choir {
namespace testing {

FakeLibrary::~FakeLibrary() {
  EXPECT_EQ(live_.size(), 0u) << name_ << ": handles or descriptors are left";
}

void FakeLibrary::FailNext(const std::string& function, int result, int skip) {
  Lock lock(lock_);
  planned_[function] = {skip, result};
}

int FakeLibrary::Calls(const std::string& function) const {
  Lock lock(lock_);
  auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

size_t FakeLibrary::live() const {
  Lock lock(lock_);
  return live_.size();
}

int FakeLibrary::Begin(const std::string& function) {
  ++calls_[function];
  auto plan = planned_.find(function);
  if (plan == planned_.end() || plan->second.skip-- > 0) return 0;
  const int result = plan->second.result;
  planned_.erase(plan);
  return result;
}

int FakeLibrary::BeginInContext(const std::string& function) {
  if (!FakeCuda::HasContext()) Misuse(function + " without a context");
  return Begin(function);
}

void FakeLibrary::Misuse(const std::string& what) const {
  ADD_FAILURE() << name_ << " would not stand this: " << what;
}

bool FakeLibrary::IsLive(const void* object, const std::string& function) {
  if (live_.count(object)) return true;
  Misuse(function + " of what is not there");
  return false;
}

bool FakeLibrary::Drop(const void* object, const std::string& function) {
  if (!IsLive(object, function)) return false;
  live_.erase(object);
  return true;
}

bool FakeLibrary::IsOnGpu(const void* memory, size_t bytes,
                          const std::string& what) const {
  FakeCuda* cuda = FakeCuda::Current();
  if (cuda && cuda->Holds(memory, bytes)) return true;
  Misuse(what + " is not memory of the GPU");
  return false;
}

}  // namespace testing
}  // namespace choir
