#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/kfac/layer_spec.h"

namespace dkfac::kfac {

/// What one layer asks of its owner.
struct LayerLoad {
  double flops = 0;        ///< Inverting and preconditioning; 0 for layers without factors.
  std::int64_t bytes = 0;  ///< Parameters plus statistics.
};
/// n^3 per factor (potrf + potri) plus the two products of the preconditioner.
[[nodiscard]] LayerLoad layer_load(const LayerSpec& spec, DType dtype);

/// Owner of each layer; a pure function of its arguments, equal on every rank. Layers with factors
/// go longest first (by flops, ties by index) to the rank with the least flops so far (ties to the
/// fewest bytes, then the lowest rank); the others follow, largest first, to the rank with the
/// fewest bytes. world_size >= 1.
[[nodiscard]] std::vector<int> assign(std::span<const LayerLoad> loads, int world_size);

/// A table: layer, shape, owner, dims of A and G, bytes, share of the work, and the reason why a
/// layer is not covered; then the totals and the state memory per rank.
[[nodiscard]] std::string describe_assignment(std::span<const std::string> names,
                                              std::span<const LayerSpec> specs,
                                              std::span<const int> owners, int world_size,
                                              DType dtype);

}  // namespace dkfac::kfac
