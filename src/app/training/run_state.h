#pragma once

#include <filesystem>

#include "app/checkpoint/safetensors.h"
#include "app/training/state.h"

/// A run into a checkpoint and back.
namespace dkfac::app {

/// Whether one is due between two batches, resp. after an epoch.
[[nodiscard]] bool checkpoint_due_in_epoch(const TrainState& state);
[[nodiscard]] bool checkpoint_due_after_epoch(const TrainState& state);

/// Collective: saves the run as it stands, unless that has been done or the plan has no folder. On
/// failure every rank throws the same RunError and older checkpoints are untouched.
void save_checkpoint(TrainState& state);
/// Collective: makes the freshly built run go on where `checkpoint` ends.
void load_checkpoint(TrainState& state, const std::filesystem::path& checkpoint);

/// Parameters and buffers by name, wherever the model is; strict: throws DataError listing every
/// name that is missing, of another type or shape, or that the model does not have.
void load_model(Context& ctx, nn::Model& model, const safetensors::File& file);
/// The averaged weights of a run of `config`, whose buffers are the mean over its ranks; null where
/// it keeps none. Throws DataError as load_model().
[[nodiscard]] std::unique_ptr<nn::Ema> load_ema(Context& ctx, nn::Model& model,
                                                const Config& config,
                                                const std::filesystem::path& checkpoint);

}  // namespace dkfac::app
