#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

/// What the curvature of a network costs each rank, for predictions: pure functions of shapes and
/// options. options: with_block_width().
namespace dkfac::kfac {

/// A Kronecker factor of a layer, or the Fisher of a normalisation.
struct FactorWork {
  std::int64_t width = 0;      ///< That decides the rate of its products; 0: there is none.
  std::int64_t statistic = 0;  ///< Elements of the statistic as it is summed over ranks.
  double build = 0;            ///< Floating-point operations of the statistic.
  double invert = 0;           ///< Of a rebuild of the inverse.
  double apply = 0;            ///< Of the product with a gradient.
  std::int64_t sent = 0;       ///< Elements of the inverse as it travels; 0: there is none.
};
struct CurvatureWork {
  FactorWork a, g;  ///< A normalisation has `g` alone.
};
/// Work of a layer whose `samples` samples on this rank have `positions` positions each.
[[nodiscard]] CurvatureWork curvature_work(const LayerSpec& spec, const CurvatureOptions& options,
                                           double samples, std::int64_t positions, Device device);

/// Ranks of each layer by counted work, as DistributionOptions say.
[[nodiscard]] std::vector<LayerOwners> counted_owners(std::span<const LayerSpec> specs,
                                                      const CurvatureOptions& options, int ranks,
                                                      Device device);
/// Calls f(rank) for the `together` ranks that invert a factor together, its owner among them.
template <class F>
void for_group(int owner, int together, F&& f) {
  const int first = owner - owner % together;
  for (int r = first; r < first + together; ++r) f(r);
}
/// Where split_wide is on, several ranks invert none of the factors, and there are several: what
/// that takes; otherwise empty.
[[nodiscard]] std::string idle_split(std::span<const LayerOwners> owners,
                                     const CurvatureOptions& options, int ranks);
/// What is left to each of the ranks that invert a factor together (docs/distribution.md, "A factor
/// on several ranks").
struct SharedInversion {
  double part = 1;          ///< Of FactorWork::invert, of the rank that is waited for.
  double columns = 0;       ///< Elements that are broadcast, one block of columns after the other.
  std::int64_t blocks = 0;  ///< Of columns.
  double root = 0;  ///< Elements that the rank which averages the factor sends, or receives.
};
struct SharedInversions {
  SharedInversion a, g;
};
/// Of each layer, for its owners.
[[nodiscard]] std::vector<SharedInversions> shared_inversions(std::span<const LayerSpec> specs,
                                                              std::span<const LayerOwners> owners,
                                                              const CurvatureOptions& options,
                                                              Device device);
/// Bytes of curvature that each rank needs at least, as prepare() compares them with what there is.
[[nodiscard]] std::vector<double> curvature_need(std::span<const std::string> names,
                                                 std::span<const LayerSpec> specs,
                                                 std::span<const LayerOwners> owners,
                                                 const CurvatureOptions& options, int ranks,
                                                 Device device);
/// Offsets of rebuilds within inverse_interval, as stagger_inverses spreads those of each owner.
[[nodiscard]] std::vector<int> staggered(std::span<const LayerOwners> owners,
                                         std::span<const CurvatureWork> work, int interval);

}  // namespace dkfac::kfac
