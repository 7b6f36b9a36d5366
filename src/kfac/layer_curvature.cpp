#include "kfac/layer_curvature.h"

#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/inverse.h"

namespace dkfac::kfac {
namespace {

Factor make_factor(Context& ctx, const FactorPlan& plan, const CurvatureOptions& options) {
  Factor factor;
  static_cast<FactorPlan&>(factor) = plan;
  if (!plan.is_set()) return factor;
  factor.average = Tensor::zeros(ctx, {plan.statistic_numel()}, options.dtype);
  factor.inverse = Tensor::zeros(ctx, plan.inverse_shape(), options.dtype);
  if (plan.form == FactorForm::eigen)
    factor.values = Tensor::zeros(ctx, {plan.groups, plan.dim}, options.dtype);
  for (Tensor* per_group : {&factor.shifts, &factor.asked})
    *per_group = Tensor::zeros(ctx, {plan.groups}, DType::f64);
  Context host;
  factor.held = Tensor::zeros(host, {plan.groups}, DType::i32);
  if (ctx.device().is_cuda()) ops::fill(host, factor.held, static_cast<double>(plan.form));
  return factor;
}

void average_in(Context& ctx, double weight, ConstTensorView statistic, TensorView average) {
  ops::axpby(ctx, weight, statistic, 1 - weight, average);
}

bool all_finite(Context& ctx, ConstTensorView x) {
  float count = 0;
  ops::count_nonfinite(ctx, x, view_of(&count, {1}));
  return count == 0;
}

/// Whether an average of this statistic stays finite: no element of a positive semidefinite matrix
/// exceeds its largest diagonal one.
bool may_merge(Context& ctx, ConstTensorView statistic, const Factor& factor) {
  double sum = 0;
  if (factor.form == FactorForm::low_rank) {
    ops::dot(ctx, statistic, statistic, view_of(&sum, {1}));
    return std::isfinite(sum);
  }
  const std::int64_t size = ops::packed_size(factor.dim);
  for (int group = 0; group < factor.groups; ++group) {
    ops::packed_trace(ctx, statistic.slice(0, group * size, size), factor.dim, view_of(&sum, {1}));
    if (!std::isfinite(sum)) return false;
  }
  return true;
}

}  // namespace

LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                    const CurvatureOptions& options) {
  LayerCurvature layer;
  layer.a = make_factor(ctx, plan_a(spec, options), options);
  layer.g = make_factor(ctx, plan_g(spec, options), options);
  const auto* bn = std::get_if<BatchNormSpec>(&spec);
  if (bn != nullptr && !layer.g.is_set())
    layer.fisher =
        Tensor::zeros(ctx, {batch_norm_rows(*bn, options.batch_norm), bn->channels}, options.dtype);
  if (options.inverse == InverseMethod::ekfac && has_factors(spec))
    layer.scales = Tensor::zeros(ctx, {layer.g.groups, layer.g.dim, layer.a.dim}, options.dtype);
  return layer;
}

bool merge_factor(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  Factor& factor) {
  if (!may_merge(ctx, statistic, factor)) {
    ++factor.refused;
    return false;
  }
  factor.refused = 0;
  average_in(ctx, average_weight(options.new_weight, ++factor.statistics), statistic,
             factor.average);
  factor.stale = true;
  return true;
}

bool merge_scales(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer) {
  if (!all_finite(ctx, statistic)) {
    ++layer.scales_refused;
    return false;
  }
  layer.scales_refused = 0;
  const double weight = average_weight(options.new_weight, ++layer.scale_statistics);
  average_in(ctx, weight, statistic, layer.scales.view().flat());
  return true;
}

bool merge_fisher(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer) {
  if (!all_finite(ctx, statistic)) {
    ++layer.fisher_refused;
    return false;
  }
  layer.fisher_refused = 0;
  const double weight = average_weight(options.new_weight, ++layer.fisher_statistics);
  average_in(ctx, weight, statistic, layer.fisher.view().flat());
  return true;
}

}  // namespace dkfac::kfac
