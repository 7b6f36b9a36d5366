#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/exact_products.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/diagonal_factor.h"
#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/small_groups.h"

namespace dkfac::kfac {
namespace {

ConstTensorView group_of(const Tensor& x, int group, Shape shape) {
  return x.view().slice(0, group, 1).reshape(shape);
}

/// Preconditions the gradient v[out,d] of one group.
void apply_group(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                 int group, const Columns& v) {
  const Factor &a = layer.a, &g = layer.g;
  if (!a.has_values())
    return apply_factors(ctx, applied_factor(a, group), applied_factor(g, group), v);
  const auto vectors = [group](const Factor& f) {
    return group_of(f.inverse, group, {f.dim, f.dim});
  };
  const auto values = [group](const Factor& f) { return group_of(f.values, group, {f.dim}); };
  const ConstTensorView scales = layer.scale_statistics > 0
                                     ? group_of(layer.scales, group, {g.dim, a.dim})
                                     : ConstTensorView{};
  Scratch scratch(ctx);
  precondition_eigen(ctx, vectors(a), values(a), vectors(g), values(g),
                     eigen_damping(ctx, scratch, options, values(a), values(g)), v.weight, v.bias,
                     scales);
}

/// [gamma | beta] <- (F + shift*I)^-1 [gamma | beta].
void apply_full_norm(Context& ctx, const Factor& g, TensorView gamma, TensorView beta) {
  Scratch scratch(ctx);
  const TensorView both = scratch.take({g.dim}, beta.dtype());
  const std::int64_t scales = gamma.numel();
  if (scales > 0) ops::copy(ctx, gamma.flat(), both.slice(0, 0, scales));
  ops::copy(ctx, beta.flat(), both.slice(0, scales, beta.numel()));
  apply_left(ctx, applied_factor(g, 0), {both.reshape({g.dim, 1}), {}});
  if (scales > 0) ops::copy(ctx, both.slice(0, 0, scales), gamma.flat());
  ops::copy(ctx, both.slice(0, scales, beta.numel()), beta.flat());
}

/// The gradient [dW | db] of a layer with `out` outputs.
Columns columns_of(std::int64_t out, TensorView weight, TensorView bias) {
  return {weight.reshape({out, weight.numel() / out}),
          bias.numel() > 0 ? bias.reshape({out, 1}) : TensorView{}};
}

DType dtype_of(TensorView weight, TensorView bias) {
  return (weight.numel() > 0 ? weight : bias).dtype();
}

/// All views in options.dtype.
void apply(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
           const LayerCurvature& layer, TensorView weight, TensorView bias) {
  const Factor& g = layer.g;
  if (!has_factors(spec)) {
    if (g.is_set()) return apply_full_norm(ctx, g, weight, bias);
    Scratch scratch(ctx);
    const NormGradient norm{layer.fisher, weight, bias,
                            norm_damping(ctx, scratch, options, layer.fisher)};
    return precondition_norms(ctx, options.statistics.norm_fisher, {&norm, 1});
  }
  if (layer.a.is_diagonal()) return apply_diagonal(ctx, options, layer, weight);
  if (layer.a.has_blocks() || g.has_blocks())
    return apply_factors(ctx, applied_factor(layer.a, 0), applied_factor(g, 0),
                         columns_of(g.width(), weight, bias));
  const auto [matrix, column] = columns_of(g.dim * g.groups, weight, bias);
  if (weight.device().is_cuda() && g.groups > 1 && g.is_explicit())
    return cuda::apply_groups(ctx, layer.a.inverse, g.inverse, matrix, column);
  if (has_small_groups(layer.a) && has_small_groups(g))
    return apply_small(layer.a.inverse, g.inverse, matrix, column);
  for (int group = 0; group < g.groups; ++group) {
    const auto rows = [&](TensorView x) { return x.slice(0, group * g.dim, g.dim); };
    apply_group(ctx, options, layer, group,
                {rows(matrix), column.empty() ? TensorView{} : rows(column)});
  }
}

}  // namespace

AppliedFactor applied_factor(const Factor& factor, int group) {
  if (factor.has_blocks())
    return {.form = factor.form, .inverse = factor.inverse, .taps = factor.taps};
  AppliedFactor out{.form = stored_form(factor, group),
                    .inverse = group_of(factor.inverse, group, {factor.factorised(), factor.dim})};
  if (factor.shifts.view().device().is_cuda()) {
    out.device_shift = factor.shifts.view().slice(0, group, 1);
  } else {
    out.shift = factor.shifts.data<double>()[group];
  }
  return out;
}

bool has_inverse(const LayerSpec& spec, const LayerCurvature& layer) {
  if (has_factors(spec)) return layer.a.valid && layer.g.valid;
  return layer.g.is_set() ? layer.g.valid : layer.fisher_statistics > 0;
}

void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias) {
  if (!has_inverse(spec, layer)) return;
  const RoundedProducts rounded(ctx, options.precondition_tf32);
  if (dtype_of(weight, bias) == options.dtype) {
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

std::optional<BatchShape> batch_shape(const LayerSpec& spec, const CurvatureOptions& options,
                                      Device device) {
  if (!device.is_cuda()) return {};
  if (std::holds_alternative<NormSpec>(spec) && options.statistics.norm_fisher != NormFisher::full)
    return BatchShape{};
  if (!has_factors(spec)) return {};
  const FactorPlan a = plan_a(spec, options, device), g = plan_g(spec, options, device);
  if (!a.is_explicit() || !g.is_explicit() || g.groups > 1) return {};
  return BatchShape{g.dim, a.dim, bias_numel(spec) > 0};
}

void apply_curvature(Context& ctx, const CurvatureOptions& options,
                     std::span<const LayerGradient> layers, ProductBatch& batch) {
  Scratch scratch(ctx);
  batch.gradients.clear();
  batch.norms.clear();
  for (const auto& [spec, layer, weight, bias] : layers) {
    if (layers.size() == 1 || dtype_of(weight, bias) != options.dtype)
      apply_curvature(ctx, *spec, options, *layer, weight, bias);
    else if (has_inverse(*spec, *layer) && !has_factors(*spec))
      batch.norms.push_back(
          {layer->fisher, weight, bias, norm_damping(ctx, scratch, options, layer->fisher)});
    else if (has_inverse(*spec, *layer))
      batch.gradients.push_back({applied_factor(layer->a, 0), applied_factor(layer->g, 0),
                                 columns_of(layer->g.dim, weight, bias)});
  }
  if (!batch.norms.empty()) precondition_norms(ctx, options.statistics.norm_fisher, batch.norms);
  if (batch.gradients.empty()) return;
  const RoundedProducts rounded(ctx, options.precondition_tf32);
  apply_inverses(ctx, batch.gradients, &batch);
}

}  // namespace dkfac::kfac
