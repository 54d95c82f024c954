// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_DIST_TRAINING_H_
#define CHOIR_DIST_TRAINING_H_

#include "io/checkpoint.h"
#include "io/loader.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

// A training run in one checkpoint file, with one worker or with many; a run
// that goes on from it has the bits of one that was never stopped.
//
//   const choir_metadata_t same[] = {{"model", "resnet20"}};
//   CHOIR_TRY(choir_updater_consolidate(updater));
//   CHOIR_TRY(choir_training_save(model, loader, rank == 0 ? path : NULL, same,
//                                 1));
//   ...
//   CHOIR_TRY(choir_training_resume(model, loader, path, same, 1));
//
// The file has the tensors of choir_model_states and, as lines of text, "step"
// and, with a loader, its place ("epoch", and "batch" in it) and what a place
// depends on ("seed", "global batch", "training samples"); beside them the
// caller's lines. What a strategy of DistOpt keeps may be another on each rank:
// what was not sent yet, and, with local steps, the optimizer's states. Such a
// tensor is in the file once for each rank, rank 0's under its name, the
// others' as "rank1/<name>", "rank2/<name>"; all else is there once.
//
// Threads: the one that trains. Both block.

// Saves the model, which has an updater, at its place in the training samples
// (loader NULL: the caller keeps that itself). As choir_checkpoint_save, the
// file appears whole or not at all. Keys of `lines` differ from those above.
//
// Where ranks may differ (choir_dist_opt_ranks_differ) it is collective, after
// choir_updater_consolidate, and rank 0 writes, to its path: a failure of one
// rank is told on all; FAILED_PRECONDITION: a trained parameter differs. Else
// every rank that is given a path writes all there is, and one with NULL does
// nothing.
CHOIR_API choir_status_t choir_training_save(choir_model_t* model,
                                             const choir_loader_t* loader,
                                             const char* path,
                                             const choir_metadata_t* lines,
                                             size_t line_count) CHOIR_NODISCARD;

// Sets the model's states and step, and the loader's place (loader NULL: no
// place is read), to what was saved. A file without "step" leaves the step
// alone. With DistOpt it is collective, after its strategy is in use; rank 0
// alone reads its path, and a failure is told on every rank. The number of
// ranks may be another if nothing was saved for each rank.
//
// FAILED_PRECONDITION, with both texts: one of `lines`, or what the place
// depends on, is missing in the file or another there; or with both numbers:
// states of another number of ranks. NOT_FOUND: no such file, or a state is
// missing. After these nothing was changed; after others states may be.
CHOIR_API choir_status_t choir_training_resume(
    choir_model_t* model, choir_loader_t* loader, const char* path,
    const choir_metadata_t* lines, size_t line_count) CHOIR_NODISCARD;

// ---- Ranks that are lost (choir_dist_opt_config_t.elastic) ----

// The loader of the training samples, which is lent until another one, or NULL,
// takes its place: after a change of generation it hands out, to ranks as they
// are then, the batch of the step that comes, so that each sample of an epoch
// is in one step. At the call its place is that of the model's step; on a
// newcomer (choir_comm_is_newcomer) it goes to where the others are. Of another
// updater than such a DistOpt: nothing to do.
CHOIR_API choir_status_t choir_training_follow(choir_model_t* model,
                                               choir_loader_t* loader)
    CHOIR_NODISCARD;

// After a collective of the program's own that failed with `status` (taken
// over): where ranks were lost, and the others can go on, it makes the change
// that a training step would have made, and returns NULL. Some ranks may be
// past that collective and in a later step, which is taken back: all go on
// after choir_model_step, and agree on what of it they do again. Else it
// returns `status`, or what went wrong. status NULL: NULL.
CHOIR_API choir_status_t choir_training_recover(choir_model_t* model,
                                                choir_status_t status)
    CHOIR_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif  // CHOIR_DIST_TRAINING_H_
