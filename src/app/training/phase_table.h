#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/training/phases.h"

namespace dkfac::app {

/// The phases one below the other: epochs, images, batches, steps, learning rate and momentum of
/// the first and the last step, images and operations of the network (image_flops counted), and the
/// sum of it. `flops`: those that all ranks together keep up in a second, for a prediction of the
/// time.
[[nodiscard]] std::string phase_table(const std::vector<PhasePlan>& plan, int ranks,
                                      std::optional<double> flops = {});

}  // namespace dkfac::app
