// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TENSOR_KERNEL_CASES_H_
#define CHOIR_TESTS_TENSOR_KERNEL_CASES_H_

#include <deque>
#include <string>
#include <vector>

#include "tensor/op_def.h"

namespace choir {
namespace testing {

// The shapes that kernels of the CPU are tested on: the op's own cases, and
// those of which the vectors, blocks and networks are known.

// Convolutions of enough samples for the direct kernels: x, filters, kernel and
// attributes of each, written out for the forward op and for its gradients.
inline const std::vector<choir_op_case_t>& BatchedConvolutions(choir_op_t op) {
  struct Convolution {
    int64_t n, c, h, w, o, kh, kw;
    const char* attrs;
    int64_t oh, ow;
  };
  static const Convolution kList[] = {
      {16, 1, 6, 6, 3, 3, 3, nullptr, 4, 4},
      {16, 1, 7, 9, 20, 5, 5, nullptr, 3, 5},
      {13, 2, 5, 5, 4, 3, 3, "padding=1", 5, 5},
      {14, 3, 8, 8, 5, 5, 5, "padding=2", 8, 8},
      {30, 3, 6, 7, 6, 3, 3, "padding=1", 6, 7},
      {32, 4, 5, 6, 7, 3, 5, "padding=1,2", 5, 6},
      {16, 5, 6, 5, 8, 5, 3, "padding=2,1", 6, 5},
      {16, 16, 4, 4, 9, 3, 3, "padding=1", 4, 4},
      {16, 17, 3, 3, 11, 3, 3, nullptr, 1, 1},
      {16, 3, 9, 9, 16, 3, 3, "stride=2 padding=1", 5, 5},
      {16, 2, 9, 8, 3, 3, 3, "stride=2,1 padding=1,0", 5, 6},
      {16, 2, 9, 9, 3, 3, 3, "dilation=2", 5, 5},
      {16, 8, 4, 4, 6, 1, 1, nullptr, 4, 4},
      {16, 8, 4, 5, 6, 1, 1, "stride=2", 2, 3},
      {16, 2, 8, 8, 4, 7, 7, "padding=3", 8, 8},
      {48, 1, 5, 5, 2, 5, 5, nullptr, 1, 1},
      {29, 7, 5, 5, 13, 3, 3, "padding=2", 7, 7},
      {16, 4, 5, 14, 5, 3, 3, nullptr, 3, 12},
      {16, 6, 3, 15, 10, 1, 5, nullptr, 3, 11},
      {16, 6, 15, 3, 10, 5, 1, nullptr, 11, 3},
      {16, 1, 28, 28, 4, 5, 5, nullptr, 24, 24},
      {16, 20, 6, 6, 25, 5, 5, nullptr, 2, 2},
      {64, 1, 4, 4, 1, 3, 3, nullptr, 2, 2},
      {16, 9, 6, 4, 21, 3, 3, "padding=0,1", 4, 4},
      {15, 12, 5, 5, 14, 3, 3, "padding=1", 5, 5},
      {17, 3, 9, 7, 7, 3, 3, nullptr, 7, 5},
      {33, 2, 8, 7, 5, 5, 5, "padding=1", 6, 5},
      {16, 1, 11, 10, 9, 4, 3, nullptr, 8, 8},
      // A single channel, which goes its own way in bf16.
      {16, 1, 9, 9, 6, 5, 5, nullptr, 5, 5},
      {31, 1, 7, 8, 3, 5, 5, "padding=2", 7, 8},
      {32, 1, 14, 11, 20, 5, 5, nullptr, 10, 7},
      {13, 1, 8, 9, 10, 5, 6, nullptr, 4, 4},
      {16, 1, 7, 7, 1, 5, 5, nullptr, 3, 3},
      {15, 1, 6, 11, 13, 6, 6, "padding=1", 3, 8},
      {45, 1, 7, 6, 19, 5, 5, "padding=1", 5, 4},
      {29, 1, 9, 6, 2, 7, 5, "padding=3", 9, 8},
      {16, 1, 12, 8, 35, 5, 5, nullptr, 8, 4},
      {64, 1, 6, 7, 5, 5, 5, "padding=1,0", 4, 3},
      {5, 6, 8, 8, 9, 5, 5, "padding=2", 8, 8},
      {1, 9, 9, 9, 10, 3, 3, "padding=1", 9, 9},
      {2, 40, 6, 6, 6, 3, 3, "padding=1", 6, 6},
      {16, 20, 12, 12, 10, 5, 5, nullptr, 8, 8},
      // Enough for Winograd's algorithm: tiles of 4 x 4 with all rests.
      {1, 16, 14, 14, 16, 3, 3, "padding=1", 14, 14},
      {1, 16, 15, 17, 32, 3, 3, nullptr, 13, 15},
      {1, 32, 13, 15, 16, 3, 3, "padding=2", 15, 17},
      {2, 32, 9, 12, 32, 3, 3, "padding=1", 9, 12},
      {3, 16, 11, 7, 48, 3, 3, "padding=1", 11, 7},
      {4, 48, 10, 5, 16, 3, 3, "padding=2,1", 12, 5},
      {5, 16, 6, 9, 16, 3, 3, "padding=1,2", 6, 11},
      {7, 32, 7, 6, 32, 3, 3, "padding=0,1", 5, 6},
      {9, 16, 5, 5, 64, 3, 3, "padding=1", 5, 5},
      {12, 16, 4, 5, 16, 3, 3, "padding=1", 4, 5},
      {22, 16, 3, 3, 16, 3, 3, "padding=1", 3, 3},
      {50, 32, 2, 2, 16, 3, 3, "padding=1", 2, 2},
      {193, 16, 1, 1, 32, 3, 3, "padding=1", 1, 1},
      {2, 16, 1, 130, 16, 3, 3, "padding=1", 1, 130},
      {2, 16, 130, 1, 16, 3, 3, "padding=1", 130, 1},
      {1, 128, 14, 14, 16, 3, 3, "padding=1", 14, 14},
      {1, 16, 14, 14, 112, 3, 3, "padding=1", 14, 14},
      {1, 16, 33, 34, 32, 3, 3, "padding=1", 33, 34},
      // Too much to have pooled as well.
      {16, 64, 8, 8, 64, 3, 3, "padding=1", 8, 8},
      {13, 16, 9, 10, 16, 3, 3, "padding=1", 9, 10},
      {29, 48, 6, 7, 32, 3, 3, "padding=1", 6, 7},
      {5, 64, 17, 15, 80, 3, 3, nullptr, 15, 13},
      {64, 64, 4, 4, 64, 3, 3, "padding=1", 4, 4},
  };
  static std::deque<std::string> texts;
  const auto keep = [](const std::string& text) {
    texts.push_back(text);
    return texts.back().c_str();
  };
  const auto join = [](std::initializer_list<int64_t> sizes) {
    std::string text;
    for (int64_t size : sizes)
      text += (text.empty() ? "" : ",") + std::to_string(size);
    return text;
  };
  enum Kind { kForward, kBackward, kPooled, kPooledBackward };
  static const auto write = [&](Kind kind) {
    std::vector<choir_op_case_t> cases;
    int index = 0;
    for (const Convolution& v : kList) {
      const bool pooled = kind == kPooled || kind == kPooledBackward;
      if (pooled && (v.oh < 2 || v.ow < 2 || v.c * v.o > 1000)) continue;
      const std::string x = join({v.n, v.c, v.h, v.w});
      const std::string w = join({v.o, v.c, v.kh, v.kw});
      const std::string y = pooled ? join({v.n, v.o, v.oh / 2, v.ow / 2})
                                   : join({v.n, v.o, v.oh, v.ow});
      std::string attrs = v.attrs ? v.attrs : "";
      if (kind != kBackward && index++ % 2)
        attrs += (attrs.empty() ? "" : " ") + std::string("activation=relu");
      if (pooled) {
        for (size_t at = 0; at < attrs.size() && at != std::string::npos;) {
          attrs.insert(at, "conv.");
          at = attrs.find(' ', at);
          if (at != std::string::npos) ++at;
        }
        attrs += (attrs.empty() ? "" : " ") +
                 std::string("pool.kernel=2 pool.stride=2");
      }
      std::string shapes = x + ";" + w + ";" + join({v.o});
      if (kind == kBackward) shapes = x + ";" + w + ";" + y;
      if (kind == kPooledBackward)
        shapes = x + ";" + y + ";" + w + ";" + y + ";" + y;
      cases.push_back({keep(shapes), keep(attrs)});
    }
    return cases;
  };
  static const std::vector<choir_op_case_t> forward = write(kForward);
  static const std::vector<choir_op_case_t> backward = write(kBackward);
  static const std::vector<choir_op_case_t> pooled = write(kPooled);
  static const std::vector<choir_op_case_t> spread = write(kPooledBackward);
  switch (op) {
    case CHOIR_OP_CONV2D:
      return forward;
    case CHOIR_OP_CONV2D_MAX_POOL2D:
      return pooled;
    case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA:
    case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT:
      return spread;
    default:
      return backward;
  }
}

// Cases beside the op's own: sizes at which work is shared among threads, and
// the steps of the MNIST network.
inline std::vector<choir_op_case_t> Cases(const choir_op_def_t* def) {
  std::vector<choir_op_case_t> cases;
  for (const choir_op_case_t* c = def->cases; c->shapes; ++c)
    cases.push_back(*c);
  const std::vector<choir_op_case_t> more = [&] {
    using List = std::vector<choir_op_case_t>;
    switch (def->op) {
      case CHOIR_OP_SUM:
      case CHOIR_OP_MEAN:
      case CHOIR_OP_MAX:
        return List{{"64,500", "axis=0"},      {"64,500", "axis=1"},
                    {"300,200", "axis=0"},     {"300,200", nullptr},
                    {"16,20,24,24", "axis=0"}, {"16,20,24,24", "axis=1"},
                    {"16,20,24,24", "axis=2"}, {"16,20,24,24", "axis=3"},
                    {"140001", nullptr},       {"5000,3", "axis=0 keep_dims=1"},
                    {"3,9000", "axis=1"}};
      case CHOIR_OP_ARGMAX:
        return List{{"64,10", "axis=1"},
                    {"1,1", "axis=1"},
                    {"7,3", "axis=1"},
                    {"9,16", "axis=1"},
                    {"5,17", "axis=1"},
                    {"2,100", "axis=1"},
                    {"3,1000", "axis=1"},
                    {"300,100", "axis=1"},
                    {"33,64", "axis=1 keep_dims=1"},
                    {"4,31", "axis=1"}};
      case CHOIR_OP_MSE_LOSS:
        return List{{"64,10;64,10", nullptr},     {"5000;5000", nullptr},
                    {"3,33;3,33", nullptr},       {"2,3,4;2,3,4", nullptr},
                    {"15;15", nullptr},           {"16;16", nullptr},
                    {"17;17", nullptr},           {"100,100;100,100", nullptr},
                    {"2,3,5,5;2,3,5,5", nullptr}, {"4097;4097", nullptr}};
      case CHOIR_OP_MAX_POOL2D:
      case CHOIR_OP_AVG_POOL2D:
        return List{{"16,20,24,24", "kernel=2,2 stride=2,2"},
                    {"16,50,8,8", "kernel=2,2 stride=2,2"},
                    {"4,100,9,9", "kernel=3,3 stride=2,2 padding=1,1"}};
      case CHOIR_OP_MAX_POOL2D_GRAD:
        return List{
            {"16,20,24,24;16,20,12,12;16,20,12,12", "kernel=2,2 stride=2,2"},
            {"16,50,8,8;16,50,4,4;16,50,4,4", "kernel=2,2 stride=2,2"}};
      case CHOIR_OP_AVG_POOL2D_GRAD:
        return List{{"16,20,24,24;16,20,12,12", "kernel=2,2 stride=2,2"},
                    {"16,100,7,7;16,100,1,1", "kernel=7,7 stride=7,7"}};
      case CHOIR_OP_CONV2D:
      case CHOIR_OP_CONV2D_GRAD_DATA:
      case CHOIR_OP_CONV2D_GRAD_WEIGHT:
      case CHOIR_OP_CONV2D_MAX_POOL2D:
      case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_DATA:
      case CHOIR_OP_CONV2D_MAX_POOL2D_GRAD_WEIGHT:
        return BatchedConvolutions(def->op);
      case CHOIR_OP_SGD_UPDATE:
        return List{{"500,800;500,800;500,800", "momentum=0.9"},
                    {"5,7;5,7;5,7", "momentum=0.5 dampening=0.25"},
                    {"1;1;1", "lr=0.5"},
                    {"3,3,3;3,3,3;3,3,3", "lr=0.125"},
                    {"130;130;130", "momentum=0.9 lr=0.5"},
                    {"50,20,5,5;50,20,5,5;50,20,5,5",
                     "momentum=0.9 nesterov=1 weight_decay=0.01"}};
      case CHOIR_OP_ADAM_UPDATE:
        return List{{"500,80;500,80;500,80;500,80", "step=7"},
                    {"5,7;5,7;5,7;5,7", "lr=0.5 step=2"},
                    {"1;1;1;1", "lr=0.5"},
                    {"3,3,3;3,3,3;3,3,3;3,3,3", "beta1=0.8 beta2=0.9"},
                    {"130;130;130;130", "weight_decay=0.1 step=1000"}};
      case CHOIR_OP_RMSPROP_UPDATE:
        return List{{"500,80;500,80;500,80", "lr=0.01"},
                    {"5,7;5,7;5,7", "rho=0.5"},
                    {"1;1;1", "epsilon=0.1"},
                    {"3,3,3;3,3,3;3,3,3", "rho=0.99 lr=1"},
                    {"130;130;130", "weight_decay=0.1"}};
      case CHOIR_OP_ADAGRAD_UPDATE:
        return List{{"500,80;500,80;500,80", "lr=0.01"},
                    {"5,7;5,7;5,7", "lr=2"},
                    {"1;1;1", "epsilon=0.1"},
                    {"3,3,3;3,3,3;3,3,3", "epsilon=0.5 lr=1"},
                    {"130;130;130", "weight_decay=0.1"}};
      case CHOIR_OP_ADADELTA_UPDATE:
        return List{{"500,80;500,80;500,80;500,80", "lr=0.5"},
                    {"5,7;5,7;5,7;5,7", "rho=0.5"},
                    {"1;1;1;1", "epsilon=0.1"},
                    {"3,3,3;3,3,3;3,3,3;3,3,3", "rho=0.99 epsilon=0.01"},
                    {"130;130;130;130", "weight_decay=0.1"}};
      case CHOIR_OP_RANDOM_UNIFORM:
      case CHOIR_OP_RANDOM_NORMAL:
      case CHOIR_OP_DROPOUT:
        return List{{"64,500", "seed=3"},
                    {"3,9001", "seed=4 step=2"},
                    {"20000", "seed=5"},
                    {"1,63", "seed=6"},
                    {"2,64", "seed=7"},
                    {"2,65", "seed=8 first_sample=77"},
                    {"2,4096", nullptr},
                    {"2,4097", "stream=9"},
                    {"8,20,12,12", "seed=11"},
                    {"5,1", nullptr},
                    {"1,1,1,1", nullptr},
                    {"2,3,4,5,6", "seed=1"},
                    {"300", "first_sample=4294967290"},
                    {"7,7,7", "seed=2"},
                    {"31,2", nullptr}};
      case CHOIR_OP_BATCH_NORM:
        return List{
            {"16,20,24,24;20;20", nullptr}, {"4,100,9,9;100;100", nullptr},
            {"64,500;500;500", nullptr},    {"3,64,5,5;64;64", nullptr},
            {"128,32,9,9;32;32", nullptr},  {"5,48,7,13;48;48", nullptr},
            {"700,3;3;3", nullptr}};
      case CHOIR_OP_BATCH_NORM_MOMENTS:
        return List{{"16,20,24,24", "part=3"}, {"4,100,9,9", nullptr},
                    {"64,500", "part=10"},     {"3,64,5,5", "part=1"},
                    {"128,32,9,9", "part=50"}, {"700,3", nullptr}};
      case CHOIR_OP_BATCH_NORM_SUMS:
        return List{{"16,20,24,24;20;20;16,20,24,24", "part=3"},
                    {"4,100,9,9;100;100;4,100,9,9", nullptr},
                    {"64,500;500;500;64,500", "part=10"},
                    {"700,3;3;3;700,3", nullptr}};
      case CHOIR_OP_BATCH_NORM_INFER_ADD:
        return List{{"16,20,24,24;20;20;20;20;16,20,24,24;1,20,1,1", nullptr},
                    {"4,100,9,9;100;100;100;100;4,100,9,9;1,100,1,1", nullptr},
                    {"64,500;500;500;500;500;64,500;1,500", nullptr},
                    {"700,3;3;3;3;3;700,3;1,3", nullptr}};
      case CHOIR_OP_BATCH_NORM_INFER:
        return List{{"16,20,24,24;20;20;20;20", nullptr},
                    {"4,100,9,9;100;100;100;100", nullptr},
                    {"64,500;500;500;500;500", nullptr},
                    {"3,64,5,5;64;64;64;64", nullptr},
                    {"700,3;3;3;3;3", nullptr}};
      case CHOIR_OP_BATCH_NORM_GRAD:
        return List{{"16,20,24,24;20;20;20;16,20,24,24", nullptr},
                    {"4,100,9,9;100;100;100;4,100,9,9", nullptr},
                    {"64,500;500;500;500;64,500", nullptr},
                    {"3,64,5,5;64;64;64;3,64,5,5", nullptr},
                    {"700,3;3;3;3;700,3", nullptr}};
      case CHOIR_OP_BATCH_NORM_RELU:
        return List{{"16,20,24,24;20;20", nullptr},
                    {"4,100,9,9;100;100;4,100,9,9", nullptr},
                    {"64,500;500;500", nullptr},
                    {"3,64,5,5;64;64;3,64,5,5", nullptr},
                    {"700,3;3;3", nullptr},
                    {"128,32,9,9;32;32;128,32,9,9", nullptr},
                    {"17,16,31,33;16;16", nullptr}};
      case CHOIR_OP_BATCH_NORM_RELU_GRAD:
        return List{{"16,20,24,24;20;20;20;20;16,20,24,24", nullptr},
                    {"4,100,9,9;100;100;100;100;4,100,9,9;4,100,9,9", nullptr},
                    {"64,500;500;500;500;500;64,500", nullptr},
                    {"3,64,5,5;64;64;64;64;3,64,5,5;3,64,5,5", nullptr},
                    {"700,3;3;3;3;3;700,3", nullptr},
                    {"128,32,9,9;32;32;32;32;128,32,9,9;128,32,9,9", nullptr},
                    {"17,16,31,33;16;16;16;16;17,16,31,33", nullptr}};
      case CHOIR_OP_BATCH_NORM_ADD_RELU_GRAD:
        return List{
            {"16,20,24,24;20;20;20;16,20,24,24;16,20,24,24", nullptr},
            {"4,100,9,9;100;100;100;4,100,9,9;4,100,9,9;4,100,9,9", nullptr},
            {"64,500;500;500;500;64,500;64,500", nullptr},
            {"3,64,5,5;64;64;64;3,64,5,5;3,64,5,5;3,64,5,5", nullptr},
            {"700,3;3;3;3;700,3;700,3", nullptr},
            {"128,32,9,9;32;32;32;128,32,9,9;128,32,9,9;128,32,9,9", nullptr},
            {"17,16,31,33;16;16;16;17,16,31,33;17,16,31,33", nullptr}};
      case CHOIR_OP_LINEAR:
        return List{{"64,800;800,500;500", nullptr},
                    {"64,500;500,10;10", nullptr}};
      case CHOIR_OP_SOFTMAX:
      case CHOIR_OP_LOG_SOFTMAX:
        return List{{"64,10", nullptr}, {"100,1000", nullptr}};
      // Rows of several windows, and enough for two threads.
      case CHOIR_OP_CONCAT:
        return List{{"40,700;30,700", nullptr}, {"300,9;300,140", "axis=1"}};
      case CHOIR_OP_GATHER:
        return List{{"90,1100;50", nullptr}, {"3,50000;40000", "axis=1"}};
      case CHOIR_OP_GATHER_GRAD:
        return List{{"90,1100;50;50,1100", nullptr},
                    {"2,17,700;9,5;2,9,5,700", "axis=1"},
                    {"3,20000;4000;3,4000", "axis=1"}};
      case CHOIR_OP_GATHER_ELEMENTS:
        return List{{"300,500;300,130", "axis=1"}, {"70,900;60,900", nullptr}};
      case CHOIR_OP_GATHER_ELEMENTS_GRAD:
        return List{{"300,130;300,140;300,140", "axis=1"},
                    {"40,1100;60,1000;60,1000", nullptr}};
      case CHOIR_OP_SCATTER_ELEMENTS:
        return List{{"300,130;300,20;300,20", "axis=1"},
                    {"40,1100;60,1000;60,1000", nullptr}};
      case CHOIR_OP_SCATTER_ELEMENTS_GRAD:
        return List{{"300,130;300,140", "axis=1"},
                    {"40,1100;60,1000", nullptr}};
      case CHOIR_OP_ONE_HOT:
        return List{{"3000", "depth=20"}, {"150,3", "depth=90 axis=1"}};
      case CHOIR_OP_PAD:
        return List{{"40,900", "before=1,70,0,0,0,0,0,0 mode=reflect"},
                    {"7,3,40,40", "before=0,0,3,2,0,0,0,0 mode=edge"}};
      case CHOIR_OP_PAD_GRAD:
        return List{
            {"40,900;41,970", "before=1,70,0,0,0,0,0,0 mode=reflect"},
            {"7,3,40,40;7,3,43,42", "before=0,0,3,2,0,0,0,0 mode=edge"}};
      case CHOIR_OP_TILE:
        return List{{"9,1100", "ndim=2 repeats=4,1,1,1,1,1,1,1"},
                    {"300,7", "repeats=20"}};
      case CHOIR_OP_TILE_GRAD:
        return List{{"9,1100;36,1100", "ndim=2 repeats=4,1,1,1,1,1,1,1"},
                    {"300,7;300,140", "repeats=20"}};
      case CHOIR_OP_REPEAT:
        return List{{"9,1100", "repeats=4"}, {"300,70", "axis=1 repeats=2"}};
      case CHOIR_OP_REPEAT_GRAD:
        return List{{"9,1100;36,1100", "repeats=4"},
                    {"300,70;300,140", "axis=1 repeats=2"}};
      default:
        if (def->elementwise && def->src_max == 1)
          return List{{"16,20,24,24", nullptr}, {"50000", nullptr}};
        if (def->elementwise)
          return List{{"16,20,24,24;16,20,24,24", nullptr},
                      {"50000;50000", nullptr}};
        return List{};
    }
  }();
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TENSOR_KERNEL_CASES_H_
