// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_FAKE_CUBLAS_H_
#define CHOIR_TESTS_TENSOR_FAKE_CUBLAS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/kernels/cuda/cublas_lt.h"
#include "tests/testing/fake_library.h"

namespace choir {
namespace testing {

// A script in the place of cuBLASLt: it checks descriptors as the library does
// and multiplies by plain loops what they say, as work of a stream of the
// scripted driver. An algorithm is good for the descriptors that it was found
// for, with memory aligned as was promised, and no others.
//
// One at a time; made before the first device, gone after the last.
class FakeCublas : public FakeLibrary {
 public:
  FakeCublas();
  ~FakeCublas();

  // What the heuristics were last asked with.
  struct Question {
    int compute = -1;
    uint64_t workspace_bytes = 0;
    uint32_t reduction_mask = 7;  // of splits: all
    uint32_t alignment[4] = {256, 256, 256, 256};
    int32_t batch = 1;
  };
  Question last_question() const { return question_; }
  // Whether the heuristics find anything from now on.
  void set_has_algorithms(bool has) { has_algorithms_ = has; }

 private:
  struct Desc;
  struct Layout;
  struct Product;
  choir__cublas_table_t MakeTable();
  // Everything of a product that an algorithm depends on, in words.
  static std::string Sign(const Desc& desc, const Layout& a, const Layout& b,
                          const Layout& c, const Layout& d);
  bool Check(const Product& product);
  static void Multiply(const Product& product);

  static FakeCublas* self_;
  choir__cublas_table_t table_;
  Question question_;
  bool has_algorithms_ = true;
  struct Found {
    std::string sign;
    size_t workspace_bytes;
    uint32_t alignment[4];
    uint32_t bias_alignment;
  };
  std::vector<Found> found_;  // an algorithm is its number here
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_FAKE_CUBLAS_H_
