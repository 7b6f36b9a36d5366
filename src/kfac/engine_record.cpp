#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/cuda/operand.h"
#include "kfac/engine.h"
#include "kfac/operand_form.h"
#include "kfac/phase_timer.h"
#include "kfac/read_back.h"

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

/// max |x| of data of any floating dtype, which the host waits for; not finite where it is not.
double largest_magnitude(Context& ctx, ConstTensorView x) {
  Scratch scratch(ctx);
  if (is_half(x.dtype()) && ctx.device().is_cuda()) {
    const TensorView found = scratch.take({1}, DType::f32);
    cuda::find_range(ctx, x, found);
    return static_cast<double>(read_back<float>(ctx, found)[0]);
  }
  ConstTensorView wide = x;
  if (is_half(x.dtype())) {
    const TensorView cast = scratch.take(x.shape(), DType::f32);
    ops::cast(ctx, x, cast);
    wide = cast;
  }
  const TensorView found = scratch.take({1}, DType::f64);
  ops::max_abs(ctx, wide, found);
  return read_back<double>(ctx, found)[0];
}

}  // namespace

/// Samples of the step over all ranks.
double Engine::begin_record(const char* operation, int index, ConstTensorView data,
                            RecordScale scale) {
  const int layer = index / 2;
  DKFAC_CHECK(data.ndim() >= 1, "[", operation, "] layer '", name(layer),
              "' got an empty view; it must be [samples, ...]");
  DKFAC_CHECK(scale.global_batch >= 0, "[", operation, "] layer '", name(layer),
              "' got a global batch of ", scale.global_batch, "; it must be >= 0");
  Statistic& s = statistic(index);
  DKFAC_CHECK(s.records < options_.micro_batches, "[", operation, "] layer '", name(layer),
              "' was recorded more than CurvatureOptions::micro_batches = ", options_.micro_batches,
              " times in one step");
  const std::int64_t global =
      scale.global_batch > 0
          ? scale.global_batch
          : std::max<std::int64_t>(1, data.dim(0) * comm_->size() * options_.micro_batches);
  s.step_flops += build_flops(
      spec(layer), s.plan,
      options_.statistics_fraction * static_cast<double>(global) / options_.micro_batches,
      recorded_positions(spec(layer), options_, s.plan.kind, data));
  return static_cast<double>(global);
}

void Engine::end_record(int index) {
  Statistic& s = statistic(index);
  // By count alone, so that buckets leave at the same call on every rank.
  if (++s.records == options_.micro_batches) exchange_of(index).mark_filled(s.slot);
}

Operand Engine::operand(int index, ConstTensorView data, std::int64_t terms) {
  if (!options_.operand) return {options_.dtype, 1};
  if (*options_.operand != DType::f16) return {*options_.operand, 1};
  // Means and sums over positions are rounded, whatever the data is.
  const Operand exact{DType::f16, 1};
  if (options_.sharing != WeightSharing::reduce &&
      !operand_form(ctx_.device(), data.dtype(), options_.dtype, exact).rounds)
    return exact;
  auto largest = static_cast<double>(ranges_.data<float>()[index]);
  // A range of 0 says nothing: all was zero, or there was no data.
  if (!statistic(index).has_range || !(largest > 0)) {
    // A bound: f16 has room for sums far below it. The host waits, but only while nothing is known.
    largest = largest_magnitude(records_on(), data) * static_cast<double>(terms);
  }
  return {DType::f16, operand_scale(DType::f16, largest)};
}

OperandStats Engine::operand_stats(int index) {
  if (!options_.operand) return {};
  return {new_ranges_.device().slice(0, index, 1), underflow_.device()};
}

/// Rounding saturates, so that an Inf would not show in the product.
void Engine::check_range(int index) {
  if (!options_.operand) return;
  ops::count_nonfinite(records_on(), new_ranges_.device().slice(0, index, 1), nonfinite_);
}

template <class Triangles, class Rows>
void Engine::record_factor(int index, std::int64_t count, Triangles triangles, Rows rows) {
  Statistic& s = statistic(index);
  const FactorPlan& plan = s.plan.factor;
  const TensorView slot = slot_of(index);
  if (plan.form == FactorForm::low_rank) {
    if (s.records == 0) ops::fill(records_on(), slot, 0);
    const RowShare share = row_share(plan, comm_->rank(), comm_->size());
    const std::int64_t left = share.count - s.rows_used;
    DKFAC_CHECK(count <= left, "[record] layer '", name(index / 2), "' has ", count,
                " rows of statistics more, and this rank's share of max_rows = ", plan.rows,
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

void Engine::record_input(LayerId id, ConstTensorView input, RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  const PhaseTimer part(seconds_.statistics_a);
  const int layer = checked(id, "record_input"), index = input_of(layer);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(layer)), "[record_input] layer '",
              name(layer), "' is a BatchNorm; call record_batch_norm()");
  if (!timetable_.due(index)) return;
  const double global = begin_record("record_input", index, input, scale);
  const Sampled x = sample(input, global, options_.statistics_fraction);
  const Operand op = operand(index, x.data);
  record_factor(
      index,
      x.data.dim(0) * recorded_positions(spec(layer), options_, statistic(index).plan.kind, x.data),
      [&](TensorView a) {
        compute_a(records_on(), spec(layer), x.data, x.global_batch, op, operand_stats(index), 0, a,
                  options_.sharing);
      },
      [&](TensorView rows) {
        return a_rows(records_on(), spec(layer), x.data, x.global_batch, op, operand_stats(index),
                      rows, options_.sharing);
      });
  if (scales_due(layer)) keep_input(layer, x.data);
  check_range(index);
  end_record(index);
}

void Engine::record_grad_output(LayerId id, ConstTensorView grad_output, RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  const PhaseTimer part(seconds_.statistics_g);
  const int layer = checked(id, "record_grad_output"), index = output_of(layer);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(layer)), "[record_grad_output] layer '",
              name(layer), "' is a BatchNorm; call record_batch_norm()");
  if (!timetable_.due(index)) return;
  const double global = begin_record("record_grad_output", index, grad_output, scale);
  const Sampled dy = sample(grad_output, global, options_.statistics_fraction);
  const double s =
      sample_gradient_scale(options_.loss_reduction, grad_output.dim(0) * options_.micro_batches,
                            std::llround(global), scale.loss_scale);
  const Operand op =
      operand(index, dy.data, summed_positions(spec(layer), options_.sharing, dy.data));
  record_factor(
      index,
      dy.data.dim(0) *
          recorded_positions(spec(layer), options_, statistic(index).plan.kind, dy.data),
      [&](TensorView g) {
        compute_g(records_on(), spec(layer), dy.data, dy.global_batch, s, op, operand_stats(index),
                  0, g, options_.sharing);
      },
      [&](TensorView rows) {
        return g_rows(records_on(), spec(layer), dy.data, dy.global_batch, s, op,
                      operand_stats(index), rows, options_.sharing);
      });
  if (scales_due(layer)) record_scales(layer, dy.data, dy.global_batch, s);
  check_range(index);
  end_record(index);
}

void Engine::record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                               ConstTensorView inv_std, ConstTensorView grad_output,
                               RecordScale scale) {
  const PhaseTimer timer(seconds_.statistics, "statistics");
  const int layer = checked(id, "record_batch_norm"), index = output_of(layer);
  const auto* bn = std::get_if<BatchNormSpec>(&spec(layer));
  DKFAC_CHECK(bn != nullptr, "[record_batch_norm] layer '", name(layer), "' is a ",
              kfac::describe(spec(layer)), "; call record_input() and record_grad_output()");
  if (!timetable_.due(index)) return;
  const double global = begin_record("record_batch_norm", index, x, scale);
  const double s = sample_gradient_scale(options_.loss_reduction, x.dim(0) * options_.micro_batches,
                                         std::llround(global), scale.loss_scale);
  // Ghost groups have a mean each; what is taken of the samples are whole groups.
  const bool ghosts = mean.ndim() == 2 && mean.dim(0) > 0;
  const std::int64_t block = ghosts ? std::max<std::int64_t>(1, x.dim(0) / mean.dim(0)) : 1;
  const Sampled part = sample(x, global, options_.statistics_fraction, block);
  const std::int64_t n = part.data.dim(0);
  const auto first = [&](ConstTensorView view) {
    return ghosts && n < x.dim(0) ? view.slice(0, 0, n / block) : view;
  };
  const ConstTensorView dy = n < x.dim(0) ? grad_output.slice(0, 0, n) : grad_output;
  const TensorView fisher = slot_of(index).reshape(statistic(index).plan.shape);
  compute_batch_norm_fisher(records_on(), *bn, options_.batch_norm, part.data, first(mean),
                            first(inv_std), dy, part.global_batch, s,
                            statistic(index).records == 0 ? 0 : 1, fisher);
  ops::count_nonfinite(records_on(), fisher, nonfinite_);
  end_record(index);
}

void Engine::keep_input(int layer, ConstTensorView input) {
  Layer& l = at(layer);
  DKFAC_CHECK(!l.has_input, "[record_input] layer '", name(layer),
              "' was recorded again before its output gradient; EKFAC needs both records of one "
              "batch after each other");
  if (!l.input.is_set() || l.input.dtype() != input.dtype() || l.input.shape() != input.shape())
    l.input = Tensor::zeros(records_on(), input.shape(), input.dtype());
  ops::copy(records_on(), input, l.input);
  l.has_input = true;
}

void Engine::record_scales(int layer, ConstTensorView grad_output, double global_batch, double s) {
  Layer& l = at(layer);
  DKFAC_CHECK(l.has_input, "[record_grad_output] layer '", name(layer),
              "' has no input recorded before; EKFAC needs both records of one batch");
  const LayerCurvature& c = l.curvature;
  const bool one = c.g.groups == 1;
  const auto square = [one](const Factor& f) {
    return f.inverse.view().reshape(one ? Shape{f.dim, f.dim} : Shape{f.groups, f.dim, f.dim});
  };
  const TensorView slot = scale_exchange_->slot(l.scale_slot);
  const TensorView scales =
      slot.reshape(one ? Shape{c.g.dim, c.a.dim} : Shape{c.g.groups, c.g.dim, c.a.dim});
  compute_ekfac_scales(records_on(), spec(layer), l.input, grad_output, square(c.a), square(c.g),
                       global_batch, s, options_.sharing, l.scale_records == 0 ? 0 : 1, scales);
  l.has_input = false;
  if (++l.scale_records < options_.micro_batches) return;
  ops::count_nonfinite(records_on(), slot, nonfinite_);
  scale_exchange_->mark_filled(l.scale_slot);
}

}  // namespace dkfac::kfac
