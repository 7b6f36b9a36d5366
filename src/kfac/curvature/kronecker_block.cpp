#include "kfac/curvature/kronecker_block.h"

#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/curvature/record_parts.h"
#include "kfac/statistics/diagonal_statistic.h"
#include "kfac/statistics/factor_data.h"

namespace dkfac::kfac {
namespace {

/// Number of output gradients that are summed into one element of the operand.
std::int64_t summed_positions(const LayerSpec& spec, WeightSharing sharing, ConstTensorView dy) {
  const std::int64_t channels = dy.dim(0) * factor_groups(spec) * g_dim(spec);
  return sharing == WeightSharing::reduce && channels > 0 ? dy.numel() / channels : 1;
}

}  // namespace

std::span<const StatisticTraits> KroneckerBlock::statistics() const {
  static constexpr StatisticTraits kStatistics[] = {
      {StatisticKind::a, ".a", "record_input", "factor A"},
      {StatisticKind::g, ".g", "record_grad_output", "factor G"}};
  return kStatistics;
}

bool KroneckerBlock::merge(Context& ctx, const CurvatureOptions& options, StatisticKind kind,
                           ConstTensorView sum, double finite) {
  return merge_factor(ctx, options, sum, factor(kind), finite);
}

void KroneckerBlock::add_shared(StatisticKind kind, std::vector<SharedPart>& parts) {
  // Every rank merges the same scales, so only their count is shared: it is reset when the
  // eigenvectors are rebuilt.
  std::int64_t* const scales = curvature_.scales.is_set() ? &curvature_.scale_statistics : nullptr;
  parts.push_back({.owner = owners.layer, .factor = &factor(kind), .statistics = scales});
}

FailureCounts KroneckerBlock::failures(StatisticKind kind) const {
  const Factor& f = factor(kind);
  return {.statistic = f.refused,
          .inversion = f.failures,
          .scales = kind == StatisticKind::g ? curvature_.scales_refused : 0};
}

std::int64_t KroneckerBlock::recorded_rows(const Caller& caller, StatisticKind kind,
                                           ConstTensorView data) const {
  if (kind == StatisticKind::a && has_diagonal_a(spec)) return diagonal_rows(caller, spec, data);
  const FactorData checked =
      kind == StatisticKind::a ? a_data(caller, spec, data) : g_data(caller, spec, data);
  return checked.patches.rows();
}

void KroneckerBlock::record(const Recording& on, const LayerRecord& record) {
  const StatisticKind kind = record.kind;
  if (kind == StatisticKind::norm) return CurvatureBlock::record(on, record);
  const Caller caller(record.call, name);
  LayerTable& layers = on.layers;
  const bool is_a = kind == StatisticKind::a;
  const StatisticId id = is_a ? a : g;
  if (!layers.recorded_here(id)) return;
  const CurvatureOptions& options = layers.options;
  const ConstTensorView data = record.data;
  const std::int64_t count = recorded_rows(caller, kind, data);
  check_device(caller, is_a ? "the input" : "the output gradient", data, layers.ctx.device());
  const WeightSharing sharing = sharing_of(spec, options);
  const std::int64_t positions =
      sharing == WeightSharing::reduce ? 1 : positions_of(count, data.dim(0));
  const double global = check_record(layers, caller, id, data, count, record.scale);
  const double batch = layers.batch_of_statistics(global);
  const Sampled x = sample(data, batch, options.statistics.fraction);
  const bool scales_due = layers.scales_due(layers.statistic(id).layer);
  if (scales_due) check_alternation(caller, kind, x.data);
  const FactorRecord part{
      .data = x.data,
      .global_batch = x.global_batch,
      .sample_scale = is_a ? 1
                           : sample_gradient_scale(options.loss_reduction,
                                                   data.dim(0) * options.statistics.micro_batches,
                                                   std::llround(global), record.scale.loss_scale),
      .operand =
          layers.statistic(id).plan.factor.is_diagonal()  // It has no operand.
              ? Operand{options.dtype, 1}
              : on.ranges.operand(id, x.data, is_a ? 1 : summed_positions(spec, sharing, x.data)),
      .stats = on.ranges.measure(id),
      .sharing = sharing};
  add_record(layers, caller, id, spec, part, x.data.dim(0) * positions,
             {on.on, on.sums.of(id), on.nonfinite});
  if (scales_due) add_scales(on, kind, part);
  on.ranges.measured(id, on.nonfinite);
  // Depends on the count alone, so that buckets are launched in the same order on every rank.
  if (count_record(layers, id, batch, data.dim(0), count, positions)) on.sums.mark_filled(id);
}

void KroneckerBlock::check_alternation(const Caller& caller, StatisticKind kind,
                                       ConstTensorView data) const {
  if (kind == StatisticKind::a) {
    DKFAC_CHECK(!scales_.has_input, caller,
                "recorded again before its output gradient; EKFAC needs both records of one batch "
                "after each other");
    return;
  }
  DKFAC_CHECK(scales_.has_input, caller,
              "has no input recorded before; EKFAC needs both records of one batch");
  const std::int64_t rows = recorded_rows(caller, kind, data),
                     kept = recorded_rows(caller, StatisticKind::a, kept_);
  DKFAC_CHECK(data.dim(0) == kept_.dim(0) && rows == kept, caller, data.dim(0), " samples in ",
              rows, " rows (samples times positions), while the input recorded before has ",
              kept_.dim(0), " in ", kept, "; EKFAC needs both records of one batch");
}

void KroneckerBlock::keep_input(Context& ctx, ConstTensorView input) {
  if (!input_.is_set() || input_.dtype() != input.dtype() || input_.numel() < input.numel()) {
    input_ = Tensor::empty(ctx, {input.numel()}, input.dtype());
    ++scales_.moves;
  }
  const TensorView copy = input_.view().slice(0, 0, input.numel()).reshape(input.shape());
  ops::copy(ctx, input, copy);
  kept_ = copy;
  scales_.has_input = true;
}

void KroneckerBlock::add_scales(const Recording& on, StatisticKind kind,
                                const FactorRecord& record) {
  if (kind == StatisticKind::a) return keep_input(on.on, record.data);
  const int layer = on.layers.statistic(g).layer;
  const TensorView sum = on.sums.of_scales(layer);
  record_scales(on.on, record, sum);
  if (scales_.records < on.layers.options.statistics.micro_batches) return;
  ops::count_nonfinite(on.on, sum, on.nonfinite);
  on.sums.mark_scales_filled(layer);
}

void KroneckerBlock::record_scales(Context& ctx, const FactorRecord& r, TensorView slot) {
  const LayerCurvature& c = curvature_;
  const bool one = c.g.groups == 1;
  const auto square = [one](const Factor& f) {
    return f.inverse.view().reshape(one ? Shape{f.dim, f.dim} : Shape{f.groups, f.dim, f.dim});
  };
  const TensorView scales =
      slot.reshape(one ? Shape{c.g.dim, c.a.dim} : Shape{c.g.groups, c.g.dim, c.a.dim});
  compute_ekfac_scales(ctx, spec, kept_, r, square(c.a), square(c.g), scales_.records == 0 ? 0 : 1,
                       scales);
  scales_.has_input = false;
  ++scales_.records;
}

}  // namespace dkfac::kfac
