// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_CONFORMANCE_PLACED_H_
#define CHOIR_TESTS_CONFORMANCE_PLACED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/op_inputs.h"

namespace choir {
namespace testing {

// Operands of the suites in the memory of a device, in many layouts.

// The lines of core/device/devices.def.
inline constexpr const char* kDevices[] = {
#define X(name, factory) #name,
#include "core/device/devices.def"
#undef X
};

// The device called `name`, with two threads. Devices live as long as the
// program: making threads costs more than most problems here. NULL, with the
// reason, for one that this machine lacks.
choir_device_t* Device(const std::string& name, std::string* why = nullptr);

// How the elements of an operand lie in memory.
enum Layout { kContiguous, kGaps, kReversed, kChannelsLast, kRepeated };

// An operand on a device, in a buffer whose other bytes are known.
class Placed {
 public:
  Placed(choir_device_t* device, const Values& values, Layout layout);
  ~Placed();
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  choir_tensor_t* tensor() const { return tensor_; }

  // Elements as they are now, after a check that all other bytes are as ever.
  std::vector<double> Read() const;
  void ExpectUnchanged() const;

 private:
  static constexpr int64_t kGuard = 16;  // elements before and after
  choir_view_t view_;
  choir_stream_t* stream_;
  choir_tensor_t* tensor_ = nullptr;
  std::vector<unsigned char> image_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_CONFORMANCE_PLACED_H_
