#pragma once

#include "probe/configuration.h"
#include "probe/writer.h"

namespace dkfac::probe {

/// All steps on all ranks, as threads of this process: decisions and reports of each step,
/// parameters after some of them, in the end all state.
void run(const Configuration& configuration, Writer& writer);

}  // namespace dkfac::probe
