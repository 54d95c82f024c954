// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_FAKE_LIBRARY_H_
#define CHOIR_TESTS_TESTING_FAKE_LIBRARY_H_

#include <map>
#include <mutex>
#include <set>
#include <string>

namespace choir {
namespace testing {

// What scripts in the place of CUDA's libraries share: they count calls, can
// fail a chosen one, and fail the test for what the library would not stand and
// for what is left at the end. They work over FakeCuda. Threads: any.
class FakeLibrary {
 public:
  FakeLibrary(const FakeLibrary&) = delete;
  FakeLibrary& operator=(const FakeLibrary&) = delete;

  // After `skip` more calls of the function the next one returns `result`.
  void FailNext(const std::string& function, int result, int skip = 0);
  // Calls of one function so far.
  int Calls(const std::string& function) const;
  // Handles and descriptors that are alive.
  size_t live() const;

 protected:
  using Lock = std::lock_guard<std::recursive_mutex>;
  explicit FakeLibrary(std::string name) : name_(std::move(name)) {}
  ~FakeLibrary();

  // Counts the call; its scripted result, 0: none.
  int Begin(const std::string& function);
  // The same for a function that needs the context of the device.
  int BeginInContext(const std::string& function);
  void Misuse(const std::string& what) const;
  // Objects that are handed out; `what` for messages.
  template <typename Handle, typename Object>
  void Give(Handle* handle, Object* object) {
    live_.insert(object);
    *handle = reinterpret_cast<Handle>(object);
  }
  // Whether it is one of them; else a misuse.
  bool IsLive(const void* object, const std::string& function);
  bool Drop(const void* object, const std::string& function);
  // Whether these bytes of the GPU may be worked on; else a misuse.
  bool IsOnGpu(const void* memory, size_t bytes, const std::string& what) const;

  mutable std::recursive_mutex lock_;

 private:
  struct Planned {
    int skip;
    int result;
  };
  std::string name_;
  std::map<std::string, int> calls_;
  std::map<std::string, Planned> planned_;
  std::set<const void*> live_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_FAKE_LIBRARY_H_
