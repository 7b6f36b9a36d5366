#include "kfac/curvature/block.h"

#include <utility>

#include "kfac/curvature/kronecker_block.h"
#include "kfac/curvature/norm_block.h"
#include "kfac/inverse/failed_factor.h"

namespace dkfac::kfac {

CurvatureBlock::CurvatureBlock(std::string layer_name, LayerSpec layer_spec)
    : name(std::move(layer_name)), spec(std::move(layer_spec)) {}

void CurvatureBlock::allocate(Context& ctx, const CurvatureOptions& options, bool owns) {
  curvature_ = make_layer_curvature(ctx, spec, options);
  if (owns) return;
  curvature_.a.average = Tensor{};
  curvature_.g.average = Tensor{};
}

const NormSpec& CurvatureBlock::normalization(const Caller& caller) const {
  throw InvalidArgument(detail::concat(caller, describe(spec),
                                       " is recorded by record_input() and record_grad_output()"));
}

bool CurvatureBlock::merge_scales(Context& ctx, const CurvatureOptions& options,
                                  ConstTensorView sum, double finite) {
  return kfac::merge_scales(ctx, options, sum, curvature_, finite);
}

void CurvatureBlock::damping_changed() {
  for (Factor* factor : {&curvature_.a, &curvature_.g})
    if (factor->form != FactorForm::eigen) factor->stale = factor->statistics > 0;
}

void CurvatureBlock::forget_failures() {
  for (Factor* factor : {&curvature_.a, &curvature_.g}) factor->failures = 0;
  saved_a_.clear();
  saved_g_.clear();
}

void CurvatureBlock::add_tasks(Context& ctx, const CurvatureOptions& options, RefreshParts parts,
                               std::vector<RefreshTask>& tasks) {
  add_refresh_tasks(ctx, options, curvature_, parts, tasks);
}

void CurvatureBlock::save_failed(Context& ctx, const CurvatureOptions& options,
                                 StatisticKind kind) {
  const bool is_a = kind == StatisticKind::a;
  std::string& file = is_a ? saved_a_ : saved_g_;
  if (file.empty()) file = save_failed_factor(ctx, options, name, is_a ? "a" : "g", factor(kind));
}

std::unique_ptr<CurvatureBlock> make_block(std::string name, LayerSpec spec) {
  if (has_factors(spec)) return std::make_unique<KroneckerBlock>(std::move(name), std::move(spec));
  if (const auto* norm = std::get_if<NormSpec>(&spec))
    return std::make_unique<NormBlock>(std::move(name), *norm);
  return std::make_unique<CurvatureBlock>(std::move(name), std::move(spec));
}

}  // namespace dkfac::kfac
