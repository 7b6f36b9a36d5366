#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/training/phases.h"

namespace dkfac::app {

/// Formats a table with a row per phase: epochs, image size, batch, steps, learning rate and
/// momentum of the first and the last step, images and operations of the network (image_flops must
/// be set), and the totals. `seconds`: predicted time of each phase, for a column of its own;
/// empty: unknown.
[[nodiscard]] std::string phase_table(const std::vector<PhasePlan>& plan, int ranks,
                                      std::span<const double> seconds = {});

}  // namespace dkfac::app
