#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/training/phases.h"

namespace dkfac::app {

/// Formats a table with a row per phase: epochs, image size, batch, steps, learning rate and
/// momentum of the first and the last step, images and operations of the network (image_flops must
/// be set), and the totals. `flops`: sustained FLOP/s of all ranks together, to predict the time of
/// the passes alone.
[[nodiscard]] std::string phase_table(const std::vector<PhasePlan>& plan, int ranks,
                                      std::optional<double> flops = {});

}  // namespace dkfac::app
