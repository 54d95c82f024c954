// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_OPT_OPTIMIZER_H_
#define CHOIR_OPT_OPTIMIZER_H_

#include "core/config.h"
#include "model/updater.h"
#include "opt/schedule.h"
#include "tensor/optimizers.h"

#ifdef __cplusplus
extern "C" {
#endif

// An optimizer updates parameters from their gradients. Made with a macro
// that takes designated fields:
//
//   choir_optimizer_t* sgd;
//   CHOIR_TRY(choir_optimizer_sgd(&sgd, .lr = 0.005, .momentum = 0.9));
//   CHOIR_TRY(choir_model_set_updater(model, choir_optimizer_updater(sgd)));
//
// Steps are bit-equal on every device: the formulas stand in
// tensor/optimizers.h.
//
// Ownership: shared. Threads: one thread at a time.

typedef struct choir_optimizer_s choir_optimizer_t;
typedef struct choir_optimizer_def_s choir_optimizer_def_t;

// THE OPTIMIZER LIST, with the settings and the formula of each, stands in
// tensor/optimizers.h. Each has a struct of settings choir_<name>_config_t.
#define CHOIR_OPTIMIZER_DECLARE_(T, NAME, name, states, doc)           \
  CHOIR_CONFIG_STRUCT(choir_##name##_config_t, CHOIR_##NAME##_FIELDS); \
  CHOIR_API extern const choir_optimizer_def_t choir_optimizer_def_##name;
CHOIR_OPTIMIZER_LIST(CHOIR_OPTIMIZER_DECLARE_, )
#undef CHOIR_OPTIMIZER_DECLARE_

#define CHOIR_OPTIMIZER_MAKE_(name, FIELDS, out, ...)                        \
  CHOIR_CONFIG_CALL_(                                                        \
      choir_status_t,                                                        \
      choir_optimizer_create(&choir_optimizer_def_##name,                    \
                             &(choir_##name##_config_t){                     \
                                 CHOIR_CONFIG_DEFAULTS(FIELDS) __VA_ARGS__}, \
                             out))
// choir_optimizer_<name>(&out, .field = value, ...). The comma at the end lets
// there be no field at all.
#define choir_optimizer_sgd(...) \
  CHOIR_OPTIMIZER_MAKE_(sgd, CHOIR_SGD_FIELDS, __VA_ARGS__, )
#define choir_optimizer_adam(...) \
  CHOIR_OPTIMIZER_MAKE_(adam, CHOIR_ADAM_FIELDS, __VA_ARGS__, )
#define choir_optimizer_adamw(...) \
  CHOIR_OPTIMIZER_MAKE_(adamw, CHOIR_ADAMW_FIELDS, __VA_ARGS__, )
#define choir_optimizer_rmsprop(...) \
  CHOIR_OPTIMIZER_MAKE_(rmsprop, CHOIR_RMSPROP_FIELDS, __VA_ARGS__, )
#define choir_optimizer_adagrad(...) \
  CHOIR_OPTIMIZER_MAKE_(adagrad, CHOIR_ADAGRAD_FIELDS, __VA_ARGS__, )
#define choir_optimizer_adadelta(...) \
  CHOIR_OPTIMIZER_MAKE_(adadelta, CHOIR_ADADELTA_FIELDS, __VA_ARGS__, )

// The general form: `config` is the optimizer's struct, copied.
CHOIR_API choir_status_t
choir_optimizer_create(const choir_optimizer_def_t* def, const void* config,
                       choir_optimizer_t** out_optimizer) CHOIR_NODISCARD;
CHOIR_API void choir_optimizer_retain(choir_optimizer_t* optimizer);
CHOIR_API void choir_optimizer_release(choir_optimizer_t* optimizer);
// The definition called "sgd", else NULL.
CHOIR_API const choir_optimizer_def_t* choir_optimizer_def_find(
    const char* name);
// Definitions in the order of the list; NULL when index is out of range.
CHOIR_API const choir_optimizer_def_t* choir_optimizer_def_get(int32_t index);
// Its config's field table.
CHOIR_API const choir_struct_def_t* choir_optimizer_def_config(
    const choir_optimizer_def_t* def);

// The optimizer as a model's updater; lent.
CHOIR_API choir_updater_t* choir_optimizer_updater(
    choir_optimizer_t* optimizer);

// A group of parameters with settings of its own, made with a macro that takes
// designated fields:
//
//   CHOIR_TRY(choir_optimizer_add_group(sgd, .match = "*.b,fc.*",
//                                       .weight_decay = 0, .lr_factor = 2));
//
// A parameter is of the first group, in the order in which they were added,
// with a pattern that is its whole name; of none, it has the optimizer's
// settings. A group's learning rate at a step is
// (lr or the optimizer's) * lr_factor * factor(step) of the schedule. Frozen
// parameters have no states and no gradients: choir_param_t.trainable is set to
// false when the optimizer gets them.
#define CHOIR_PARAM_GROUP_FIELDS(X, T)                           \
  X(T, STRING, match, NULL, 0, 0,                                \
    "names with commas between; * stands for any text")          \
  X(T, FLOAT, lr, -1, -1, 1e9, "step size; -1: the optimizer's") \
  X(T, FLOAT, lr_factor, 1, 0, 1e9, "multiplies the step size")  \
  X(T, FLOAT, weight_decay, -1, -1, 1e9,                         \
    "weight of the parameter itself; -1: the optimizer's")       \
  X(T, BOOL, trainable, true, 0, 1, "false: the parameters are frozen")
CHOIR_CONFIG_STRUCT(choir_param_group_t, CHOIR_PARAM_GROUP_FIELDS);
CHOIR_API extern const choir_struct_def_t choir_param_group_def;

// The general form: `group` is copied. FAILED_PRECONDITION once the optimizer
// has parameters. When a model gets the optimizer, a group that matches none of
// its parameters is INVALID_ARGUMENT. With DistOpt the same on every rank.
CHOIR_API choir_status_t choir_optimizer_add_param_group(
    choir_optimizer_t* optimizer, const choir_param_group_t* group)
    CHOIR_NODISCARD;
#define choir_optimizer_add_group(optimizer, ...)                  \
  CHOIR_CONFIG_CALL_(                                              \
      choir_status_t,                                              \
      choir_optimizer_add_param_group(                             \
          optimizer, &(choir_param_group_t){CHOIR_CONFIG_DEFAULTS( \
                         CHOIR_PARAM_GROUP_FIELDS) __VA_ARGS__}))

// Limits of the gradients before each update, which changes them where they
// lie: first of each element, then of the norm of all gradients together, the
// root of the sum of all squares (Pascanu, Mikolov and Bengio, "On the
// difficulty of training recurrent neural networks", ICML 2013: g becomes
// norm / |g| g where |g| is above `norm`). The sum goes over the trainable
// parameters in their order, on the device, and has the same bits in each run
// on one machine. A NaN in a gradient makes all of them NaN.
#define CHOIR_GRADIENT_CLIP_FIELDS(X, T)                               \
  X(T, FLOAT, value, 0, 0, 1e30, "largest size of an element; 0: any") \
  X(T, FLOAT, norm, 0, 0, 1e30, "largest norm of all together; 0: any")
CHOIR_CONFIG_STRUCT(choir_gradient_clip_t, CHOIR_GRADIENT_CLIP_FIELDS);
CHOIR_API extern const choir_struct_def_t choir_gradient_clip_def;

// With DistOpt the gradients are those that all ranks have combined, in every
// layout of shards, and the norm is theirs; a strategy that makes local steps
// limits each rank's own. The sum goes over ranks then, and has the same bits
// on all of them and with any layout.
//
// Copied. FAILED_PRECONDITION once the optimizer has parameters, which need one
// dtype.
CHOIR_API choir_status_t choir_optimizer_set_clip(
    choir_optimizer_t* optimizer, const choir_gradient_clip_t* clip)
    CHOIR_NODISCARD;

// The learning rate at a step is lr * factor(step); copied.
CHOIR_API choir_status_t choir_optimizer_set_schedule(
    choir_optimizer_t* optimizer, const choir_schedule_config_t* schedule)
    CHOIR_NODISCARD;
// Steps count from 0 over the whole run.
CHOIR_API double choir_optimizer_lr(const choir_optimizer_t* optimizer,
                                    int64_t step);

// That of the parameter with this name, by its group.
CHOIR_API double choir_optimizer_param_lr(const choir_optimizer_t* optimizer,
                                          const char* param, int64_t step);

// Sets the learning rates of a step, which choir_optimizer_update and a model
// do themselves: for a program that replays a graph of its own (core/graph.h),
// in which updates were recorded, before each replay.
CHOIR_API void choir_optimizer_begin_step(choir_optimizer_t* optimizer,
                                          int64_t step);

// Another learning rate from the next step on, of graphs too; for programs that
// work it out themselves. With a schedule its factor is applied as before. Call
// between steps; with DistOpt on every rank, with the same value.
// INVALID_ARGUMENT, and nothing is changed, outside the range of the field.
CHOIR_API choir_status_t choir_optimizer_set_lr(choir_optimizer_t* optimizer,
                                                double lr) CHOIR_NODISCARD;
// The same of a group, by its number from 0 in the order of adding.
CHOIR_API choir_status_t choir_optimizer_set_group_lr(
    choir_optimizer_t* optimizer, size_t group, double lr) CHOIR_NODISCARD;

// "sgd lr=0.005 momentum=0.9 ...; group match=..." into `text`, cut at
// text_bytes; returns it.
CHOIR_API const char* choir_optimizer_print(const choir_optimizer_t* optimizer,
                                            char* text, size_t text_bytes);
// 64 bits over kind, settings, schedule and groups: equal for those that take
// the same steps.
CHOIR_API uint64_t choir_optimizer_hash(const choir_optimizer_t* optimizer);

// For programs without a model: makes the states for these parameters, which
// the optimizer serves, and keeps alive, until it is released. Attaching them
// again starts anew.
// FAILED_PRECONDITION: it serves a model, or other parameters.
CHOIR_API choir_status_t choir_optimizer_attach(choir_optimizer_t* optimizer,
                                                choir_device_t* device,
                                                choir_param_set_t* params)
    CHOIR_NODISCARD;
// Updates all trainable parameters from their gradients. FAILED_PRECONDITION:
// there are none, or an update that failed may have changed some of them.
CHOIR_API choir_status_t choir_optimizer_update(choir_optimizer_t* optimizer,
                                                choir_stream_t* stream,
                                                int64_t step) CHOIR_NODISCARD;
// For who applies momentum itself: what this optimizer has of it, 0 for none,
// and applies no more until it is given back. UNIMPLEMENTED: Nesterov's.
CHOIR_API choir_status_t choir_optimizer_take_momentum(
    choir_optimizer_t* optimizer, double* out_momentum) CHOIR_NODISCARD;
CHOIR_API void choir_optimizer_give_momentum(choir_optimizer_t* optimizer,
                                             double momentum);
// Lists the states ("conv1.W/velocity"), lent until the next attach; returns
// how many there are. out_states may be NULL to count.
CHOIR_API size_t choir_optimizer_states(const choir_optimizer_t* optimizer,
                                        choir_named_tensor_t* out_states);

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_OPT_OPTIMIZER_H_
