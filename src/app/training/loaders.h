#pragma once

#include "app/training/state.h"

namespace dkfac::app {

/// Throws InvalidArgument when some batch of the phase would leave a BatchNorm too few values. The
/// model takes its images as input().
void check_batch_norms(const nn::Model& model, const PhasePlan& plan, int ranks);
/// Throws InvalidArgument when `config` evaluates `test` in batches of shapes that the model does
/// not take: a run would fail after its first epoch. The model takes its images as input().
void check_rectangular(nn::Model& model, const Config& config, const data::Dataset& test);
/// state.loader and test_loader of the phase under way.
void make_loaders(TrainState& state);
/// For the phase under way.
[[nodiscard]] nn::GraphedPasses::Options graph_options(const TrainState& state);

}  // namespace dkfac::app
