#pragma once

#include "app/training/state.h"

namespace dkfac::app {

/// Throws InvalidArgument when some batch of the phase would leave a BatchNorm too few values. The
/// images must have the shape of model.input().
void check_batch_norms(const nn::Model& model, const PhasePlan& plan, int ranks);
/// Throws InvalidArgument when `config` evaluates `test` in batches of shapes that the model does
/// not accept, at which the run would fail after its first epoch. The images must have the shape of
/// model.input().
void check_rectangular(nn::Model& model, const Config& config, const data::Dataset& test);
/// Creates state.loader and test_loader for the current phase.
void make_loaders(TrainState& state);
/// Returns the options of CUDA graphs for the current phase.
[[nodiscard]] nn::GraphedPasses::Options graph_options(const TrainState& state);

}  // namespace dkfac::app
