#include <algorithm>
#include <span>

#include "dkfac/core/ops.h"

#include "kfac/curvature/curvature.h"

namespace dkfac::kfac {
namespace {

/// held: Held::owner, or Held::copy of workers that do not own the layer: they have an inverse, and
/// no average.
void visit_factor(StateVisitor& visitor, const std::string& name, Held held, Factor& factor) {
  if (factor.average.is_set()) {
    visitor.number(name + "_statistics", Held::owner, factor.statistics);
    visitor.number(name + "_stale", Held::owner, factor.stale);
    visitor.number(name + "_refused", Held::owner, factor.refused);
    visitor.number(name + "_failures", Held::owner, factor.failures);
    visitor.tensor(name + "_average", Held::owner, factor.average);
  }
  visitor.number(name + "_good", held, factor.good);
  visitor.tensor(name + "_inverse", held, factor.inverse);
  visitor.tensor(name + "_shifts", held, factor.shifts);
  visitor.tensor(name + "_held", held, factor.held);
  if (factor.values.is_set()) visitor.tensor(name + "_values", held, factor.values);
}

void visit_curvature(StateVisitor& visitor, const std::string& layer, Held held,
                     LayerCurvature& curvature) {
  visitor.number(layer + ".fisher_statistics", held, curvature.fisher_statistics);
  if (held == Held::owner)
    visitor.number(layer + ".fisher_refused", held, curvature.fisher_refused);
  if (curvature.a.is_set()) visit_factor(visitor, layer + ".a", held, curvature.a);
  if (curvature.g.is_set()) visit_factor(visitor, layer + ".g", held, curvature.g);
  if (curvature.fisher.is_set()) visitor.tensor(layer + ".fisher", held, curvature.fisher);
  if (curvature.scales.is_set()) {
    visitor.number(layer + ".scale_statistics", held, curvature.scale_statistics);
    visitor.number(layer + ".scales_refused", held, curvature.scales_refused);
    visitor.tensor(layer + ".scales", held, curvature.scales);
  }
}

void visit_history(StateVisitor& visitor, const std::string& name, StatisticHistory& history) {
  visitor.number(name + "_known", Held::owner, history.known());
  visitor.tensor(name + "_last", Held::owner, history.last());
  visitor.tensor(name + "_before_last", Held::owner, history.before());
}

/// On a device: of a state of the host whose inverse lies in a form that only the host applies, the
/// average is taken, and the inverse has to be made anew: true. (The host applies every form.)
bool drop_foreign(Context& ctx, Factor& factor) {
  if (!factor.is_set()) return false;
  const auto form = static_cast<std::int32_t>(factor.form);
  const std::span<std::int32_t> held(factor.held.data<std::int32_t>(),
                                     static_cast<std::size_t>(factor.groups));
  if (std::ranges::all_of(held, [form](std::int32_t h) { return h == form; })) return false;
  std::ranges::fill(held, form);
  ops::fill(ctx, factor.shifts, 0);
  factor.good = false;
  factor.stale = factor.statistics > 0;
  return true;
}

}  // namespace

void Curvature::visit_state(StateVisitor& visitor) {
  records_.join();
  finish_inversions(pending_report_);
  std::vector<std::string> names;
  for (const Statistic& s : statistics_) names.push_back(s.name);
  timetable_.visit_state(visitor, names);
  visitor.tensor("ranges", Held::any, ranges_);
  for (Statistic& s : statistics_) {
    visitor.number(s.name + "_has_range", Held::same, s.has_range);
    visitor.real(s.name + "_flops", Held::any, s.flops);
    if (s.history.is_set()) visit_history(visitor, s.name, s.history);
    s.forget_records();
  }
  for (int i = 0; i < layers(); ++i) {
    LayerBlock& block = at(i);
    if (works(i))
      visit_curvature(visitor, block.name, owns(i) ? Held::owner : Held::copy, block.curvature);
    block.scale_records = 0;
    block.has_input = false;
  }
  if (ctx_.device().is_cuda())
    for (Statistic& s : statistics_)
      s.foreign = drop_foreign(ctx_, at(s.layer).factor(s.plan.kind));
  ops::fill(ctx_, underflow_.device(), 0);
  ops::fill(ctx_, nonfinite_, 0);
  note_failed();
}

}  // namespace dkfac::kfac
