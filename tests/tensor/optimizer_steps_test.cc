// SPDX-License-Identifier: Apache-2.0
// Optimizer steps: to the bit against the formulas of tensor/optimizers.h
// spelled out with std::fma, and roughly against the textbook in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/tensor/ops_testing.h"

namespace {

using choir::testing::Attrs;
using choir::testing::DevicePtr;
using choir::testing::ExpectNear;
using choir::testing::Failure;
using choir::testing::Make;
using choir::testing::MakeDevice;
using choir::testing::Numbers;
using choir::testing::Read;
using choir::testing::Result;
using choir::testing::Results;
using choir::testing::Shape;
using choir::testing::TensorPtr;

constexpr int64_t kCount = 1037;

template <typename T>
class OptimizerSteps : public ::testing::Test {
 protected:
  std::vector<T> Values(uint32_t seed) {
    std::vector<double> numbers = Numbers(kCount, seed);
    return std::vector<T>(numbers.begin(), numbers.end());
  }
  TensorPtr Tensor(const std::vector<T>& values) {
    return Make<T>(device_.get(), {static_cast<int64_t>(values.size())},
                   values);
  }
  static void ExpectSameBits(const std::vector<T>& got,
                             const std::vector<T>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(T)), 0)
          << "element " << i << ": " << got[i] << " and " << expected[i];
  }

  // Three steps of SGD.
  void CheckSgd(const choir_sgd_update_attrs_t& a) {
    std::vector<T> p = Values(1), v(kCount, 0);
    std::vector<double> plain_p(p.begin(), p.end()), plain_v(kCount, 0);
    TensorPtr p_tensor = Tensor(p), v_tensor = Tensor(v);
    for (uint32_t step = 0; step < 3; ++step) {
      std::vector<T> g = Values(10 + step);
      TensorPtr g_tensor = Tensor(g);
      Results(CHOIR_OP_SGD_UPDATE,
              {p_tensor.get(), g_tensor.get(), v_tensor.get()}, &a);
      for (size_t i = 0; i < p.size(); ++i) {
        T grad = std::fma(T(a.weight_decay), p[i], g[i]);
        if (a.momentum != 0) {
          v[i] = std::fma(T(a.momentum), v[i], T(1 - a.dampening) * grad);
          grad = a.nesterov ? std::fma(T(a.momentum), v[i], grad) : v[i];
        }
        p[i] = std::fma(T(-a.lr), grad, p[i]);

        double plain = g[i] + a.weight_decay * plain_p[i];
        plain_v[i] = a.momentum * plain_v[i] + (1 - a.dampening) * plain;
        if (a.momentum != 0)
          plain = a.nesterov ? plain + a.momentum * plain_v[i] : plain_v[i];
        plain_p[i] -= a.lr * plain;
      }
      ExpectSameBits(Read<T>(p_tensor), p);
      ExpectSameBits(Read<T>(v_tensor), v);
    }
    ExpectNear(p, plain_p, sizeof(T) == 4 ? 1e-6 : 1e-14);
  }

  // Three steps of Adam, from step `first` on.
  void CheckAdam(choir_adam_update_attrs_t a, int64_t first) {
    std::vector<T> p = Values(2), m(kCount, 0), v(kCount, 0);
    std::vector<double> plain_p(p.begin(), p.end()), plain_m(kCount, 0),
        plain_v(kCount, 0);
    TensorPtr p_tensor = Tensor(p), m_tensor = Tensor(m), v_tensor = Tensor(v);
    for (int64_t step = first; step < first + 3; ++step) {
      std::vector<T> g = Values(20 + static_cast<uint32_t>(step));
      TensorPtr g_tensor = Tensor(g);
      a.step = step;
      Results(CHOIR_OP_ADAM_UPDATE,
              {p_tensor.get(), g_tensor.get(), m_tensor.get(), v_tensor.get()},
              &a);
      // For the first steps the powers are products in one order only.
      double power1 = a.beta1, power2 = a.beta2;
      if (step == 2) {
        power1 = a.beta1 * a.beta1;
        power2 = a.beta2 * a.beta2;
      } else if (step == 3) {
        power1 = a.beta1 * (a.beta1 * a.beta1);
        power2 = a.beta2 * (a.beta2 * a.beta2);
      } else if (step > 3) {
        power1 = std::pow(a.beta1, static_cast<double>(step));
        power2 = std::pow(a.beta2, static_cast<double>(step));
      }
      double correction1 = 1 - power1, correction2 = 1 - power2;
      for (size_t i = 0; i < p.size(); ++i) {
        T grad = std::fma(T(a.weight_decay), p[i], g[i]);
        m[i] = std::fma(T(a.beta1), m[i], T(1 - a.beta1) * grad);
        v[i] = std::fma(T(a.beta2), v[i], T(1 - a.beta2) * (grad * grad));
        p[i] = std::fma(
            T(-a.lr / correction1),
            m[i] / (std::sqrt(v[i] / T(correction2)) + T(a.epsilon)), p[i]);

        double plain = g[i] + a.weight_decay * plain_p[i];
        plain_m[i] = a.beta1 * plain_m[i] + (1 - a.beta1) * plain;
        plain_v[i] = a.beta2 * plain_v[i] + (1 - a.beta2) * plain * plain;
        plain_p[i] -= a.lr * (plain_m[i] / correction1) /
                      (std::sqrt(plain_v[i] / correction2) + a.epsilon);
      }
      if (step > 3) continue;
      ExpectSameBits(Read<T>(p_tensor), p);
      ExpectSameBits(Read<T>(m_tensor), m);
      ExpectSameBits(Read<T>(v_tensor), v);
    }
    ExpectNear(Read<T>(p_tensor), plain_p, sizeof(T) == 4 ? 3e-6 : 1e-12);
  }

  // Three steps of an op that divides by the root of squares kept in s (and,
  // with two `kept`, uses d): `exact` is one element's step as the table
  // writes it, `plain` the textbook's; both get g after weight decay.
  template <typename Attributes, typename Exact, typename Plain>
  void CheckRoot(choir_op_t op, const Attributes& a, int kept, Exact exact,
                 Plain plain) {
    std::vector<T> p = Values(3);
    std::vector<T> s(kCount, 0), d(kCount, 0);
    std::vector<double> plain_p(p.begin(), p.end()), plain_s(kCount, 0),
        plain_d(kCount, 0);
    TensorPtr p_tensor = Tensor(p), s_tensor = Tensor(s), d_tensor = Tensor(d);
    for (uint32_t step = 0; step < 3; ++step) {
      std::vector<T> g = Values(30 + step);
      TensorPtr g_tensor = Tensor(g);
      std::vector<choir_tensor_t*> srcs = {p_tensor.get(), g_tensor.get(),
                                           s_tensor.get()};
      if (kept == 2) srcs.push_back(d_tensor.get());
      Results(op, srcs, &a);
      for (size_t i = 0; i < p.size(); ++i) {
        exact(std::fma(T(a.weight_decay), p[i], g[i]), &p[i], &s[i], &d[i]);
        plain(g[i] + a.weight_decay * plain_p[i], &plain_p[i], &plain_s[i],
              &plain_d[i]);
      }
      ExpectSameBits(Read<T>(p_tensor), p);
      ExpectSameBits(Read<T>(s_tensor), s);
      ExpectSameBits(Read<T>(d_tensor), d);
    }
    ExpectNear(p, plain_p, sizeof(T) == 4 ? 3e-6 : 1e-12);
  }
  void CheckRmsprop(const choir_rmsprop_update_attrs_t& a) {
    CheckRoot(
        CHOIR_OP_RMSPROP_UPDATE, a, 1,
        [&](T g, T* p, T* s, T*) {
          *s = std::fma(T(a.rho), *s, T(1 - a.rho) * (g * g));
          *p = std::fma(T(-a.lr), g / std::sqrt(*s + T(a.epsilon)), *p);
        },
        [&](double g, double* p, double* s, double*) {
          *s = a.rho * *s + (1 - a.rho) * g * g;
          *p -= a.lr * g / std::sqrt(*s + a.epsilon);
        });
  }
  void CheckAdagrad(const choir_adagrad_update_attrs_t& a) {
    CheckRoot(
        CHOIR_OP_ADAGRAD_UPDATE, a, 1,
        [&](T g, T* p, T* s, T*) {
          *s = std::fma(g, g, *s);
          *p = std::fma(T(-a.lr), g / std::sqrt(*s + T(a.epsilon)), *p);
        },
        [&](double g, double* p, double* s, double*) {
          *s += g * g;
          *p -= a.lr * g / std::sqrt(*s + a.epsilon);
        });
  }
  void CheckAdadelta(const choir_adadelta_update_attrs_t& a) {
    CheckRoot(
        CHOIR_OP_ADADELTA_UPDATE, a, 2,
        [&](T g, T* p, T* s, T* d) {
          *s = std::fma(T(a.rho), *s, T(1 - a.rho) * (g * g));
          const T x =
              std::sqrt(*d + T(a.epsilon)) / std::sqrt(*s + T(a.epsilon)) * g;
          *d = std::fma(T(a.rho), *d, T(1 - a.rho) * (x * x));
          *p = std::fma(T(-a.lr), x, *p);
        },
        [&](double g, double* p, double* s, double* d) {
          *s = a.rho * *s + (1 - a.rho) * g * g;
          const double x =
              std::sqrt(*d + a.epsilon) / std::sqrt(*s + a.epsilon) * g;
          *d = a.rho * *d + (1 - a.rho) * x * x;
          *p -= a.lr * x;
        });
  }

  DevicePtr device_ = MakeDevice("cpu");
};

using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(OptimizerSteps, Types);

TYPED_TEST(OptimizerSteps, Sgd) {
  auto a = Attrs<choir_sgd_update_attrs_t>(CHOIR_OP_SGD_UPDATE);
  a.lr = 0.05;
  this->CheckSgd(a);
  a.weight_decay = 1e-4;
  this->CheckSgd(a);
  a.momentum = 0.9;
  this->CheckSgd(a);
  a.nesterov = true;
  this->CheckSgd(a);
  a.nesterov = false;
  a.dampening = 0.1;
  this->CheckSgd(a);
}

TYPED_TEST(OptimizerSteps, Adam) {
  choir_adam_update_attrs_t a = {};
  choir_struct_init(choir_op_attrs_def(CHOIR_OP_ADAM_UPDATE), &a);
  EXPECT_EQ(a.lr, 0.001);
  EXPECT_EQ(a.beta2, 0.999);
  this->CheckAdam(a, 1);
  a.weight_decay = 0.01;
  a.lr = 0.03;
  this->CheckAdam(a, 1);
  this->CheckAdam(a, 5000);
}

TYPED_TEST(OptimizerSteps, Rmsprop) {
  auto a = Attrs<choir_rmsprop_update_attrs_t>(CHOIR_OP_RMSPROP_UPDATE);
  EXPECT_EQ(a.lr, 0.1);
  EXPECT_EQ(a.rho, 0.9);
  EXPECT_EQ(a.epsilon, 1e-8);
  this->CheckRmsprop(a);
  a.lr = 0.01;
  a.rho = 0.5;
  a.epsilon = 0.25;
  a.weight_decay = 0.1;
  this->CheckRmsprop(a);
}

TYPED_TEST(OptimizerSteps, Adagrad) {
  auto a = Attrs<choir_adagrad_update_attrs_t>(CHOIR_OP_ADAGRAD_UPDATE);
  EXPECT_EQ(a.lr, 0.1);
  EXPECT_EQ(a.epsilon, 1e-8);
  this->CheckAdagrad(a);
  a.lr = 0.01;
  a.epsilon = 0.25;
  a.weight_decay = 0.1;
  this->CheckAdagrad(a);
}

TYPED_TEST(OptimizerSteps, Adadelta) {
  auto a = Attrs<choir_adadelta_update_attrs_t>(CHOIR_OP_ADADELTA_UPDATE);
  EXPECT_EQ(a.lr, 1);
  EXPECT_EQ(a.rho, 0.95);
  EXPECT_EQ(a.epsilon, 1e-6);
  this->CheckAdadelta(a);
  a.lr = 0.5;
  a.rho = 0.5;
  a.epsilon = 0.25;
  a.weight_decay = 0.1;
  this->CheckAdadelta(a);
}

// Without momentum v is not needed, and not touched when it is there.
TYPED_TEST(OptimizerSteps, SgdWithoutMomentum) {
  TensorPtr p = this->Tensor({1, 2, 3});
  TensorPtr g = this->Tensor({1, 1, 1});
  TensorPtr none = this->Tensor({});
  auto a = Attrs<choir_sgd_update_attrs_t>(CHOIR_OP_SGD_UPDATE);
  a.lr = 0.5;
  Results(CHOIR_OP_SGD_UPDATE, {p.get(), g.get(), none.get()}, &a);
  this->ExpectSameBits(Read<TypeParam>(p), {0.5, 1.5, 2.5});
  TensorPtr v = this->Tensor({7, 8, 9});
  Results(CHOIR_OP_SGD_UPDATE, {p.get(), g.get(), v.get()}, &a);
  this->ExpectSameBits(Read<TypeParam>(v), {7, 8, 9});
  a.momentum = 0.9;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "sgd_update: velocity is",
      Failure(CHOIR_OP_SGD_UPDATE, {p.get(), g.get(), none.get()}, &a));
}

// Not every part of the tensors lies in order, but each element meets its own.
TYPED_TEST(OptimizerSteps, LayoutsMayDiffer) {
  using T = TypeParam;
  TensorPtr p = Make<T>(this->device_.get(), {2, 3}, {0, 0, 0, 0, 0, 0});
  TensorPtr rows = Make<T>(this->device_.get(), {3, 2}, {1, 4, 2, 5, 3, 6});
  TensorPtr g = Result(CHOIR_OP_TRANSPOSE, {rows.get()});
  TensorPtr v = Make<T>(this->device_.get(), {2, 3}, {0, 0, 0, 0, 0, 0});
  auto a = Attrs<choir_sgd_update_attrs_t>(CHOIR_OP_SGD_UPDATE);
  a.lr = 1;
  a.momentum = 0.5;
  Results(CHOIR_OP_SGD_UPDATE, {p.get(), g.get(), v.get()}, &a);
  this->ExpectSameBits(Read<T>(p), {-1, -2, -3, -4, -5, -6});
  this->ExpectSameBits(Read<T>(v), {1, 2, 3, 4, 5, 6});
}

TYPED_TEST(OptimizerSteps, Refusals) {
  TensorPtr p = this->Tensor({1, 2, 3});
  TensorPtr q = this->Tensor({1, 2, 3});
  TensorPtr two = this->Tensor({1, 2});
  TensorPtr m = this->Tensor({0, 0, 0}), v = this->Tensor({0, 0, 0});
  EXPECT_STATUS(INVALID_ARGUMENT, "sgd_update: g is",
                Failure(CHOIR_OP_SGD_UPDATE, {p.get(), two.get(), m.get()}));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "adam_update: exp_avg_sq is",
      Failure(CHOIR_OP_ADAM_UPDATE, {p.get(), q.get(), m.get(), two.get()}));
  auto a = Attrs<choir_adam_update_attrs_t>(CHOIR_OP_ADAM_UPDATE);
  a.beta2 = 1;
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "adam_update: beta2 is 1; needs a number from 0 to 0.999999999",
      Failure(CHOIR_OP_ADAM_UPDATE, {p.get(), q.get(), m.get(), v.get()}, &a));
  a.beta2 = 0.99;
  a.step = 0;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "adam_update: step",
      Failure(CHOIR_OP_ADAM_UPDATE, {p.get(), q.get(), m.get(), v.get()}, &a));
  auto rmsprop = Attrs<choir_rmsprop_update_attrs_t>(CHOIR_OP_RMSPROP_UPDATE);
  rmsprop.rho = 1;
  EXPECT_STATUS(
      INVALID_ARGUMENT,
      "rmsprop_update: rho is 1; needs a number from 0 to 0.999999999",
      Failure(CHOIR_OP_RMSPROP_UPDATE, {p.get(), q.get(), v.get()}, &rmsprop));
  EXPECT_STATUS(
      INVALID_ARGUMENT, "adagrad_update: square_sum is",
      Failure(CHOIR_OP_ADAGRAD_UPDATE, {p.get(), q.get(), two.get()}));
  EXPECT_STATUS(INVALID_ARGUMENT, "adadelta_update: step_square is",
                Failure(CHOIR_OP_ADADELTA_UPDATE,
                        {p.get(), q.get(), v.get(), two.get()}));
  // m and v may not be one tensor.
  a.step = 1;
  EXPECT_STATUS(
      INVALID_ARGUMENT, "adam_update: destination ",
      Failure(CHOIR_OP_ADAM_UPDATE, {p.get(), q.get(), m.get(), m.get()}, &a));
}

}  // namespace
