#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dkfac/kfac/options.h"

#include "app/plan/machine.h"
#include "app/plan/network.h"

/// The machine at hand, from what the program measures on it.
namespace dkfac::app::planning {

/// The options of K-FAC that decide what a rank has to do, by their keys in a configuration,
/// without those that a plan sets. `dkfac bench step` records them. options: with_block_width().
[[nodiscard]] nlohmann::ordered_json work_options(const kfac::CurvatureOptions& options);

/// A cluster of ranks like the ones that wrote `files`: with --json, `dkfac bench step` of
/// `network` on one rank, with the optimizers sgd and kfac, whose work_options() are those of
/// `curvature` on the planned ranks, and, if links are measured too, `dkfac bench comm` on two.
/// Each phase of a step of one rank takes what was measured; between ranks bytes pass at the speed
/// of sums of a bucket's size. `ranks` and `per_node` are not set, `inner` and `outer` without
/// links are 0. Throws InvalidArgument for a file that is neither, or is of other work, and for two
/// of one kind.
[[nodiscard]] Cluster measured_cluster(const std::vector<std::string>& files,
                                       const Network& network,
                                       const kfac::CurvatureOptions& curvature);

}  // namespace dkfac::app::planning
