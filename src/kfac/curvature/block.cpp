#include "kfac/curvature/block.h"

#include <algorithm>
#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"
#include "kfac/curvature/kronecker_block.h"
#include "kfac/curvature/norm_block.h"
#include "kfac/curvature/record_parts.h"
#include "kfac/inverse/failed_factor.h"

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
  visitor.number(name + "_good", kind, factor.valid);
  visitor.tensor(name + "_inverse", kind, factor.inverse);
  visitor.tensor(name + "_shifts", kind, factor.shifts);
  visitor.tensor(name + "_stored_form", kind, factor.stored_form);
  if (factor.values.is_set()) visitor.tensor(name + "_values", kind, factor.values);
}

/// Factor::shifts of an inverse that drop_foreign() has discarded.
constexpr double kDiscarded = -1;

}  // namespace

CurvatureBlock::CurvatureBlock(std::string layer_name, LayerSpec layer_spec)
    : name(std::move(layer_name)), spec(std::move(layer_spec)) {}

void CurvatureBlock::allocate(Context& ctx, const CurvatureOptions& options, LayerShare share) {
  curvature_ = make_layer_curvature(ctx, spec, options);
  const bool apart = curvature_.a.is_set() && owners.a != owners.g;
  for (auto [factor, averages] :
       {std::pair{&curvature_.a, share.a}, std::pair{&curvature_.g, share.g}}) {
    if (apart)
      factor->traces = Tensor::zeros(ctx, {damped_groups(curvature_.a, curvature_.g)}, DType::f64);
    if (averages) continue;
    factor->average = Tensor{};
    if (share.works) continue;
    factor->inverse = Tensor{};
    factor->values = Tensor{};
  }
}

void CurvatureBlock::record(const Recording&, const LayerRecord& record) {
  DKFAC_CHECK(record.kind != StatisticKind::norm, Caller(record.call, name), describe(spec),
              " is recorded by record_input() and record_grad_output()");
}

void CurvatureBlock::damping_changed() {
  for (Factor* factor : {&curvature_.a, &curvature_.g})
    if (!factor->has_values()) factor->stale = factor->statistics > 0;
}

void CurvatureBlock::forget_failures() {
  for (Factor* factor : {&curvature_.a, &curvature_.g}) factor->failures = 0;
  saved_a_.clear();
  saved_g_.clear();
}

void CurvatureBlock::save_failed(Context& ctx, const CurvatureOptions& options,
                                 StatisticKind kind) {
  const bool is_a = kind == StatisticKind::a;
  std::string& file = is_a ? saved_a_ : saved_g_;
  if (file.empty()) file = save_failed_factor(ctx, options, name, is_a ? "a" : "g", factor(kind));
}

void CurvatureBlock::visit_state(StateVisitor& visitor, LayerShare share, int limit) {
  const auto kind_of = [](bool own) { return own ? StateKind::owned : StateKind::owner_copy; };
  const StateKind kind = kind_of(share.owns);
  if (share.works) visitor.number(name + ".fisher_statistics", kind, curvature_.fisher_statistics);
  if (share.owns)
    visit_failures(visitor, name + ".fisher_refused", limit, curvature_.fisher_refused);
  if (curvature_.a.inverse.is_set())
    visit_factor(visitor, name + ".a", kind_of(share.a), limit, curvature_.a);
  if (curvature_.g.inverse.is_set())
    visit_factor(visitor, name + ".g", kind_of(share.g), limit, curvature_.g);
  if (!share.works) return;
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
  const std::int32_t form = factor.form->index;
  const std::span<std::int32_t> forms(factor.stored_form.data<std::int32_t>(),
                                      static_cast<std::size_t>(factor.groups));
  // Discarded by an earlier call, perhaps before the state was saved, and not rebuilt since.
  if (std::ranges::all_of(forms, [form](std::int32_t h) { return h == form; }))
    return !factor.valid && std::ranges::any_of(read_back<double>(ctx, factor.shifts),
                                                [](double shift) { return shift == kDiscarded; });
  std::ranges::fill(forms, form);
  ops::fill(ctx, factor.shifts, kDiscarded);
  factor.valid = false;
  factor.stale = factor.statistics > 0;
  return true;
}

std::unique_ptr<CurvatureBlock> make_block(std::string name, LayerSpec spec) {
  if (has_factors(spec)) return std::make_unique<KroneckerBlock>(std::move(name), std::move(spec));
  if (const auto* norm = std::get_if<NormSpec>(&spec))
    return std::make_unique<NormBlock>(std::move(name), *norm);
  return std::make_unique<CurvatureBlock>(std::move(name), std::move(spec));
}

}  // namespace dkfac::kfac
