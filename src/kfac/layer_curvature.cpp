#include "kfac/layer_curvature.h"

#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/apply_factor.h"
#include "kfac/small_groups.h"

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
  factor.held = Tensor::zeros(ctx, {plan.groups}, DType::i32);
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

ConstTensorView group_of(const Tensor& x, int group, Shape shape) {
  return x.view().slice(0, group, 1).reshape(shape);
}

AppliedFactor applied(const Factor& factor, int group) {
  return {static_cast<FactorForm>(factor.held.data<std::int32_t>()[group]),
          group_of(factor.inverse, group, {factor.inverse.shape()[1], factor.dim}),
          factor.shifts.data<double>()[group]};
}

/// One group: v[out,d].
void apply_group(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                 int group, const Columns& v) {
  const Factor &a = layer.a, &g = layer.g;
  if (a.form != FactorForm::eigen)
    return apply_factors(ctx, applied(a, group), applied(g, group), v);
  const auto vectors = [group](const Factor& f) {
    return group_of(f.inverse, group, {f.dim, f.dim});
  };
  const auto values = [group](const Factor& f) { return group_of(f.values, group, {f.dim}); };
  const ConstTensorView scales = layer.scale_statistics > 0
                                     ? group_of(layer.scales, group, {g.dim, a.dim})
                                     : ConstTensorView{};
  precondition_eigen(ctx, vectors(a), values(a), vectors(g), values(g), options.damping, v.weight,
                     v.bias, scales);
}

/// [gamma | beta] <- (F + shift*I)^-1 [gamma | beta].
void apply_batch_norm(Context& ctx, const Factor& g, TensorView gamma, TensorView beta) {
  Scratch scratch(ctx);
  const TensorView both = scratch.take({g.dim}, beta.dtype());
  const std::int64_t scales = gamma.numel();
  if (scales > 0) ops::copy(ctx, gamma.flat(), both.slice(0, 0, scales));
  ops::copy(ctx, beta.flat(), both.slice(0, scales, beta.numel()));
  apply_left(ctx, applied(g, 0), {both.reshape({g.dim, 1}), {}});
  if (scales > 0) ops::copy(ctx, both.slice(0, 0, scales), gamma.flat());
  ops::copy(ctx, both.slice(0, scales, beta.numel()), beta.flat());
}

/// All views in options.dtype.
void apply(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
           const LayerCurvature& layer, TensorView weight, TensorView bias) {
  const Factor& g = layer.g;
  if (!has_factors(spec)) {
    if (g.is_set()) return apply_batch_norm(ctx, g, weight, bias);
    return precondition_batch_norm(ctx, options.batch_norm, layer.fisher,
                                   options.bn_damping * options.damping, weight, bias);
  }
  const std::int64_t out = g.dim * g.groups;
  const TensorView matrix = weight.reshape({out, weight.numel() / out});
  const TensorView column = bias.numel() > 0 ? bias.reshape({out, 1}) : TensorView{};
  if (has_small_groups(layer.a) && has_small_groups(g))
    return apply_small(layer.a.inverse, g.inverse, matrix, column);
  for (int group = 0; group < g.groups; ++group) {
    const auto rows = [&](TensorView x) { return x.slice(0, group * g.dim, g.dim); };
    apply_group(ctx, options, layer, group,
                {rows(matrix), column.empty() ? TensorView{} : rows(column)});
  }
}

bool is_known(const LayerSpec& spec, const LayerCurvature& layer) {
  if (has_factors(spec)) return layer.a.good && layer.g.good;
  return layer.g.is_set() ? layer.g.good : layer.fisher_statistics > 0;
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

void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias) {
  if (!is_known(spec, layer)) return;
  if ((weight.numel() > 0 ? weight : bias).dtype() == options.dtype) {
    apply(ctx, spec, options, layer, weight, bias);
    return;
  }
  Scratch scratch(ctx);
  const auto convert = [&](ConstTensorView x) {
    if (x.numel() == 0) return TensorView{};
    const TensorView converted = scratch.take({x.numel()}, options.dtype);
    ops::cast(ctx, x, converted);
    return converted;
  };
  const TensorView w = convert(weight), b = convert(bias);
  apply(ctx, spec, options, layer, w, b);
  if (!w.empty()) ops::cast(ctx, w, weight);
  if (!b.empty()) ops::cast(ctx, b, bias);
}

}  // namespace dkfac::kfac
