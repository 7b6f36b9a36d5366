#include "kfac/layer_curvature.h"

#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/inverse.h"

namespace dkfac::kfac {
namespace {

Factor make_factor(Context& ctx, std::int64_t dim, const CurvatureOptions& options) {
  Factor factor;
  factor.dim = dim;
  factor.average = Tensor::zeros(ctx, {ops::packed_size(dim)}, options.dtype);
  factor.inverse = Tensor::zeros(ctx, {dim, dim}, options.dtype);
  if (options.inverse == InverseMethod::eigen)
    factor.values = Tensor::zeros(ctx, {dim}, options.dtype);
  return factor;
}

double trace_of(Context& ctx, ConstTensorView packed, std::int64_t dim) {
  double trace = 0;
  ops::packed_trace(ctx, packed, dim, view_of(&trace, {1}));
  return trace;
}

void average_in(Context& ctx, double weight, ConstTensorView statistic, TensorView average) {
  ops::axpby(ctx, weight, statistic, 1 - weight, average);
}

bool all_finite(Context& ctx, ConstTensorView x) {
  float count = 0;
  ops::count_nonfinite(ctx, x, view_of(&count, {1}));
  return count == 0;
}

/// All views in options.dtype.
void apply(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
           const LayerCurvature& layer, TensorView weight, TensorView bias) {
  if (!has_factors(spec)) {
    precondition_batch_norm(ctx, options.batch_norm, layer.fisher,
                            options.bn_damping * options.damping, weight, bias);
    return;
  }
  const TensorView matrix = weight.reshape({layer.g.dim, weight.numel() / layer.g.dim});
  if (options.inverse == InverseMethod::eigen)
    precondition_eigen(ctx, layer.a.inverse, layer.a.values, layer.g.inverse, layer.g.values,
                       options.damping, matrix, bias);
  else
    precondition(ctx, layer.a.inverse, layer.g.inverse, matrix, bias);
}

}  // namespace

LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                    const CurvatureOptions& options) {
  LayerCurvature layer;
  if (has_factors(spec)) {
    layer.a = make_factor(ctx, a_dim(spec), options);
    layer.g = make_factor(ctx, g_dim(spec), options);
  } else if (const auto* bn = std::get_if<BatchNormSpec>(&spec)) {
    layer.fisher =
        Tensor::zeros(ctx, {batch_norm_rows(*bn, options.batch_norm), bn->channels}, options.dtype);
  }
  return layer;
}

bool merge_factors(Context& ctx, const CurvatureOptions& options, ConstTensorView a_statistic,
                   ConstTensorView g_statistic, LayerCurvature& layer) {
  // No element of a positive semidefinite matrix exceeds its largest diagonal one.
  if (!std::isfinite(trace_of(ctx, a_statistic, layer.a.dim)) ||
      !std::isfinite(trace_of(ctx, g_statistic, layer.g.dim)))
    return false;
  const double weight = average_weight(options.new_weight, ++layer.statistics);
  average_in(ctx, weight, a_statistic, layer.a.average);
  average_in(ctx, weight, g_statistic, layer.g.average);
  layer.stale = true;
  return true;
}

bool merge_fisher(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer) {
  if (!all_finite(ctx, statistic)) return false;
  const double weight = average_weight(options.new_weight, ++layer.statistics);
  average_in(ctx, weight, statistic, layer.fisher.view().flat());
  return true;
}

void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias) {
  const bool known = has_factors(spec)
                         ? layer.a.good && layer.g.good
                         : std::holds_alternative<BatchNormSpec>(spec) && layer.statistics > 0;
  if (!known) return;
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
