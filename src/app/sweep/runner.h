#pragma once

#include <filesystem>

#include "app/shared/commands.h"
#include "app/sweep/state.h"

namespace dkfac::app {

/// Runs the rest of a sweep in its folder. It writes a folder for each run, logs/<run>.log with
/// their output, and sweep.json after every change. Returns true when all runs are done, false once
/// a signal has stopped it and all runs. A run that fails is recorded, and the others continue.
[[nodiscard]] bool run_sweep(SweepState& state, const std::filesystem::path& folder,
                             const Terminal& terminal, bool quiet);

}  // namespace dkfac::app
