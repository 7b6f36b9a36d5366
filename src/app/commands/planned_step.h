#pragma once

#include "app/plan/network.h"
#include "app/plan/strategy.h"
#include "app/training/phases.h"

namespace dkfac::app {

/// The network of a phase, with the samples that a rank passes at a time.
[[nodiscard]] planning::Network network_of(const PhasePlan& phase, int ranks);
/// The optimizer of a configuration; intervals that a budget chooses are those that it begins with.
[[nodiscard]] planning::Strategy strategy_of(const Config& config);

/// Predicts the seconds of a step of a phase, where the passes of all ranks together sustain
/// `flops`. Other rates are to those as on an H100, and so are the links.
[[nodiscard]] double step_seconds(const PhasePlan& phase, int ranks, double flops);

}  // namespace dkfac::app
