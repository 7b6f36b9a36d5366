#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "kfac/curvature/curvature.h"
#include "kfac/statistics/norm_data.h"
#include "kfac/statistics/operand_form.h"
#include "kfac/statistics/operand_range.h"

namespace dkfac::kfac {
namespace {

/// The samples that enter the statistics, and the global batch that they represent.
struct Sampled {
  ConstTensorView data;
  double global_batch = 0;
};

Sampled sample(ConstTensorView data, double global_batch, double fraction, std::int64_t block = 1) {
  const std::int64_t n = data.dim(0), part = sampled(n, fraction, block);
  if (part == n) return {data, global_batch};
  return {data.slice(0, 0, part),
          global_batch * static_cast<double>(part) / static_cast<double>(n)};
}

/// Positions of each of n samples.
std::int64_t positions_of(std::int64_t rows, std::int64_t n) { return n == 0 ? 1 : rows / n; }

/// Number of output gradients that are summed into one element of the operand.
std::int64_t summed_positions(const LayerSpec& spec, WeightSharing sharing, ConstTensorView dy) {
  const std::int64_t channels = dy.dim(0) * factor_groups(spec) * g_dim(spec);
  return sharing == WeightSharing::reduce && channels > 0 ? dy.numel() / channels : 1;
}

}  // namespace

double Curvature::begin_record(const Caller& caller, StatisticId id, ConstTensorView data,
                               std::int64_t rows, RecordScale scale) const {
  const std::int64_t n = data.dim(0);
  const Statistic& s = statistic(id);
  DKFAC_CHECK(s.records < options_.statistics.micro_batches, caller,
              "recorded more than StatisticsOptions::micro_batches = ",
              options_.statistics.micro_batches, " times in one step");
  DKFAC_CHECK(scale.loss_scale > 0 && std::isfinite(scale.loss_scale), caller,
              "RecordScale::loss_scale is ", scale.loss_scale, "; it must be positive and finite");
  DKFAC_CHECK(scale.global_batch >= 0, caller, "RecordScale::global_batch is ", scale.global_batch,
              "; it must be >= 0");
  const bool counted = scale.global_batch > 0;
  DKFAC_CHECK(counted || n > 0, caller, "the record ", data.shape(),
              " has no samples; where other records of the step have some, pass the number of all "
              "as RecordScale::global_batch");
  DKFAC_CHECK(n * s.records == s.samples ||
                  (counted && options_.loss_reduction != LossReduction::local_mean),
              caller, "a record of ", n, " samples follows one of ",
              s.samples / std::max(1, s.records),
              "; make them equally large, or pass RecordScale::global_batch with gradients of "
              "LossReduction::global_mean or sum");
  if (s.records + 1 == options_.statistics.micro_batches) check_samples(caller, s, data, rows);
  return static_cast<double>(counted ? scale.global_batch
                                     : n * comm_->size() * options_.statistics.micro_batches);
}

/// Checks the last record of a statistic in this step: both factors of a layer must be of the same
/// samples, in any order and split.
void Curvature::check_samples(const Caller& caller, const Statistic& s, ConstTensorView data,
                              std::int64_t rows) const {
  const std::int64_t samples = s.samples + data.dim(0), all_rows = s.rows + rows;
  DKFAC_CHECK(samples > 0 || comm_->size() > 1, caller, "with the record ", data.shape(),
              " the step has no samples; record the statistics of a batch that has some");
  if (!due(s.partner)) return;
  const Statistic& other = statistic(s.partner);
  if (other.records < options_.statistics.micro_batches) return;
  DKFAC_CHECK(samples == other.samples && all_rows == other.rows, caller, samples, " samples in ",
              all_rows, " rows (samples times positions) in this step, while the ",
              s.plan.kind == StatisticKind::a ? "output gradients" : "inputs",
              " of the layer were ", other.samples, " in ", other.rows,
              "; record both of the same samples");
}

void Curvature::end_record(StatisticId id, double global, std::int64_t samples, std::int64_t rows,
                           std::int64_t positions) {
  Statistic& s = statistic(id);
  s.samples += samples;
  s.rows += rows;
  s.step_flops += build_flops(
      at(s.layer).spec, s.plan,
      options_.statistics.fraction * global / options_.statistics.micro_batches, positions);
  // Depends on the count alone, so that buckets are launched in the same order on every rank.
  if (++s.records == options_.statistics.micro_batches) reduction_of(s).mark_filled(s.slot);
}

Operand Curvature::operand(StatisticId id, ConstTensorView data, std::int64_t terms) {
  if (!options_.statistics.operand) return {options_.dtype, 1};
  if (*options_.statistics.operand != DType::f16) return {*options_.statistics.operand, 1};
  // Means and sums over positions are rounded for data of any type.
  const Operand exact{DType::f16, 1};
  if (options_.statistics.sharing != WeightSharing::reduce &&
      !operand_form(ctx_.device(), data.dtype(), options_.dtype, exact).rounds)
    return exact;
  statistic(id).scaled = true;
  double largest = known_range(id);
  // An upper bound; f16 has room for sums far below it. The host waits, but only while no range is
  // known.
  if (largest == 0) largest = largest_magnitude(records_on(), data) * static_cast<double>(terms);
  return {DType::f16, operand_scale(DType::f16, largest)};
}

double Curvature::known_range(StatisticId id) const {
  if (options_.statistics.operand != DType::f16) return 0;
  const auto largest = static_cast<double>(ranges_.data<float>()[id]);
  // A range of 0 carries no information: all elements were zero, or there was no data.
  return statistic(id).has_range && largest > 0 ? largest : 0;
}

OperandStats Curvature::operand_stats(StatisticId id) {
  if (!options_.statistics.operand) return {};
  const TensorView range = new_ranges_.device().slice(0, id, 1);
  if (statistic(id).records == 0) return {range, underflow_.device()};
  const TensorView both = record_ranges_;
  ops::fill(records_on(), both, 0);
  ops::copy(records_on(), range, both.slice(0, 0, 1));
  return {both.slice(0, 1, 1), underflow_.device()};
}

/// Ends what operand_stats() began, and counts a non-finite range: rounding saturates, so an Inf
/// would not show in the product.
void Curvature::check_range(StatisticId id) {
  if (!options_.statistics.operand) return;
  const TensorView range = new_ranges_.device().slice(0, id, 1);
  if (statistic(id).records > 0) ops::max_abs(records_on(), record_ranges_, range);
  ops::count_nonfinite(records_on(), range, nonfinite_);
}

void Curvature::add_rows(const Caller& caller, const KroneckerBlock& block,
                         const FactorRecord& record, StatisticId id, std::int64_t count) {
  Statistic& s = statistic(id);
  const FactorPlan& plan = s.plan.factor;
  const TensorView slot = slot_of(id);
  if (s.records == 0) ops::fill(records_on(), slot, 0);
  const RowShare share = row_share(plan, comm_->rank(), comm_->size());
  const std::int64_t left = share.count - s.rows_used;
  DKFAC_CHECK(count <= left, caller, count,
              " rows of statistics are too many: this rank's share of max_rows = ", plan.rows,
              " has room for ", left, " of its ", share.count,
              "; raise LinearSpec::max_rows, or turn StatisticsOptions::low_rank off");
  const TensorView free =
      slot.reshape({plan.rows, plan.dim}).slice(0, share.first + s.rows_used, left);
  const std::int64_t used = block.compute_rows(records_on(), record, free);
  ops::count_nonfinite(records_on(), free.slice(0, 0, used), nonfinite_);
  s.rows_used += used;
}

void Curvature::add_triangles(const KroneckerBlock& block, const FactorRecord& record,
                              StatisticId id) {
  const Statistic& s = statistic(id);
  const FactorPlan& plan = s.plan.factor;
  const TensorView slot = slot_of(id);
  Scratch scratch(records_on());
  const bool one = plan.groups == 1;
  const Shape shape = one ? Shape{plan.dim, plan.dim} : Shape{plan.groups, plan.dim, plan.dim};
  const TensorView squares = scratch.take(shape, options_.dtype);
  block.compute(records_on(), record, 0, squares);
  const TensorView packed = s.records == 0 ? slot : scratch.take(slot.shape(), options_.dtype);
  const std::int64_t size = ops::packed_size(plan.dim);
  for (int group = 0; group < plan.groups; ++group)
    ops::pack_lower(records_on(),
                    one ? squares : squares.slice(0, group, 1).reshape({plan.dim, plan.dim}),
                    packed.slice(0, group * size, size), nonfinite_);
  if (s.records > 0) ops::axpby(records_on(), 1, packed, 1, slot);
}

void Curvature::add_diagonal(const KroneckerBlock& block, const FactorRecord& record,
                             StatisticId id) {
  const TensorView slot = slot_of(id);
  block.compute(records_on(), record, statistic(id).records == 0 ? 0 : 1, slot);
  ops::count_nonfinite(records_on(), slot, nonfinite_);
}

bool Curvature::input_due(LayerId id) const {
  const CurvatureBlock& block = layer(checked(id, "wants_input"));
  return statistics_.empty() ? block.needs_input() : due(block.a);
}

bool Curvature::output_due(LayerId id) const {
  const CurvatureBlock& block = layer(checked(id, "wants_grad_output"));
  return statistics_.empty() ? block.covered() : due(block.g);
}

void Curvature::record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale) {
  records_.enter("record_input", stream);
  record_factor("record_input", StatisticKind::a, id, input, scale);
  records_.leave(stream);
}

void Curvature::record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                                   RecordScale scale) {
  records_.enter("record_grad_output", stream);
  record_factor("record_grad_output", StatisticKind::g, id, grad_output, scale);
  records_.leave(stream);
}

void Curvature::record_normalization(LayerId id, ConstTensorView x, ConstTensorView mean,
                                     ConstTensorView inv_std, ConstTensorView grad_output,
                                     Stream stream, RecordScale scale) {
  records_.enter("record_normalization", stream);
  record_fisher(id, x, mean, inv_std, grad_output, scale);
  records_.leave(stream);
}

void Curvature::record_sample_gradients(LayerId id, ConstTensorView gradients, Stream stream,
                                        RecordScale scale) {
  records_.enter("record_sample_gradients", stream);
  record_fisher(id, gradients, scale);
  records_.leave(stream);
}

void Curvature::record_factor(const char* call, StatisticKind kind, LayerId id,
                              ConstTensorView data, RecordScale scale) {
  const bool is_a = kind == StatisticKind::a;
  const ActivityTimer timer(seconds_.statistics, "statistics");
  const ActivityTimer part(is_a ? seconds_.statistics_a : seconds_.statistics_g);
  const int index = checked(id, call);
  const Caller caller(call, layer(index).name);
  KroneckerBlock* const block = at(index).factors(caller);
  const StatisticId recorded = is_a ? layer(index).a : layer(index).g;
  if (block == nullptr || !due(recorded)) return;
  const std::int64_t count = block->recorded_rows(caller, kind, data);
  check_device(caller, is_a ? "the input" : "the output gradient", data, ctx_.device());
  const WeightSharing sharing = sharing_of(block->spec, options_);
  const std::int64_t positions =
      sharing == WeightSharing::reduce ? 1 : positions_of(count, data.dim(0));
  const double global = begin_record(caller, recorded, data, count, scale);
  const Sampled x = sample(data, global, options_.statistics.fraction);
  if (scales_due(index)) block->check_turn(caller, kind, x.data);
  const FactorPlan& plan = statistic(recorded).plan.factor;  // A diagonal has no operand.
  const FactorRecord record{
      .kind = kind,
      .data = x.data,
      .global_batch = x.global_batch,
      .sample_scale = is_a ? 1
                           : sample_gradient_scale(options_.loss_reduction,
                                                   data.dim(0) * options_.statistics.micro_batches,
                                                   std::llround(global), scale.loss_scale),
      .operand = plan.is_diagonal()
                     ? Operand{options_.dtype, 1}
                     : operand(recorded, x.data,
                               is_a ? 1 : summed_positions(block->spec, sharing, x.data)),
      .stats = operand_stats(recorded),
      .sharing = sharing};
  if (plan.form == FactorForm::low_rank)
    add_rows(caller, *block, record, recorded, x.data.dim(0) * positions);
  else if (plan.is_diagonal())
    add_diagonal(*block, record, recorded);
  else
    add_triangles(*block, record, recorded);
  if (scales_due(index)) record_scales(*block, record);
  check_range(recorded);
  end_record(recorded, global, data.dim(0), count, positions);
}

template <class Check, class Compute>
void Curvature::add_fisher(const char* call, LayerId id, RecordScale scale, Check check,
                           Compute compute) {
  const ActivityTimer timer(seconds_.statistics, "statistics");
  const int index = checked(id, call);
  const CurvatureBlock& block = layer(index);
  const Caller caller(call, block.name);
  const NormSpec& norm = block.normalization(caller);
  if (!due(block.g)) return;
  // Ghost groups have one mean each, so whole groups are sampled; a single group is the batch.
  const auto [data, positions, per_group] = check(caller, norm);
  const std::int64_t samples = data.dim(0);
  const double global = begin_record(caller, block.g, data, samples, scale);
  const double sample_scale =
      sample_gradient_scale(options_.loss_reduction, samples * options_.statistics.micro_batches,
                            std::llround(global), scale.loss_scale);
  const Sampled part = sample(data, global, options_.statistics.fraction, per_group);
  const TensorView fisher = slot_of(block.g).reshape(statistic(block.g).plan.shape);
  compute(norm, part.data, part.global_batch, sample_scale,
          statistic(block.g).records == 0 ? 0.0 : 1.0, fisher);
  ops::count_nonfinite(records_on(), fisher, nonfinite_);
  end_record(block.g, global, samples, samples, positions);
}

void Curvature::record_fisher(LayerId id, ConstTensorView x, ConstTensorView mean,
                              ConstTensorView inv_std, ConstTensorView grad_output,
                              RecordScale scale) {
  std::int64_t groups = 1;
  add_fisher(
      "record_normalization", id, scale,
      [&](const Caller& caller, const NormSpec& norm) {
        groups = check_norm(caller, norm, x, mean, inv_std, grad_output, ctx_.device());
        return NormSamples{
            .data = x,
            .positions = positions_of(x.numel() / norm.channels, x.dim(0)),
            .per_group = groups > 1 ? std::max<std::int64_t>(1, x.dim(0) / groups) : 1};
      },
      [&](const NormSpec& norm, ConstTensorView part, double batch, double sample_scale,
          double beta, TensorView fisher) {
        const std::int64_t n = part.dim(0), all = x.dim(0);
        // One group has one mean; with NormOver::channels each row has.
        const bool is_shared = groups == 1 && norm.over != NormOver::channels;
        const auto first = [&](ConstTensorView view) {
          return n == all || is_shared ? view : view.slice(0, 0, view.dim(0) * n / all);
        };
        const ConstTensorView dy = n < all ? grad_output.slice(0, 0, n) : grad_output;
        compute_norm_fisher(records_on(), norm, options_.statistics.norm_fisher, part, first(mean),
                            first(inv_std), dy, batch, sample_scale, beta, fisher);
      });
}

void Curvature::record_fisher(LayerId id, ConstTensorView gradients, RecordScale scale) {
  add_fisher(
      "record_sample_gradients", id, scale,
      [&](const Caller& caller, const NormSpec& norm) {
        return check_norm_samples(caller, norm, gradients, ctx_.device());
      },
      [&](const NormSpec& norm, ConstTensorView part, double batch, double sample_scale,
          double beta, TensorView fisher) {
        compute_norm_fisher(records_on(), norm, options_.statistics.norm_fisher, part, batch,
                            sample_scale, beta, fisher);
      });
}

void Curvature::record_scales(KroneckerBlock& block, const FactorRecord& record) {
  if (record.kind == StatisticKind::a) return block.keep_input(records_on(), record.data);
  const TensorView slot = scale_reduce_->slot(block.scale_slot);
  block.record_scales(records_on(), record, slot);
  if (block.scale_records < options_.statistics.micro_batches) return;
  ops::count_nonfinite(records_on(), slot, nonfinite_);
  scale_reduce_->mark_filled(block.scale_slot);
}

}  // namespace dkfac::kfac
