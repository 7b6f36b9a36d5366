#include <algorithm>
#include <span>

#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"
#include "kfac/curvature/curvature.h"

namespace dkfac::kfac {
namespace {

/// Visits a number of failures in a row. One that is loaded leaves one more try, since its remedy
/// may be among the options of this object.
void visit_failures(StateVisitor& visitor, const std::string& name, int limit, int& count,
                    StateKind kind = StateKind::owned) {
  const int before = count;
  visitor.number(name, kind, count);
  if (count != before) count = std::min(count, limit);
}

/// kind: StateKind::owned, or StateKind::owner_copy on the other workers, which have an inverse and
/// no average.
void visit_factor(StateVisitor& visitor, const std::string& name, StateKind kind, int limit,
                  Factor& factor) {
  if (factor.average.is_set()) {
    visitor.number(name + "_statistics", StateKind::owned, factor.statistics);
    visitor.number(name + "_stale", StateKind::owned, factor.stale);
    visit_failures(visitor, name + "_refused", limit, factor.refused);
    visit_failures(visitor, name + "_failures", limit, factor.failures);
    visitor.tensor(name + "_average", StateKind::owned, factor.average);
  }
  visitor.number(name + "_good", kind, factor.good);
  visitor.tensor(name + "_inverse", kind, factor.inverse);
  visitor.tensor(name + "_shifts", kind, factor.shifts);
  visitor.tensor(name + "_stored_form", kind, factor.stored_form);
  if (factor.values.is_set()) visitor.tensor(name + "_values", kind, factor.values);
}

/// Factor::shifts of an inverse that drop_foreign() has discarded.
constexpr double kDiscarded = -1;

void visit_history(StateVisitor& visitor, const std::string& name, StatisticHistory& history) {
  visitor.number(name + "_known", StateKind::owned, history.known());
  visitor.tensor(name + "_last", StateKind::owned, history.last());
  visitor.tensor(name + "_before_last", StateKind::owned, history.before());
}

}  // namespace

void CurvatureBlock::visit_state(StateVisitor& visitor, StateKind kind, int limit) {
  visitor.number(name + ".fisher_statistics", kind, curvature_.fisher_statistics);
  if (kind == StateKind::owned)
    visit_failures(visitor, name + ".fisher_refused", limit, curvature_.fisher_refused);
  if (curvature_.a.is_set()) visit_factor(visitor, name + ".a", kind, limit, curvature_.a);
  if (curvature_.g.is_set()) visit_factor(visitor, name + ".g", kind, limit, curvature_.g);
  if (curvature_.fisher.is_set()) visitor.tensor(name + ".fisher", kind, curvature_.fisher);
  if (curvature_.scales.is_set()) {
    visitor.number(name + ".scale_statistics", kind, curvature_.scale_statistics);
    visit_failures(visitor, name + ".scales_refused", limit, curvature_.scales_refused, kind);
    visitor.tensor(name + ".scales", kind, curvature_.scales);
  }
}

bool CurvatureBlock::drop_foreign(Context& ctx, StatisticKind kind) {
  Factor& factor = this->factor(kind);
  if (!factor.is_set()) return false;
  const auto form = static_cast<std::int32_t>(factor.form);
  const std::span<std::int32_t> forms(factor.stored_form.data<std::int32_t>(),
                                      static_cast<std::size_t>(factor.groups));
  // Discarded by an earlier call, perhaps before the state was saved, and not rebuilt since.
  if (std::ranges::all_of(forms, [form](std::int32_t h) { return h == form; }))
    return !factor.good && std::ranges::any_of(read_back<double>(ctx, factor.shifts),
                                               [](double shift) { return shift == kDiscarded; });
  std::ranges::fill(forms, form);
  ops::fill(ctx, factor.shifts, kDiscarded);
  factor.good = false;
  factor.stale = factor.statistics > 0;
  return true;
}

void Curvature::visit_state(StateVisitor& visitor) {
  records_.join();
  finish_inversions(pending_report_);
  std::vector<std::string> names;
  for (const Statistic& s : statistics_) names.push_back(s.name);
  schedule_.visit_state(visitor, names);
  visitor.tensor("ranges", StateKind::any_rank, ranges_);
  for (Statistic& s : statistics_) {
    visitor.number(s.name + "_has_range", StateKind::replicated, s.has_range);
    visitor.real(s.name + "_flops", StateKind::any_rank, s.flops);
    if (s.history.is_set()) visit_history(visitor, s.name, s.history);
  }
  for (int i = 0; i < layers(); ++i)
    if (works(i))
      at(i).visit_state(visitor, owns(i) ? StateKind::owned : StateKind::owner_copy,
                        options_.inverse.max_failed_refreshes);
  if (ctx_.device().is_cuda())
    for (Statistic& s : statistics_) s.foreign = at(s.layer).drop_foreign(ctx_, s.plan.kind);
  drop_records();
  note_failed();
}

}  // namespace dkfac::kfac
