#include "kfac/distribution/kept_bytes.h"

#include <algorithm>
#include <limits>

#include "core/shared/aligned_rows.h"
#include "core/shared/index.h"

namespace dkfac::kfac {
namespace {

/// count * element, saturating: factors may exceed any memory.
std::int64_t bytes_of(std::int64_t count, std::int64_t element) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 16;
  return count > kMost / element ? kMost : count * element;
}

StatisticKind kind_of_g(const LayerSpec& spec) {
  return std::holds_alternative<NormSpec>(spec) ? StatisticKind::norm : StatisticKind::g;
}

std::int64_t scale_bytes(const LayerSpec& spec, const CurvatureOptions& options, Device device) {
  if (options.inverse.method != InverseMethod::ekfac || !plan_a(spec, options, device).has_values())
    return 0;
  return bytes_of(factor_groups(spec) * g_dim(spec) * a_dim(spec),
                  static_cast<std::int64_t>(size_of(options.dtype)));
}

}  // namespace

CurvatureBytes statistic_bytes(const LayerSpec& spec, const CurvatureOptions& options,
                               StatisticKind kind, Device device) {
  const auto element = static_cast<std::int64_t>(size_of(options.dtype));
  const StatisticPlan plan = plan_statistic(spec, options, kind, device);
  CurvatureBytes bytes{.averages = bytes_of(plan.numel(), element)};
  if (options.refresh.staleness == Staleness::adaptive)
    bytes.earlier = bytes_of(plan.numel(), 2 * element);
  if (!plan.factor.is_set()) return bytes;
  const Shape stored = with_aligned_rows(plan.factor.inverse_shape(), options.dtype, device);
  bytes.inverses = bytes_of(stored.numel(), element);
  if (plan.factor.has_values()) bytes.inverses += plan.factor.groups * plan.factor.dim * element;
  return bytes;
}

CurvatureBytes curvature_bytes(const LayerSpec& spec, const CurvatureOptions& options,
                               Device device) {
  CurvatureBytes bytes;
  for (const StatisticKind kind : {StatisticKind::a, kind_of_g(spec)}) {
    const CurvatureBytes one = statistic_bytes(spec, options, kind, device);
    bytes.averages += one.averages;
    bytes.earlier += one.earlier;
    bytes.inverses += one.inverses;
  }
  bytes.inverses += scale_bytes(spec, options, device);
  return bytes;
}

std::vector<int> column_of(int owner, int workers, int world_size) {
  std::vector<int> ranks;
  const int columns = world_size / workers;
  for (int r = owner % columns; r < world_size; r += columns) ranks.push_back(r);
  return ranks;
}

void add_kept(const LayerSpec& spec, const LayerOwners& owners, const CurvatureOptions& options,
              Device device, int workers, std::span<KeptBytes> ranks) {
  const std::vector<int> column = column_of(owners.layer, workers, static_cast<int>(ranks.size()));
  for (const StatisticKind kind : {StatisticKind::a, kind_of_g(spec)}) {
    const CurvatureBytes bytes = statistic_bytes(spec, options, kind, device);
    const int averages = kind == StatisticKind::a ? owners.a : owners.g;
    ranks[index_of(averages)].averages += static_cast<double>(bytes.averages);
    ranks[index_of(averages)].earlier += static_cast<double>(bytes.earlier);
    const auto inverse = static_cast<double>(bytes.inverses);
    for (const int r : column) ranks[index_of(r)].inverses += inverse;
    if (std::ranges::find(column, averages) == column.end())
      ranks[index_of(averages)].inverses += inverse;
  }
  const auto scales = static_cast<double>(scale_bytes(spec, options, device));
  for (const int r : column) ranks[index_of(r)].inverses += scales;
}

}  // namespace dkfac::kfac
