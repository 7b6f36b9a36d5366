#pragma once

#include <filesystem>

#include "app/shared/commands.h"
#include "app/sweep/state.h"

namespace dkfac::app {

/// Runs what is left of a sweep in its folder: a folder of each run, logs/<run>.log of what they
/// print, and sweep.json after every change. True when all is done; false once a signal has stopped
/// it, and all runs with it. A run that fails is noted, and the others go on.
[[nodiscard]] bool run_sweep(SweepState& state, const std::filesystem::path& folder,
                             const Terminal& terminal, bool quiet);

}  // namespace dkfac::app
