// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_FAKE_CUDNN_H_
#define CHOIR_TESTS_TENSOR_FAKE_CUDNN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor/kernels/cuda/cudnn_graph.h"
#include "tests/testing/fake_library.h"

namespace choir {
namespace testing {

// A script in the place of cuDNN: it checks that descriptors have the
// attributes that they need, of the right type and number, before they are
// finalized, and computes by plain loops what a graph says, as work of a stream
// of the scripted driver. Some of its engines give numbers that nobody wants,
// and say so; those come first.
//
// One at a time; made before the first device, gone after the last.
class FakeCudnn : public FakeLibrary {
 public:
  // What one engine is like.
  struct Engine {
    std::vector<int32_t> notes;
    int64_t workspace_bytes;
    bool finalizes;  // its plans
    bool is_right;   // else its numbers are not
    int64_t index = 0;
  };

  FakeCudnn();
  ~FakeCudnn();

  // The engines that heuristics of this mode name, the best first.
  void set_engines(int mode, std::vector<Engine> engines) {
    engines_[mode] = std::move(engines);
  }
  // Whether an engine does a convolution and what comes after it at once.
  void set_fuses(bool fuses) { fuses_ = fuses; }
  // Whether it can add to what is there.
  void set_adds(bool adds) { adds_ = adds; }

 private:
  struct Value {
    int type;
    int64_t count;
    std::vector<unsigned char> bytes;
  };
  struct Desc {
    int kind;
    bool is_final = false;
    std::map<int, Value> attrs;
    Engine engine;  // of an engine, a configuration or a plan
  };
  // What a graph computes, copied out of its descriptors.
  struct Tensor {
    int dtype = 0;
    int64_t shape[4] = {};
    int64_t strides[4] = {};
    int64_t id = 0;
    int64_t alignment = 1;
    bool is_virtual = false;
    char* data = nullptr;
  };
  struct Operation;
  struct Work;

  choir__cudnn_table_t MakeTable();
  int Set(Desc* desc, int attr, int type, int64_t count, const void* values);
  int Get(Desc* desc, int attr, int type, int64_t wanted, int64_t* count,
          void* values);
  int Finalize(Desc* desc);
  int Execute(Desc* plan, Desc* pack);
  // Values of an attribute, which must be there.
  template <typename T>
  std::vector<T> Values(const Desc* desc, int attr) const;
  template <typename T>
  T Only(const Desc* desc, int attr) const {
    return Values<T>(desc, attr).at(0);
  }
  Desc* Child(const Desc* desc, int attr) const;
  bool CheckConv(const Desc* op);
  bool CheckGraph(const Desc* graph, bool* out_supported);
  Tensor ReadTensor(const Desc* desc) const;
  Operation ReadOperation(const Desc* op) const;
  static void Compute(Work* work);

  static FakeCudnn* self_;
  choir__cudnn_table_t table_;
  std::map<int, std::vector<Engine>> engines_;
  bool fuses_ = true;
  bool adds_ = true;
  struct CUstream_st* stream_ = nullptr;
  std::string said_;
};

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_FAKE_CUDNN_H_
