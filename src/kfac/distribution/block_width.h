#pragma once

#include <span>
#include <string>

#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"

/// What curvature costs beside the network itself, by counted work, and the width of diagonal
/// blocks that follows.
namespace dkfac::kfac {

/// Sums over the layers with factors.
struct NetworkCost {
  double plain = 0;  ///< Operations of a step: 6 for each row and weight; without unknown rows.
  double apply = 0;  ///< Operations of preconditioning.
  double statistics = 0;   ///< Operations of refreshing all statistics once.
  double parameters = 0;   ///< Elements.
  double kept = 0;         ///< Elements of averages and inverses.
  bool rows_known = true;  ///< Of all Linear and Conv2d layers. Else each is taken to have one row.
};
[[nodiscard]] NetworkCost network_cost(std::span<const LayerSpec> specs,
                                       const CurvatureOptions& options);

/// Bounds by which the width of blocks is chosen.
inline constexpr double kMostApply = 0.5;     ///< Of `plain`, where rows are known.
inline constexpr double kMostStatistics = 4;  ///< Of `plain`.
inline constexpr double kMostKept = 16;       ///< Of `parameters`.
inline constexpr int kNarrow = 256;           ///< Factors up to here cost latency, not operations.
inline constexpr int kLeastBlock = 64;

/// What the options' blocks of these layers reach, and what is kept whole against the bounds; empty
/// where nothing is wide. options: with_block_width().
[[nodiscard]] std::string block_width_text(std::span<const LayerSpec> specs,
                                           const CurvatureOptions& options);

}  // namespace dkfac::kfac
