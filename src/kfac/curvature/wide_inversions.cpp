#include "kfac/curvature/wide_inversions.h"

#include <algorithm>

#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"
#include "kfac/inverse/split_inverse.h"

namespace dkfac::kfac {
namespace {

/// The damping with which the factor can be inverted; 0 where its own rank has to decide.
double usable_damping(Context& ctx, const Factor& factor) {
  const double requested = *factor.requested_damping.data<double>();
  const double shift = round_to(factor.inverse.dtype(), requested);
  const bool usable = requested > 0 && leaves_room(factor.inverse.dtype(), shift);
  return usable && is_finite(ctx, average_of(factor, 0)) ? shift : 0;
}

/// Stores the inverse if it passes the check of any other.
void accept(Context& ctx, const SplitMatrix& m, ConstTensorView inverse, RefreshTask& task) {
  if (!inverts(ctx, {m.average, m.shift, m.factored}, inverse)) return;
  Factor& factor = *task.factor;
  factor.form->commit(ctx, inverse, group_of(factor, 0).inverse);
  factor.failed_group = -1;
  *factor.shifts.data<double>() = m.shift;
  *factor.stored_form.data<std::int32_t>() = factor.form->index;
  task.stage = InverseStage::damped;
  task.written = true;
}

}  // namespace

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

std::uint64_t WideInversions::run(std::span<RefreshTask> tasks) {
  const std::uint64_t before = bytes();
  const int rank = layers_.comm->rank();
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    const Statistic& s = layers_.statistic(id);
    // What all ranks of the group know: in one order, so that groups with common ranks do not wait
    // for each other.
    if (s.ranks == 1 || s.owner / s.ranks != rank / s.ranks || !layers_.schedule.rebuild_due(id))
      continue;
    const auto task = std::ranges::find_if(tasks, [&](const RefreshTask& t) {
      return t.factor == &layers_.layer(s.layer).factor(s.plan.kind);
    });
    invert(s, task == tasks.end() ? nullptr : &*task);
  }
  return bytes() - before;
}

void WideInversions::invert(const Statistic& s, RefreshTask* task) {
  Context& ctx = layers_.ctx;
  comm::Communicator& group = *groups_.at(s.ranks);
  const FactorPlan& plan = s.plan.factor;
  const int root = s.owner % s.ranks;
  SplitMatrix m{.dim = plan.dim,
                .dtype = layers_.options.dtype,
                .factored = plan.form == FactorForm::cholesky};
  Scratch scratch(ctx);
  TensorView out;
  if (task != nullptr) {
    m.average = average_of(*task->factor, 0);
    m.shift = usable_damping(ctx, *task->factor);
    out = scratch.take({m.dim, m.dim}, m.dtype);
  }
  group.broadcast(view_of(&m.shift, {1}), root, ctx.stream(), "damping of a factor");
  if (m.shift == 0 || !invert_split(ctx, group, root, m, out) || task == nullptr) return;
  accept(ctx, m, out, *task);
}

}  // namespace dkfac::kfac
