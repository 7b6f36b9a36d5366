#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/export.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"

namespace dkfac::kfac {

/// What one layer asks of its owner.
struct DKFAC_API LayerLoad {
  double flops = 0;        ///< Inverting and preconditioning; 0 for layers without factors.
  std::int64_t bytes = 0;  ///< Parameters plus statistics.
};
/// n^3 per factor (potrf + potri) plus the two products of the preconditioner.
[[nodiscard]] DKFAC_API LayerLoad layer_load(const LayerSpec& spec, DType dtype);

/// Owner of each layer; a pure function of its arguments, equal on every rank. Layers with factors
/// go longest first (by flops, ties by index) to the rank with the least flops so far (ties to the
/// fewest bytes, then the lowest rank); the others follow, largest first, to the rank with the
/// fewest bytes. world_size >= 1.
[[nodiscard]] DKFAC_API std::vector<int> assign(std::span<const LayerLoad> loads, int world_size);

/// Bytes that ranks keep of a layer's curvature between steps.
struct DKFAC_API CurvatureBytes {
  std::int64_t averages = 0;  ///< Of the statistics, on the owner.
  std::int64_t earlier = 0;   ///< Two earlier statistics under the adaptive rule, on the owner.
  std::int64_t inverses = 0;  ///< With eigenvalues and EKFAC scales, on all workers of the layer.
};
[[nodiscard]] DKFAC_API CurvatureBytes curvature_bytes(const LayerSpec& spec,
                                                       const CurvatureOptions& options,
                                                       Device device = Device::cpu());

/// Bytes that a rank keeps per element of the parameters of the layers it works on.
struct DKFAC_API KeptParameters {
  std::int64_t momentum = 0;
  std::int64_t masters = 0;  ///< Of a narrower weight wire.
};

struct DKFAC_API NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

/// What describe_assignment() is told beside the layers.
struct DKFAC_API AssignmentDetails {
  int world_size = 1;
  int workers = 1;  ///< Ranks that precondition a layer: those a multiple of world_size / workers
                    ///< from its owner.
  const CurvatureOptions& curvature;
  Device device = {};                    ///< On which the forms of factors depend.
  std::span<const double> seconds = {};  ///< Predicted per layer and step; empty: not known.
  KeptParameters kept = {};
  std::span<const NamedBytes> buffers = {};  ///< Of this rank; empty ones are left out.
};

/// A table: layer, shape, owner and the other workers, groups, widths and forms of A and G, bytes
/// of the statistics, share of the work, predicted milliseconds of a step, and the reason why a
/// layer has no curvature; then what each rank keeps, buffers, and totals.
[[nodiscard]] DKFAC_API std::string describe_assignment(std::span<const std::string> names,
                                                        std::span<const LayerSpec> specs,
                                                        std::span<const int> owners,
                                                        const AssignmentDetails& details);

}  // namespace dkfac::kfac
