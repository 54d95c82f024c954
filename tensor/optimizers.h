// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TENSOR_OPTIMIZERS_H_
#define CHOIR_TENSOR_OPTIMIZERS_H_

// The formulas of the optimizers: one entry each, from which come the settings
// of an optimizer (opt/optimizer.h), the op <name>_update with its attributes,
// checks, reference and cases, and its kernels for CPUs and GPUs. This file is
// plain macros, read by C, C++ and CUDA.
//
// THE OPTIMIZER LIST. X(T, NAME, name, states, doc); `states` counts the
// tensors that are kept for each parameter, at most 2. An entry NAME defines:
//
//   CHOIR_<NAME>_FIELDS(X, T)  settings, as core/config.h takes them; `lr` and
//       `weight_decay` are among them. The op's attributes are the same fields
//       and `step`, which is 1 for the first.
//   CHOIR_<NAME>_FAULT(c)  what is wrong with settings that are each in range;
//       NULL: nothing
//   CHOIR_<NAME>_KEEPS(c)  whether these settings need the states; states that
//       are not kept may be empty and are not touched
//   CHOIR_<NAME>_STATES(X, T)  X(T, name, domain of test values) for each
//   CHOIR_<NAME>_FACTORS(X, T)  X(T, name, value from the attributes `a`):
//       computed in double once for an update and rounded once to `T`
//   CHOIR_<NAME>_STEP(T, FMA, SQRT)  one element in the type T: from the
//       factors `f`, the gradient g and the states *s and *d to *p, *s and *d.
//       Every kernel on every device does these operations in this order and
//       fuses only where FMA stands, so that all have the same bits.
//   CHOIR_<NAME>_CASES  four attribute texts for the tests of the op
#define CHOIR_OPTIMIZER_LIST(X, T)                               \
  X(T, SGD, sgd, 1, "stochastic gradient descent with momentum") \
  X(T, ADAM, adam, 2, "Adam")                                    \
  X(T, ADAMW, adamw, 2, "Adam with decoupled weight decay")      \
  X(T, RMSPROP, rmsprop, 1, "RMSProp")                           \
  X(T, ADAGRAD, adagrad, 1, "AdaGrad")                           \
  X(T, ADADELTA, adadelta, 2, "AdaDelta")

// ---- SGD ----
// g += weight_decay p; v = momentum v + (1 - dampening) g; with Nesterov
// g += momentum v, else g = v; p -= lr g. v starts as 0.

#define CHOIR_SGD_FIELDS(X, T)                                              \
  X(T, FLOAT, lr, 0.1, 0, 1e9, "step size")                                 \
  X(T, FLOAT, momentum, 0, 0, 1, "weight of the old velocity")              \
  X(T, FLOAT, dampening, 0, 0, 1, "share of the gradient that is left out") \
  X(T, FLOAT, weight_decay, 0, 0, 1e9, "weight of the parameter itself")    \
  X(T, BOOL, nesterov, false, 0, 1,                                         \
    "look ahead; needs momentum and no dampening")
#define CHOIR_SGD_FAULT(c)                                      \
  (!(c)->nesterov || ((c)->momentum > 0 && (c)->dampening == 0) \
       ? NULL                                                   \
       : "nesterov needs momentum above 0 and dampening 0")
#define CHOIR_SGD_KEEPS(c) ((c)->momentum > 0)
#define CHOIR_SGD_STATES(X, T) X(T, "velocity", ANY)
#define CHOIR_SGD_FACTORS(X, T)       \
  X(T, neg_lr, -a->lr)                \
  X(T, momentum, a->momentum)         \
  X(T, undamped, 1 - a->dampening)    \
  X(T, weight_decay, a->weight_decay) \
  X(T, nesterov, a->nesterov)
#define CHOIR_SGD_STEP(T, FMA, SQRT)                     \
  g = FMA(f->weight_decay, *p, g);                       \
  if (f->momentum != 0) {                                \
    *s = FMA(f->momentum, *s, f->undamped * g);          \
    g = f->nesterov != 0 ? FMA(f->momentum, *s, g) : *s; \
  }                                                      \
  *p = FMA(f->neg_lr, g, *p);
#define CHOIR_SGD_CASES                                               \
  "lr=0.01 momentum=0.9", "lr=0.05 momentum=0.9 weight_decay=0.0001", \
      "lr=0.1 momentum=0.5 nesterov=1",                               \
      "lr=0.3 momentum=0.9 dampening=0.1 weight_decay=0.01"

// ---- Adam ----
// Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015:
// g += weight_decay p; m = beta1 m + (1 - beta1) g;
// v = beta2 v + (1 - beta2) g^2; p -= lr m' / (sqrt(v') + epsilon), where
// m' = m / (1 - beta1^step) and v' = v / (1 - beta2^step). m and v start as 0.

#define CHOIR_ADAM_MOMENT_FIELDS(X, T)                             \
  X(T, FLOAT, lr, 0.001, 0, 1e9, "step size")                      \
  X(T, FLOAT, beta1, 0.9, 0, 0.999999999, "decay of the mean")     \
  X(T, FLOAT, beta2, 0.999, 0, 0.999999999, "decay of the square") \
  X(T, FLOAT, epsilon, 1e-8, 1e-30, 1, "added outside the root")
#define CHOIR_ADAM_FIELDS(X, T)  \
  CHOIR_ADAM_MOMENT_FIELDS(X, T) \
  X(T, FLOAT, weight_decay, 0, 0, 1e9, "weight of the parameter itself")
#define CHOIR_ADAM_FAULT(c) NULL
#define CHOIR_ADAM_KEEPS(c) true
#define CHOIR_ADAM_STATES(X, T) \
  X(T, "exp_avg", ANY) X(T, "exp_avg_sq", POSITIVE)
#define CHOIR_ADAM_MOMENT_FACTORS(X, T)                            \
  X(T, neg_lr, -a->lr / choir__bias_correction(a->beta1, a->step)) \
  X(T, beta1, a->beta1)                                            \
  X(T, one_minus_beta1, 1 - a->beta1)                              \
  X(T, beta2, a->beta2)                                            \
  X(T, one_minus_beta2, 1 - a->beta2)                              \
  X(T, correction2, choir__bias_correction(a->beta2, a->step))     \
  X(T, epsilon, a->epsilon)
#define CHOIR_ADAM_FACTORS(X, T)  \
  CHOIR_ADAM_MOMENT_FACTORS(X, T) \
  X(T, weight_decay, a->weight_decay)
#define CHOIR_ADAM_STEP(T, FMA, SQRT)                   \
  g = FMA(f->weight_decay, *p, g);                      \
  *s = FMA(f->beta1, *s, f->one_minus_beta1 * g);       \
  *d = FMA(f->beta2, *d, f->one_minus_beta2 * (g * g)); \
  *p = FMA(f->neg_lr, *s / (SQRT(*d / f->correction2) + f->epsilon), *p);
#define CHOIR_ADAM_CASES                                                     \
  "lr=0.01", "step=7 weight_decay=0.0001", "beta1=0.8 beta2=0.95 step=1000", \
      "epsilon=0.001 step=123456"

// ---- AdamW ----
// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
// algorithm 2: p -= lr (m' / (sqrt(v') + epsilon) + weight_decay p), with
// Adam's m' and v' of the gradient alone. lr is the one after the schedule.

#define CHOIR_ADAMW_FIELDS(X, T)          \
  CHOIR_ADAM_MOMENT_FIELDS(X, T)          \
  X(T, FLOAT, weight_decay, 0.01, 0, 1e9, \
    "share of the parameter, times lr, that goes in each step")
#define CHOIR_ADAMW_FAULT(c) NULL
#define CHOIR_ADAMW_KEEPS(c) true
#define CHOIR_ADAMW_STATES(X, T) CHOIR_ADAM_STATES(X, T)
#define CHOIR_ADAMW_FACTORS(X, T) \
  CHOIR_ADAM_MOMENT_FACTORS(X, T) \
  X(T, neg_decay, -a->lr * a->weight_decay)
#define CHOIR_ADAMW_STEP(T, FMA, SQRT)                                \
  *s = FMA(f->beta1, *s, f->one_minus_beta1 * g);                     \
  *d = FMA(f->beta2, *d, f->one_minus_beta2 * (g * g));               \
  *p += FMA(f->neg_lr, *s / (SQRT(*d / f->correction2) + f->epsilon), \
            f->neg_decay * *p);
#define CHOIR_ADAMW_CASES CHOIR_ADAM_CASES

// ---- RMSProp ----
// Tieleman and Hinton, "Lecture 6.5: RMSProp", 2012. g += weight_decay p;
// s = rho s + (1 - rho) g^2; p -= lr g / sqrt(s + epsilon). s starts as 0.

#define CHOIR_RMSPROP_FIELDS(X, T)                              \
  X(T, FLOAT, lr, 0.1, 0, 1e9, "step size")                     \
  X(T, FLOAT, rho, 0.9, 0, 0.999999999, "decay of the square")  \
  X(T, FLOAT, epsilon, 1e-8, 1e-30, 1, "added inside the root") \
  X(T, FLOAT, weight_decay, 0, 0, 1e9, "weight of the parameter itself")
#define CHOIR_RMSPROP_FAULT(c) NULL
#define CHOIR_RMSPROP_KEEPS(c) true
#define CHOIR_RMSPROP_STATES(X, T) X(T, "square", POSITIVE)
#define CHOIR_RMSPROP_FACTORS(X, T) \
  X(T, neg_lr, -a->lr)              \
  X(T, rho, a->rho)                 \
  X(T, one_minus_rho, 1 - a->rho)   \
  X(T, epsilon, a->epsilon)         \
  X(T, weight_decay, a->weight_decay)
#define CHOIR_RMSPROP_STEP(T, FMA, SQRT)            \
  g = FMA(f->weight_decay, *p, g);                  \
  *s = FMA(f->rho, *s, f->one_minus_rho * (g * g)); \
  *p = FMA(f->neg_lr, g / SQRT(*s + f->epsilon), *p);
#define CHOIR_RMSPROP_CASES                                                  \
  "lr=0.01", "rho=0.5 weight_decay=0.0001", "lr=0.5 rho=0.99 epsilon=0.001", \
      "rho=0 epsilon=1e-30"

// ---- AdaGrad ----
// Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 2011.
// g += weight_decay p; s += g^2; p -= lr g / sqrt(s + epsilon). s starts as 0.

#define CHOIR_ADAGRAD_FIELDS(X, T)                              \
  X(T, FLOAT, lr, 0.1, 0, 1e9, "step size")                     \
  X(T, FLOAT, epsilon, 1e-8, 1e-30, 1, "added inside the root") \
  X(T, FLOAT, weight_decay, 0, 0, 1e9, "weight of the parameter itself")
#define CHOIR_ADAGRAD_FAULT(c) NULL
#define CHOIR_ADAGRAD_KEEPS(c) true
#define CHOIR_ADAGRAD_STATES(X, T) X(T, "square_sum", POSITIVE)
#define CHOIR_ADAGRAD_FACTORS(X, T) \
  X(T, neg_lr, -a->lr)              \
  X(T, epsilon, a->epsilon)         \
  X(T, weight_decay, a->weight_decay)
#define CHOIR_ADAGRAD_STEP(T, FMA, SQRT) \
  g = FMA(f->weight_decay, *p, g);       \
  *s = FMA(g, g, *s);                    \
  *p = FMA(f->neg_lr, g / SQRT(*s + f->epsilon), *p);
#define CHOIR_ADAGRAD_CASES \
  "lr=0.01", "weight_decay=0.0001", "lr=0.5 epsilon=0.001", "epsilon=1e-30"

// ---- AdaDelta ----
// Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
// g += weight_decay p; s = rho s + (1 - rho) g^2;
// x = sqrt(d + epsilon) / sqrt(s + epsilon) g; d = rho d + (1 - rho) x^2;
// p -= lr x. s and d start as 0.

#define CHOIR_ADADELTA_FIELDS(X, T)                               \
  X(T, FLOAT, lr, 1, 0, 1e9, "share of the step that is taken")   \
  X(T, FLOAT, rho, 0.95, 0, 0.999999999, "decay of both squares") \
  X(T, FLOAT, epsilon, 1e-6, 1e-30, 1, "added inside both roots") \
  X(T, FLOAT, weight_decay, 0, 0, 1e9, "weight of the parameter itself")
#define CHOIR_ADADELTA_FAULT(c) NULL
#define CHOIR_ADADELTA_KEEPS(c) true
#define CHOIR_ADADELTA_STATES(X, T) \
  X(T, "square", POSITIVE) X(T, "step_square", POSITIVE)
#define CHOIR_ADADELTA_FACTORS(X, T) CHOIR_RMSPROP_FACTORS(X, T)
#define CHOIR_ADADELTA_STEP(T, FMA, SQRT)                        \
  g = FMA(f->weight_decay, *p, g);                               \
  *s = FMA(f->rho, *s, f->one_minus_rho * (g * g));              \
  const T x = SQRT(*d + f->epsilon) / SQRT(*s + f->epsilon) * g; \
  *d = FMA(f->rho, *d, f->one_minus_rho * (x * x));              \
  *p = FMA(f->neg_lr, x, *p);
#define CHOIR_ADADELTA_CASES                                                 \
  "lr=0.01", "rho=0.5 weight_decay=0.0001", "lr=0.5 rho=0.99 epsilon=0.001", \
      "rho=0 epsilon=0.1"

#endif  // CHOIR_TENSOR_OPTIMIZERS_H_
