#include "kfac/curvature/record_parts.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/statistics/factor_data.h"

namespace dkfac::kfac {
namespace {

/// Checks the last record of a statistic in this step: both factors of a layer must be of the same
/// samples, in any order and split.
void check_samples(const LayerTable& layers, const Caller& caller, const Statistic& s,
                   ConstTensorView data, std::int64_t rows) {
  const std::int64_t samples = s.samples + data.dim(0), all_rows = s.rows + rows;
  if (!layers.recorded_here(s.partner)) return;
  const Statistic& other = layers.statistic(s.partner);
  if (other.records < layers.options.statistics.micro_batches) return;
  // Diagonals of samples (diagonal_rows()) do not tell the rows that they are of.
  const bool known = all_rows > 0 && other.rows > 0;
  DKFAC_CHECK(samples == other.samples && (all_rows == other.rows || !known), caller, samples,
              " samples in ", all_rows, " rows (samples times positions) in this step, while the ",
              s.plan.kind == StatisticKind::a ? "output gradients" : "inputs",
              " of the layer were ", other.samples, " in ", other.rows,
              "; record both of the same samples");
}

void add_rows(const LayerTable& layers, const Caller& caller, Statistic& s, const LayerSpec& spec,
              const FactorRecord& record, std::int64_t count, const RecordSum& to) {
  const FactorPlan& plan = s.plan.factor;
  if (s.records == 0) ops::fill(to.on, to.sum, 0);
  const bool local = layers.has_local_statistics();
  const RowShare share =
      row_share(plan, local ? 0 : layers.comm->rank(), local ? 1 : layers.comm->size());
  const std::int64_t left = share.count - s.rows_used;
  DKFAC_CHECK(count <= left, caller, count,
              " rows of statistics are too many: this rank's share of max_rows = ", plan.rows,
              " has room for ", left, " of its ", share.count,
              "; raise LinearSpec::max_rows, or turn StatisticsOptions::low_rank off");
  const TensorView free =
      to.sum.reshape({plan.rows, plan.dim}).slice(0, share.first + s.rows_used, left);
  const bool is_a = s.plan.kind == StatisticKind::a;
  const std::int64_t used = (is_a ? a_rows : g_rows)(to.on, spec, record, free);
  ops::count_nonfinite(to.on, free.slice(0, 0, used), to.nonfinite);
  s.rows_used += used;
}

void add_triangles(const Statistic& s, const LayerSpec& spec, const FactorRecord& record,
                   const RecordSum& to) {
  const FactorPlan& plan = s.plan.factor;
  const DType dtype = to.sum.dtype();
  Scratch scratch(to.on);
  const bool one = plan.groups == 1;
  const Shape shape = one ? Shape{plan.dim, plan.dim} : Shape{plan.groups, plan.dim, plan.dim};
  const TensorView squares = scratch.take(shape, dtype);
  const bool is_a = s.plan.kind == StatisticKind::a;
  if (plan.has_blocks())
    (is_a ? compute_a_blocks : compute_g_blocks)(to.on, spec, {plan.groups, plan.dim, plan.whole},
                                                 record, squares);
  else
    (is_a ? compute_a : compute_g)(to.on, spec, record, 0, squares);
  const TensorView packed = s.records == 0 ? to.sum : scratch.take(to.sum.shape(), dtype);
  const std::int64_t size = ops::packed_size(plan.dim);
  for (int group = 0; group < plan.groups; ++group)
    ops::pack_lower(to.on, one ? squares : squares.slice(0, group, 1).reshape({plan.dim, plan.dim}),
                    packed.slice(0, group * size, size), to.nonfinite);
  if (s.records > 0) ops::axpby(to.on, 1, packed, 1, to.sum);
}

void add_diagonal(const Statistic& s, const LayerSpec& spec, const FactorRecord& record,
                  const RecordSum& to) {
  compute_a(to.on, spec, record, s.records == 0 ? 0 : 1, to.sum);
  ops::count_nonfinite(to.on, to.sum, to.nonfinite);
}

}  // namespace

Sampled sample(ConstTensorView data, double global_batch, double fraction, std::int64_t block) {
  const std::int64_t n = data.dim(0), part = sampled(n, fraction, block);
  if (part == n) return {data, global_batch};
  return {data.slice(0, 0, part),
          global_batch * static_cast<double>(part) / static_cast<double>(n)};
}

double check_record(const LayerTable& layers, const Caller& caller, StatisticId id,
                    ConstTensorView data, std::int64_t rows, RecordScale scale) {
  const CurvatureOptions& options = layers.options;
  const int all = options.statistics.micro_batches;
  const std::int64_t n = data.dim(0);
  const Statistic& s = layers.statistic(id);
  DKFAC_CHECK(s.records < all, caller,
              "recorded more than StatisticsOptions::micro_batches = ", all, " times in one step");
  DKFAC_CHECK(scale.loss_scale > 0 && std::isfinite(scale.loss_scale), caller,
              "RecordScale::loss_scale is ", scale.loss_scale, "; it must be positive and finite");
  DKFAC_CHECK(scale.global_batch >= 0, caller, "RecordScale::global_batch is ", scale.global_batch,
              "; it must be >= 0");
  const bool counted = scale.global_batch > 0;
  DKFAC_CHECK(counted || n > 0, caller, "the record ", data.shape(),
              " has no samples; where other records of the step have some, pass the number of all "
              "as RecordScale::global_batch");
  DKFAC_CHECK(n * s.records == s.samples ||
                  (counted && options.loss_reduction != LossReduction::local_mean),
              caller, "a record of ", n, " samples follows one of ",
              s.samples / std::max(1, s.records),
              "; make them equally large, or pass RecordScale::global_batch with gradients of "
              "LossReduction::global_mean or sum");
  if (s.records + 1 == all) check_samples(layers, caller, s, data, rows);
  return static_cast<double>(counted ? scale.global_batch : n * layers.comm->size() * all);
}

void add_record(LayerTable& layers, const Caller& caller, StatisticId id, const LayerSpec& spec,
                const FactorRecord& record, std::int64_t count, const RecordSum& to) {
  Statistic& s = layers.statistic(id);
  if (s.plan.factor.has_rows())
    add_rows(layers, caller, s, spec, record, count, to);
  else if (s.plan.factor.is_diagonal())
    add_diagonal(s, spec, record, to);
  else
    add_triangles(s, spec, record, to);
}

bool count_record(LayerTable& layers, StatisticId id, double batch, std::int64_t samples,
                  std::int64_t rows, std::int64_t positions) {
  const StatisticsOptions& options = layers.options.statistics;
  Statistic& s = layers.statistic(id);
  s.samples += samples;
  s.rows += rows;
  s.step_flops += build_flops(layers.layer(s.layer).spec, s.plan,
                              options.fraction * batch / options.micro_batches, positions);
  return ++s.records == options.micro_batches;
}

}  // namespace dkfac::kfac
