#include "kfac/curvature/norm_block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "kfac/curvature/record_parts.h"
#include "kfac/statistics/norm_data.h"

namespace dkfac::kfac {
namespace {

NormSamples checked_samples(const Caller& caller, const NormSpec& norm, const LayerRecord& record,
                            Device device, std::int64_t& groups) {
  const ConstTensorView x = record.data;
  if (record.of_samples) return check_norm_samples(caller, norm, x, device);
  groups = check_norm(caller, norm, x, record.mean, record.inv_std, record.grad_output, device);
  return {.data = x,
          .positions = positions_of(x.numel() / norm.channels, x.dim(0)),
          .per_group = groups > 1 ? std::max<std::int64_t>(1, x.dim(0) / groups) : 1};
}

/// The first samples of a record, `part` of its input.
NormRecord chosen_record(const NormSpec& norm, const LayerRecord& record, std::int64_t groups,
                         ConstTensorView part, double batch, double sample_scale) {
  const std::int64_t n = part.dim(0), all = record.data.dim(0);
  // One group has one mean; with NormOver::channels each row has.
  const bool is_shared = groups == 1 && norm.over != NormOver::channels;
  const auto first = [&](ConstTensorView view) {
    return n == all || is_shared ? view : view.slice(0, 0, view.dim(0) * n / all);
  };
  return {.x = part,
          .mean = first(record.mean),
          .inv_std = first(record.inv_std),
          .grad_output = n < all ? record.grad_output.slice(0, 0, n) : record.grad_output,
          .global_batch = batch,
          .sample_scale = sample_scale};
}

}  // namespace

NormBlock::NormBlock(std::string layer_name, const NormSpec& norm)
    : CurvatureBlock(std::move(layer_name), norm), norm_(norm) {}

std::span<const StatisticTraits> NormBlock::statistics() const {
  static constexpr StatisticTraits kStatistics[] = {
      {StatisticKind::norm, ".fisher", "record_normalization", "the Fisher of the normalisation"}};
  return kStatistics;
}

void NormBlock::record(const Recording& on, const LayerRecord& record) {
  const Caller caller(record.call, name);
  DKFAC_CHECK(record.kind == StatisticKind::norm, caller,
              "a normalisation is recorded by record_normalization()");
  LayerTable& layers = on.layers;
  if (!layers.recorded_here(g)) return;
  const CurvatureOptions& options = layers.options;
  std::int64_t groups = 1;
  const auto [data, positions, per_group] =
      checked_samples(caller, norm_, record, layers.ctx.device(), groups);
  const std::int64_t samples = data.dim(0);
  const double global = check_record(layers, caller, g, data, samples, record.scale);
  const double sample_scale =
      sample_gradient_scale(options.loss_reduction, samples * options.statistics.micro_batches,
                            std::llround(global), record.scale.loss_scale);
  // Ghost groups have one mean each, so whole groups are sampled; a single group is the batch.
  const double all = layers.batch_of_statistics(global);
  const auto [part, batch] = sample(data, all, options.statistics.fraction, per_group);
  const Statistic& s = layers.statistic(g);
  const TensorView fisher = on.sums.of(g).reshape(s.plan.shape);
  const double beta = s.records == 0 ? 0 : 1;
  if (record.of_samples) {
    compute_norm_fisher(
        on.on, norm_, options.statistics.norm_fisher,
        NormSampleRecord{.gradients = part, .global_batch = batch, .sample_scale = sample_scale},
        beta, fisher);
  } else {
    compute_norm_fisher(on.on, norm_, options.statistics.norm_fisher,
                        chosen_record(norm_, record, groups, part, batch, sample_scale), beta,
                        fisher);
  }
  ops::count_nonfinite(on.on, fisher, on.nonfinite);
  if (count_record(layers, g, all, samples, samples, positions)) on.sums.mark_filled(g);
}

bool NormBlock::merge(Context& ctx, const CurvatureOptions& options, StatisticKind,
                      ConstTensorView sum, double finite) {
  return full() ? merge_factor(ctx, options, sum, curvature_.g, finite, norm_.channels)
                : merge_fisher(ctx, options, sum, curvature_, finite);
}

void NormBlock::add_shared(StatisticKind, std::vector<SharedPart>& parts) {
  if (full())
    parts.push_back({.owner = owners.layer, .factor = &curvature_.g});
  else
    parts.push_back({.owner = owners.layer,
                     .average = &curvature_.fisher,
                     .statistics = &curvature_.fisher_statistics});
}

FailureCounts NormBlock::failures(StatisticKind) const {
  if (full())
    return {.statistic = curvature_.g.refused, .inversion = curvature_.g.failures, .scales = 0};
  return {.statistic = curvature_.fisher_refused, .inversion = 0, .scales = 0};
}

}  // namespace dkfac::kfac
