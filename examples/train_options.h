// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_EXAMPLES_TRAIN_OPTIONS_H_
#define CHOIR_EXAMPLES_TRAIN_OPTIONS_H_

#include "choir.h"

// The flags of the training examples. Table, defaults, checks and --help come
// from the two lists.

extern const char* const train_launcher_names[];
extern const char* const train_comm_names[];
extern const char* const train_precision_names[];
extern const char* const train_trace_names[];
enum { TRAIN_LAUNCHER_SPAWN, TRAIN_LAUNCHER_MPI };
enum {
  TRAIN_PRECISION_F32,
  TRAIN_PRECISION_BF16,
  TRAIN_PRECISION_F16,
  TRAIN_PRECISION_AUTO
};

// Of every program.
#define TRAIN_OPTIONS(X, T)                                                    \
  X(T, INT, epochs, 10, 1, 1e6, "passes over the training samples")            \
  X(T, INT, steps, 0, 0, 1e12,                                                 \
    "training steps, whatever the epochs; 0: those of the epochs")             \
  X(T, INT, evaluate_every, 0, 0, 1e12,                                        \
    "steps from one evaluation to the next; 0: after each epoch, or at the "   \
    "end of --steps")                                                          \
  X(T, INT, batch_size, 64, 1, 1e6, "samples per worker and step")             \
  X(T, INT, global_batch, 0, 0, 1e9,                                           \
    "samples per step of all workers; 0: --batch-size for each")               \
  X(T, INT, micro_shard, 0, 0, 1048576,                                        \
    "samples that stay together on one worker, and whose gradients "           \
    "--reproducible adds up first; 0: the program's choice")                   \
  X(T, FLOAT, lr, 0.005, 0, 1e6, "learning rate")                              \
  X(T, FLOAT, momentum, 0.9, 0, 1, "momentum")                                 \
  X(T, FLOAT, weight_decay, 1e-5, 0, 1e6, "weight decay")                      \
  X(T, INT, seed, 0, 0, 9007199254740992.0,                                    \
    "of initial values and of the order of samples")                           \
  X(T, STRING, device, "cpu", 0, 0, "device to compute on")                    \
  X(T, INT, threads, 0, 0, 4096,                                               \
    "threads per worker; 0: the cores, shared among this host's workers")      \
  X(T, STRING, data, NULL, 0, 0,                                               \
    "folder of the data set; what is in it and what is taken without: above")  \
  X(T, INT, limit, 0, 0, 1e12, "only the first N training samples; 0: all")    \
  X(T, STRING, save, NULL, 0, 0, "write a checkpoint to this file at the end") \
  X(T, INT, save_every, 0, 0, 1e6, "and after every N evaluations; 0: no")     \
  X(T, STRING, resume, NULL, 0, 0, "go on from this checkpoint")               \
  X(T, STRING, log_json, NULL, 0, 0, "one JSON object a report to this file")  \
  X(T, INT, verbosity, 0, 0, 2,                                                \
    "where the time of training goes, after each epoch: 1: forward, backward " \
    "and update, 2: every op")                                                 \
  X(T, STRING, timeline, NULL, 0, 0,                                           \
    "Chrome trace of some training steps, all workers, to this file")          \
  X(T, INT, timeline_steps, 50, 1, 1e5, "how many steps")                      \
  X(T, STRING, trace_digests, NULL, 0, 0,                                      \
    "digests of what each op made, for python -m choir compare, to this file " \
    "(worker N: FILE.N); a run takes several times as long")                   \
  X(T, ENUM, trace_detail, 0, train_trace_names, 0,                            \
    "of every tensor, of every layer, or of the parameters after each step")   \
  X(T, BOOL, graph, true, 0, 1, "record a step once, plan it, replay it")      \
  X(T, BOOL, reproducible, false, 0, 1,                                        \
    "the same bits for any number of threads, on any processor, and with "     \
    "--global-batch for any number of workers (docs/reproducible.md)")         \
  X(T, BOOL, sequential, false, 0, 1,                                          \
    "with graph: the same records as without, one by one")                     \
  X(T, ENUM, precision, 0, train_precision_names, 0,                           \
    "bf16: activations and products; f16: products, for GPUs; auto: the "      \
    "quicker of f32 and bf16")                                                 \
  X(T, BOOL, quiet, false, 0, 1, "print errors only")                          \
  X(T, BOOL, help, false, 0, 1, "print this and end")

// Of those with several workers.
#define TRAIN_DIST_OPTIONS(X, T)                                               \
  X(T, INT, workers, 2, 1, 1024, "worker processes to start")                  \
  X(T, ENUM, launcher, 0, train_launcher_names, 0,                             \
    "who starts them: spawn: this program, on this host; mpi: mpiexec")        \
  X(T, ENUM, comm, 0, train_comm_names, 0,                                     \
    "how they talk; auto: shm on one host, else tcp or mpi; nccl: as auto, "   \
    "and GPUs (--device cuda) by NCCL")                                        \
  X(T, STRING, dist_option, "fp32", 0, 0,                                      \
    "how gradients are shared (docs/strategies.md)")                           \
  X(T, FLOAT, spars, 0, 0, 1e30,                                               \
    "share (sparseTopK, dgc, sparseLocal) or size (sparseThreshold) of what "  \
    "is sent; 0: the strategy's default")                                      \
  X(T, STRING, dist_settings, NULL, 0, 0,                                      \
    "other settings of the strategy: name=value,...")                          \
  X(T, BOOL, shard_optimizer, false, 0, 1,                                     \
    "each worker keeps a part of the optimizer's states")                      \
  X(T, BOOL, sync_batch_norm, false, 0, 1,                                     \
    "batch norm over the samples of all workers, where there is one")          \
  X(T, BOOL, plan, false, 0, 1,                                                \
    "tell what memory a worker takes; measure link and step, tell what every " \
    "strategy would take, and end")                                            \
  X(T, STRING, shares, NULL, 0, 0,                                             \
    "samples of a step for each worker, where they are not alike: 96,32")      \
  X(T, BOOL, balance, false, 0, 1, "measure the workers, and share by speed")  \
  X(T, BOOL, elastic, false, 0, 1,                                             \
    "where a worker is killed the others go on, and another takes its place "  \
    "(docs/elastic.md)")                                                       \
  X(T, FLOAT, deadline, 60, 0.001, 1e6,                                        \
    "longest wait for another worker, seconds")                                \
  X(T, FLOAT, silence, 0, 0, 1e6,                                              \
    "longest wait for a sign of life of another worker, seconds; 0: as "       \
    "--deadline")

#define TRAIN_ALL_OPTIONS(X, T) TRAIN_OPTIONS(X, T) TRAIN_DIST_OPTIONS(X, T)
CHOIR_CONFIG_STRUCT(train_options_t, TRAIN_ALL_OPTIONS);

// The field tables: `train_options_def` of a program with one process (whose
// flags stand first), `train_dist_options_def` of one with several.
extern const choir_struct_def_t train_options_def;
extern const choir_struct_def_t train_dist_options_def;

// What a program takes.
typedef struct train_flags_s {
  // train_options_def or train_dist_options_def.
  const choir_struct_def_t* def;
  // Flags of these that the program does not have; ends with NULL. NULL: none.
  const char* const* absent;
  // The program's own flags and where their values go. NULL: none.
  const choir_struct_def_t* own_def;
  void* own;
  // Sets the defaults that are not those of the lists, after a first reading of
  // the command line, so that one flag may change the defaults of others. NULL:
  // nothing.
  void (*set_defaults)(train_options_t* options);
} train_flags_t;

// Reads "--name value", "--name=value" and, for a switch, "--name". Texts
// are borrowed from argv. INVALID_ARGUMENT or NOT_FOUND: one sentence that
// names the flag. With --help the rest is not looked at.
choir_status_t train_options_parse(const train_flags_t* flags, int argc,
                                   char** argv, train_options_t* out_options)
    CHOIR_NODISCARD;
// Whether argv gives the flag.
bool train_options_given(int argc, char** argv, const char* flag);
// What --dist-option names, with what --spars and --dist-settings say.
choir_status_t train_options_strategy(const train_options_t* options,
                                      const choir_strategy_def_t** out_def,
                                      choir_strategy_config_t* out_config)
    CHOIR_NODISCARD;
// One line for each flag on stdout: name, meaning, default.
void train_options_print_flags(const train_flags_t* flags);

// Steps as the flags say, before the model gets its updater; of --precision
// auto f32, until it is measured.
choir_status_t train_options_set_steps(const train_options_t* options,
                                       choir_model_t* model) CHOIR_NODISCARD;

#endif  // CHOIR_EXAMPLES_TRAIN_OPTIONS_H_
