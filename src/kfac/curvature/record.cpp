#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/curvature/curvature.h"
#include "kfac/shared/phase_timer.h"
#include "kfac/statistics/batch_norm_data.h"
#include "kfac/statistics/factor_data.h"
#include "kfac/statistics/operand_form.h"
#include "kfac/statistics/operand_range.h"

namespace dkfac::kfac {
namespace {

/// The samples that statistics are made of, and the global batch that they stand for.
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

/// Output gradients that are added up before they are an operand.
std::int64_t summed_positions(const LayerSpec& spec, WeightSharing sharing, ConstTensorView dy) {
  const std::int64_t channels = dy.dim(0) * factor_groups(spec) * g_dim(spec);
  return sharing == WeightSharing::reduce && channels > 0 ? dy.numel() / channels : 1;
}

}  // namespace

/// Samples of the step over all ranks. Throws before anything is changed.
double Curvature::begin_record(const Caller& caller, StatisticId id, ConstTensorView data,
                               std::int64_t rows, RecordScale scale) {
  const std::int64_t n = data.dim(0);
  Statistic& s = statistic(id);
  const LayerSpec& spec = at(s.layer).spec;
  DKFAC_CHECK(s.records < options_.micro_batches, caller,
              "recorded more than CurvatureOptions::micro_batches = ", options_.micro_batches,
              " times in one step");
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
  if (s.records + 1 == options_.micro_batches) check_samples(caller, s, data, rows);
  const std::int64_t global =
      counted ? scale.global_batch : n * comm_->size() * options_.micro_batches;
  s.step_flops += build_flops(
      spec, s.plan,
      options_.statistics_fraction * static_cast<double>(global) / options_.micro_batches,
      recorded_positions(spec, options_, s.plan.kind, data));
  return static_cast<double>(global);
}

/// `data` is the last record of a statistic in this step. Both factors of a layer are of the same
/// samples; in which parts and order they come does not matter.
void Curvature::check_samples(const Caller& caller, const Statistic& s, ConstTensorView data,
                              std::int64_t rows) const {
  const std::int64_t samples = s.samples + data.dim(0), all_rows = s.rows + rows;
  DKFAC_CHECK(samples > 0 || comm_->size() > 1, caller, "with the record ", data.shape(),
              " the step has no samples; record the statistics of a batch that has some");
  if (!due(s.partner)) return;
  const Statistic& other = statistic(s.partner);
  if (other.records < options_.micro_batches) return;
  DKFAC_CHECK(samples == other.samples && all_rows == other.rows, caller, samples, " samples in ",
              all_rows, " rows (samples times positions) in this step, while the ",
              s.plan.kind == StatisticKind::a ? "output gradients" : "inputs",
              " of the layer were ", other.samples, " in ", other.rows,
              "; record both of the same samples");
}

void Curvature::end_record(StatisticId id, std::int64_t samples, std::int64_t rows) {
  Statistic& s = statistic(id);
  s.samples += samples;
  s.rows += rows;
  // By count alone, so that buckets leave at the same call on every rank.
  if (++s.records == options_.micro_batches) exchange_of(s).mark_filled(s.slot);
}

Operand Curvature::operand(StatisticId id, ConstTensorView data, std::int64_t terms) {
  if (!options_.operand) return {options_.dtype, 1};
  if (*options_.operand != DType::f16) return {*options_.operand, 1};
  // Means and sums over positions are rounded, whatever the data is.
  const Operand exact{DType::f16, 1};
  if (options_.sharing != WeightSharing::reduce &&
      !operand_form(ctx_.device(), data.dtype(), options_.dtype, exact).rounds)
    return exact;
  auto largest = static_cast<double>(ranges_.data<float>()[id]);
  // A range of 0 says nothing: all was zero, or there was no data.
  if (!statistic(id).has_range || !(largest > 0)) {
    // A bound: f16 has room for sums far below it. The host waits, but only while nothing is known.
    largest = largest_magnitude(records_on(), data) * static_cast<double>(terms);
  }
  return {DType::f16, operand_scale(DType::f16, largest)};
}

OperandStats Curvature::operand_stats(StatisticId id) {
  if (!options_.operand) return {};
  return {new_ranges_.device().slice(0, id, 1), underflow_.device()};
}

/// Rounding saturates, so that an Inf would not show in the product.
void Curvature::check_range(StatisticId id) {
  if (!options_.operand) return;
  ops::count_nonfinite(records_on(), new_ranges_.device().slice(0, id, 1), nonfinite_);
}

template <class Triangles, class Rows>
void Curvature::record_factor(const Caller& caller, StatisticId id, std::int64_t count,
                              Triangles triangles, Rows rows) {
  Statistic& s = statistic(id);
  const FactorPlan& plan = s.plan.factor;
  const TensorView slot = slot_of(id);
  if (plan.form == FactorForm::low_rank) {
    if (s.records == 0) ops::fill(records_on(), slot, 0);
    const RowShare share = row_share(plan, comm_->rank(), comm_->size());
    const std::int64_t left = share.count - s.rows_used;
    DKFAC_CHECK(count <= left, caller, count,
                " rows of statistics are too many: this rank's share of max_rows = ", plan.rows,
                " has room for ", left, " of its ", share.count,
                "; raise LinearSpec::max_rows, or turn CurvatureOptions::low_rank off");
    const TensorView free =
        slot.reshape({plan.rows, plan.dim}).slice(0, share.first + s.rows_used, left);
    const std::int64_t used = rows(free);
    ops::count_nonfinite(records_on(), free.slice(0, 0, used), nonfinite_);
    s.rows_used += used;
    return;
  }
  Scratch scratch(records_on());
  const bool one = plan.groups == 1;
  const Shape shape = one ? Shape{plan.dim, plan.dim} : Shape{plan.groups, plan.dim, plan.dim};
  const TensorView squares = scratch.take(shape, options_.dtype);
  triangles(squares);
  const TensorView packed = s.records == 0 ? slot : scratch.take(slot.shape(), options_.dtype);
  const std::int64_t size = ops::packed_size(plan.dim);
  for (int group = 0; group < plan.groups; ++group)
    ops::pack_lower(records_on(),
                    one ? squares : squares.slice(0, group, 1).reshape({plan.dim, plan.dim}),
                    packed.slice(0, group * size, size), nonfinite_);
  if (s.records > 0) ops::axpby(records_on(), 1, packed, 1, slot);
}

bool Curvature::input_due(LayerId id) const {
  const LayerBlock& block = layer(checked(id, "wants_input"));
  return statistics_.empty() ? has_factors(block.spec) : due(block.a);
}

bool Curvature::output_due(LayerId id) const {
  const LayerBlock& block = layer(checked(id, "wants_grad_output"));
  return statistics_.empty() ? !std::holds_alternative<PlainSpec>(block.spec) : due(block.g);
}

void Curvature::record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale) {
  records_.enter("record_input", stream);
  record_a(id, input, scale);
  records_.leave(stream);
}

void Curvature::record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                                   RecordScale scale) {
  records_.enter("record_grad_output", stream);
  record_g(id, grad_output, scale);
  records_.leave(stream);
}

void Curvature::record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                                  ConstTensorView inv_std, ConstTensorView grad_output,
                                  Stream stream, RecordScale scale) {
  records_.enter("record_batch_norm", stream);
  record_fisher(id, x, mean, inv_std, grad_output, scale);
  records_.leave(stream);
}

void Curvature::record_a(LayerId id, ConstTensorView input, RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  const PhaseTimer part(seconds_.statistics_a);
  constexpr const char* kCall = "record_input";
  const int index = checked(id, kCall);
  const LayerBlock& block = layer(index);
  const Caller caller(kCall, block.name);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(block.spec), caller,
              "a BatchNorm is recorded by record_batch_norm()");
  if (!due(block.a)) return;
  const std::int64_t count = a_data(caller, block.spec, input).patches.rows();
  check_device(caller, "the input", input, ctx_.device());
  const double global = begin_record(caller, block.a, input, count, scale);
  const Sampled x = sample(input, global, options_.statistics_fraction);
  const Operand op = operand(block.a, x.data);
  record_factor(
      caller, block.a,
      x.data.dim(0) *
          recorded_positions(block.spec, options_, statistic(block.a).plan.kind, x.data),
      [&](TensorView a) {
        compute_a(records_on(), block.spec, x.data, x.global_batch, op, operand_stats(block.a), 0,
                  a, options_.sharing);
      },
      [&](TensorView rows) {
        return a_rows(records_on(), block.spec, x.data, x.global_batch, op, operand_stats(block.a),
                      rows, options_.sharing);
      });
  if (scales_due(index)) keep_input(index, x.data);
  check_range(block.a);
  end_record(block.a, input.dim(0), count);
}

void Curvature::record_g(LayerId id, ConstTensorView grad_output, RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  const PhaseTimer part(seconds_.statistics_g);
  constexpr const char* kCall = "record_grad_output";
  const int index = checked(id, kCall);
  const LayerBlock& block = layer(index);
  const Caller caller(kCall, block.name);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(block.spec), caller,
              "a BatchNorm is recorded by record_batch_norm()");
  if (!due(block.g)) return;
  const std::int64_t count = g_data(caller, block.spec, grad_output).patches.rows();
  check_device(caller, "the output gradient", grad_output, ctx_.device());
  const double global = begin_record(caller, block.g, grad_output, count, scale);
  const Sampled dy = sample(grad_output, global, options_.statistics_fraction);
  const double s =
      sample_gradient_scale(options_.loss_reduction, grad_output.dim(0) * options_.micro_batches,
                            std::llround(global), scale.loss_scale);
  const Operand op =
      operand(block.g, dy.data, summed_positions(block.spec, options_.sharing, dy.data));
  record_factor(
      caller, block.g,
      dy.data.dim(0) *
          recorded_positions(block.spec, options_, statistic(block.g).plan.kind, dy.data),
      [&](TensorView g) {
        compute_g(records_on(), block.spec, dy.data, dy.global_batch, s, op, operand_stats(block.g),
                  0, g, options_.sharing);
      },
      [&](TensorView rows) {
        return g_rows(records_on(), block.spec, dy.data, dy.global_batch, s, op,
                      operand_stats(block.g), rows, options_.sharing);
      });
  if (scales_due(index)) record_scales(index, dy.data, dy.global_batch, s);
  check_range(block.g);
  end_record(block.g, grad_output.dim(0), count);
}

void Curvature::record_fisher(LayerId id, ConstTensorView x, ConstTensorView mean,
                              ConstTensorView inv_std, ConstTensorView grad_output,
                              RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  constexpr const char* kCall = "record_batch_norm";
  const int index = checked(id, kCall);
  const LayerBlock& block = layer(index);
  const Caller caller(kCall, block.name);
  const auto* bn = std::get_if<BatchNormSpec>(&block.spec);
  DKFAC_CHECK(bn != nullptr, caller, kfac::describe(block.spec),
              " is recorded by record_input() and record_grad_output()");
  if (!due(block.g)) return;
  const std::int64_t groups =
      check_batch_norm(caller, *bn, x, mean, inv_std, grad_output, ctx_.device());
  const double global = begin_record(caller, block.g, x, x.dim(0), scale);
  const double s = sample_gradient_scale(options_.loss_reduction, x.dim(0) * options_.micro_batches,
                                         std::llround(global), scale.loss_scale);
  // Ghost groups have a mean each; what is taken of the samples are whole groups.
  const bool ghosts = mean.ndim() == 2;
  const std::int64_t group = ghosts ? std::max<std::int64_t>(1, x.dim(0) / groups) : 1;
  const Sampled part = sample(x, global, options_.statistics_fraction, group);
  const std::int64_t n = part.data.dim(0);
  const auto first = [&](ConstTensorView view) {
    return ghosts && n < x.dim(0) ? view.slice(0, 0, n / group) : view;
  };
  const ConstTensorView dy = n < x.dim(0) ? grad_output.slice(0, 0, n) : grad_output;
  const TensorView fisher = slot_of(block.g).reshape(statistic(block.g).plan.shape);
  compute_batch_norm_fisher(records_on(), *bn, options_.batch_norm, part.data, first(mean),
                            first(inv_std), dy, part.global_batch, s,
                            statistic(block.g).records == 0 ? 0 : 1, fisher);
  ops::count_nonfinite(records_on(), fisher, nonfinite_);
  end_record(block.g, x.dim(0), x.dim(0));
}

void Curvature::keep_input(int index, ConstTensorView input) {
  LayerBlock& l = at(index);
  DKFAC_CHECK(!l.has_input, "[record_input] layer '", l.name,
              "' was recorded again before its output gradient; EKFAC needs both records of one "
              "batch after each other");
  if (!l.input.is_set() || l.input.dtype() != input.dtype() || l.input.shape() != input.shape())
    l.input = Tensor::zeros(records_on(), input.shape(), input.dtype());
  ops::copy(records_on(), input, l.input);
  l.has_input = true;
}

void Curvature::record_scales(int index, ConstTensorView grad_output, double global_batch,
                              double s) {
  LayerBlock& l = at(index);
  DKFAC_CHECK(l.has_input, "[record_grad_output] layer '", l.name,
              "' has no input recorded before; EKFAC needs both records of one batch");
  const LayerCurvature& c = l.curvature;
  const bool one = c.g.groups == 1;
  const auto square = [one](const Factor& f) {
    return f.inverse.view().reshape(one ? Shape{f.dim, f.dim} : Shape{f.groups, f.dim, f.dim});
  };
  const TensorView slot = scale_slot_of(index);
  const TensorView scales =
      slot.reshape(one ? Shape{c.g.dim, c.a.dim} : Shape{c.g.groups, c.g.dim, c.a.dim});
  compute_ekfac_scales(records_on(), l.spec, l.input, grad_output, square(c.a), square(c.g),
                       global_batch, s, options_.sharing, l.scale_records == 0 ? 0 : 1, scales);
  l.has_input = false;
  if (++l.scale_records < options_.micro_batches) return;
  ops::count_nonfinite(records_on(), slot, nonfinite_);
  scale_exchange_->mark_filled(l.scale_slot);
}

}  // namespace dkfac::kfac
