#include "kfac/inverse/layer_curvature.h"

#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/read_back.h"
#include "kfac/inverse/average_start.h"

namespace dkfac::kfac {
namespace {

Factor make_factor(Context& ctx, const FactorPlan& plan, const CurvatureOptions& options) {
  Factor factor;
  static_cast<FactorPlan&>(factor) = plan;
  if (!plan.is_set()) return factor;
  factor.average = Tensor::zeros(ctx, {plan.statistic_numel()}, options.dtype);
  factor.inverse = Tensor::empty_aligned(ctx, plan.inverse_shape(), options.dtype);
  ops::fill(ctx, factor.inverse, 0);
  if (plan.has_values()) factor.values = Tensor::zeros(ctx, {plan.groups, plan.dim}, options.dtype);
  for (Tensor* per_group : {&factor.shifts, &factor.requested_damping})
    *per_group = Tensor::zeros(ctx, {plan.groups}, DType::f64);
  Context host;
  factor.stored_form = Tensor::zeros(host, {plan.groups}, DType::i32);
  if (ctx.device().is_cuda()) ops::fill(host, factor.stored_form, plan.form->index);
  return factor;
}

/// An average and its counters.
struct Average {
  TensorView values;
  std::int64_t& statistics;
  int& refused;
};

/// begin(): writes the start of the average, unless it is the first statistic or has no weight.
template <class Begin>
bool merge(Context& ctx, const CurvatureOptions& options, const FactorPlan& plan,
           ConstTensorView statistic, Average average, std::optional<double> finite_check,
           Begin&& begin) {
  if (!finite_check) {
    Scratch scratch(ctx);
    const TensorView check = scratch.take({1}, DType::f64);
    check_finite(ctx, plan, statistic, check);
    finite_check = read_back<double>(ctx, check)[0];
  }
  if (!std::isfinite(*finite_check)) {
    ++average.refused;
    return false;
  }
  average.refused = 0;
  double weight = options.statistics.new_weight;
  if (*finite_check == 0 && weight < 1) return true;  // No sample has used the layer.
  ++average.statistics;
  if (options.statistics.average_start == AverageStart::first)
    weight = average_weight(weight, average.statistics);
  else if (weight < 1)
    begin();
  ops::axpby(ctx, weight, statistic.flat(), 1 - weight, average.values.flat());
  return true;
}

}  // namespace

LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                    const CurvatureOptions& options) {
  LayerCurvature layer;
  layer.a = make_factor(ctx, plan_a(spec, options, ctx.device()), options);
  layer.g = make_factor(ctx, plan_g(spec, options, ctx.device()), options);
  const auto* bn = std::get_if<NormSpec>(&spec);
  if (bn != nullptr && !layer.g.is_set())
    layer.fisher = Tensor::zeros(
        ctx, {norm_rows(*bn, options.statistics.norm_fisher), bn->channels}, options.dtype);
  if (options.inverse.method == InverseMethod::ekfac && layer.a.has_values())
    layer.scales = Tensor::zeros(ctx, {layer.g.groups, layer.g.dim, layer.a.dim}, options.dtype);
  return layer;
}

ConstTensorView average_of(const Factor& factor, int group) {
  const Shape shape = factor.average_shape();
  const std::int64_t size = shape.numel();
  return factor.average.view().slice(0, group * size, size).reshape(shape);
}

void check_finite(Context& ctx, const FactorPlan& plan, ConstTensorView statistic,
                  TensorView finite_check) {
  if (!plan.is_set()) return ops::max_abs(ctx, statistic, finite_check);
  plan.form->trace(ctx, plan, statistic, finite_check);
}

bool merge_factor(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  Factor& factor, std::optional<double> finite_check, std::int64_t part) {
  const auto begin = [&] {
    begin_average(ctx, options.statistics.average_start, factor.statistics,
                  {.triangle = factor.triangle(), .length = part > 0 ? part : factor.width()},
                  statistic, factor.average);
  };
  const Average average{factor.average, factor.statistics, factor.refused};
  if (!merge(ctx, options, factor, statistic, average, finite_check, begin)) return false;
  factor.stale = true;
  return true;
}

bool merge_scales(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer, std::optional<double> finite_check) {
  const auto begin = [&] {
    if (layer.scale_statistics == 1) begin_scales(ctx, layer);
  };
  return merge(ctx, options, {}, statistic,
               {layer.scales, layer.scale_statistics, layer.scales_refused}, finite_check, begin);
}

bool merge_fisher(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer, std::optional<double> finite_check) {
  const auto begin = [&] {
    const Shape& shape = layer.fisher.shape();
    begin_average(ctx, options.statistics.average_start, layer.fisher_statistics,
                  {.length = shape[1], .cross = shape[0] == 3}, statistic, layer.fisher);
  };
  return merge(ctx, options, {}, statistic,
               {layer.fisher, layer.fisher_statistics, layer.fisher_refused}, finite_check, begin);
}

}  // namespace dkfac::kfac
