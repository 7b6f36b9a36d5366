#include "kfac/layer_curvature.h"

#include <algorithm>
#include <utility>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/backend_statistics.h"

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

struct MergeCounts {
  std::int64_t& statistics;
  int& refused;
  DeviceMerges& device;
};

bool merge(Context& ctx, const CurvatureOptions& options, MergeRule rule, ConstTensorView statistic,
           TensorView average, MergeCounts counts) {
  rule.weight = average_weight(options.new_weight, counts.statistics + 1);
  if (ctx.device().is_cuda()) {
    ++counts.statistics;
    ++counts.device.unsettled;
    return cuda::merge_average(ctx, rule, statistic.flat(), average.flat(), counts.device.refused);
  }
  const bool merged = cpu::merge_average(ctx, rule, statistic, average.flat(), {});
  counts.refused = merged ? 0 : counts.refused + 1;
  counts.statistics += merged ? 1 : 0;
  return merged;
}

/// Returns the number refused. A refresh may have started the statistics anew.
int settle(std::int32_t refused, MergeCounts counts) {
  const int merges = std::exchange(counts.device.unsettled, 0);
  if (merges == 0) return 0;
  counts.statistics = std::max<std::int64_t>(0, counts.statistics - refused);
  counts.refused = refused < merges ? 0 : counts.refused + refused;
  return refused;
}

MergeCounts counts_of(Factor& factor) { return {factor.statistics, factor.refused, factor.merges}; }
MergeCounts fisher_counts(LayerCurvature& layer) {
  return {layer.fisher_statistics, layer.fisher_refused, layer.fisher_merges};
}
MergeCounts scale_counts(LayerCurvature& layer) {
  return {layer.scale_statistics, layer.scales_refused, layer.scale_merges};
}

}  // namespace

LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                    const CurvatureOptions& options) {
  LayerCurvature layer;
  layer.a = make_factor(ctx, plan_a(spec, options, ctx.device()), options);
  layer.g = make_factor(ctx, plan_g(spec, options, ctx.device()), options);
  const auto* bn = std::get_if<BatchNormSpec>(&spec);
  if (bn != nullptr && !layer.g.is_set())
    layer.fisher =
        Tensor::zeros(ctx, {batch_norm_rows(*bn, options.batch_norm), bn->channels}, options.dtype);
  if (options.inverse == InverseMethod::ekfac && has_factors(spec))
    layer.scales = Tensor::zeros(ctx, {layer.g.groups, layer.g.dim, layer.a.dim}, options.dtype);
  if (ctx.device().is_cuda()) {
    layer.merge_status = Tensor::zeros(ctx, {kMergeStatuses}, DType::i32);
    place_merge_status(layer, layer.merge_status);
  }
  return layer;
}

bool merge_factor(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  Factor& factor) {
  MergeRule rule{.test = FiniteTest::traces, .groups = factor.groups, .dim = factor.dim};
  if (factor.form == FactorForm::low_rank) rule.test = FiniteTest::squares;
  if (!merge(ctx, options, rule, statistic, factor.average, counts_of(factor))) return false;
  factor.stale = true;
  return true;
}

bool merge_scales(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer) {
  return merge(ctx, options, {}, statistic, layer.scales, scale_counts(layer));
}

bool merge_fisher(Context& ctx, const CurvatureOptions& options, ConstTensorView statistic,
                  LayerCurvature& layer) {
  return merge(ctx, options, {}, statistic, layer.fisher, fisher_counts(layer));
}

void place_merge_status(LayerCurvature& layer, TensorView refused) {
  layer.a.merges.refused = refused.slice(0, 0, 1);
  layer.g.merges.refused = refused.slice(0, 1, 1);
  layer.fisher_merges.refused = refused.slice(0, 2, 1);
  layer.scale_merges.refused = refused.slice(0, 3, 1);
}

int settle_merges(LayerCurvature& layer, std::span<const std::int32_t> refused) {
  return settle(refused[0], counts_of(layer.a)) + settle(refused[1], counts_of(layer.g)) +
         settle(refused[2], fisher_counts(layer)) + settle(refused[3], scale_counts(layer));
}

}  // namespace dkfac::kfac
