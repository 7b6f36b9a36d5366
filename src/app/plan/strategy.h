#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/kfac/options.h"
#include "dkfac/optim/optimizer.h"

#include "optim/shared/registry.h"

/// What is compared: optimizers, and ways to distribute and to thin out the work of K-FAC.
namespace dkfac::app::planning {

/// Part of the statistics that the adaptive rule refreshed in a step of ResNet-50 at a batch of
/// 16,384 (Osawa et al. 2020, table 2).
inline constexpr double kRefreshedPart = 0.054;

struct Strategy {
  std::string name;
  optim::OptimizerType type = optim::OptimizerType::kfac;
  kfac::CurvatureOptions curvature = {};  ///< With the communication of every optimizer.
  double refreshed = kRefreshedPart;      ///< Of a step with Staleness::adaptive.
};

/// Intervals 0 are those of which a budget would choose: 10 and 50.
struct Intervals {
  int statistics = 20, inverses = 100;
};

/// sgd, lars, adamw, muon, and K-FAC: every step, at intervals, staggered, with split factors, with
/// wide ones inverted by several ranks, with statistics of the owners' samples, with the ranks of a
/// node as workers, as rows of few samples, and by the adaptive rule. `base` has all that these do
/// not set.
[[nodiscard]] std::vector<Strategy> strategies(const kfac::CurvatureOptions& base,
                                               Intervals intervals, int ranks, int per_node,
                                               double refreshed = kRefreshedPart);
/// K-FAC with 1, 2, 4, ... workers a layer, with and without wide factors that several ranks
/// invert.
[[nodiscard]] std::vector<Strategy> distributions(const kfac::CurvatureOptions& base,
                                                  Intervals intervals, int ranks);

}  // namespace dkfac::app::planning
