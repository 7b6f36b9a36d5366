#include "kfac/curvature/wide_inversions.h"

#include <algorithm>

#include "kfac/inverse/split_inverse.h"

namespace dkfac::kfac {
WideInversions::WideInversions(LayerTable& layers) : layers_(layers) {
  for (const Statistic& s : layers.statistics)
    if (s.ranks > 1) groups_[s.ranks] = nullptr;
  const int rank = layers.comm->rank();
  for (auto& [ranks, group] : groups_) group = layers.comm->split(rank / ranks, rank);
}

std::uint64_t WideInversions::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [ranks, group] : groups_) sum += group->bytes();
  return sum;
}

std::uint64_t WideInversions::run(RefreshWorkers& workers, std::span<RefreshTask> tasks) {
  const std::uint64_t before = bytes();
  Context& ctx = layers_.ctx;
  const int rank = layers_.comm->rank();
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    const Statistic& s = layers_.statistic(id);
    // What all ranks of the group know: in one order, so that groups with common ranks do not wait
    // for each other.
    if (s.ranks == 1 || s.owner / s.ranks != rank / s.ranks || !layers_.schedule.rebuild_due(id))
      continue;
    const FactorPlan& plan = s.plan.factor;
    SplitMatrix m{.dim = plan.dim,
                  .dtype = layers_.options.dtype,
                  .factored = plan.form == FactorForm::cholesky};
    const Factor& factor = layers_.layer(s.layer).factor(s.plan.kind);
    const auto task = std::ranges::find(tasks, &factor, &RefreshTask::factor);
    const bool has_task = task != tasks.end();
    if (has_task) {
      m.average = average_of(factor, 0);
      m.damping = factor.requested_damping;
    }
    Scratch scratch(ctx);
    TensorView out;
    if (s.owner == rank) out = scratch.take({m.dim, m.dim}, m.dtype);
    invert_split(ctx, *groups_.at(s.ranks), s.owner % s.ranks, m, out);
    if (has_task) workers.offer(tasks, static_cast<std::size_t>(task - tasks.begin()), out);
  }
  return bytes() - before;
}

}  // namespace dkfac::kfac
