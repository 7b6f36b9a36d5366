#pragma once

#include <filesystem>

#include "app/checkpoint/safetensors.h"
#include "app/training/state.h"

/// Saving and loading of the state of a run.
namespace dkfac::app {

/// Return whether a checkpoint is due between two batches, and after an epoch.
[[nodiscard]] bool checkpoint_due_in_epoch(const TrainState& state);
[[nodiscard]] bool checkpoint_due_after_epoch(const TrainState& state);

/// Collective: saves the current state, unless it is already saved or the plan has no folder. On
/// failure every rank throws the same RunError, and older checkpoints are untouched.
void save_checkpoint(TrainState& state);
/// Collective: restores the state of `checkpoint` into a freshly built run.
void load_checkpoint(TrainState& state, const std::filesystem::path& checkpoint);

/// Loads parameters and buffers by name into a model on any device. It is strict: throws DataError
/// listing every name that is missing, has another type or shape, or is unknown to the model.
void load_model(Context& ctx, nn::Model& model, const safetensors::File& file);
/// Loads the averaged weights of a run of `config`, with buffers averaged over its ranks; null if
/// the run has none. Throws DataError as load_model().
[[nodiscard]] std::unique_ptr<nn::Ema> load_ema(Context& ctx, nn::Model& model,
                                                const Config& config,
                                                const std::filesystem::path& checkpoint);

}  // namespace dkfac::app
