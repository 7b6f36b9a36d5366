#pragma once

#include "probe/configuration.h"
#include "probe/writer.h"

namespace dkfac::probe {

/// Runs all steps on all ranks, as threads of this process, and writes decisions and reports of
/// each step, parameters after some of them, and finally all state.
void run(const Configuration& configuration, Writer& writer);

}  // namespace dkfac::probe
