#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/engine.h"
#include "kfac/phase_timer.h"

namespace dkfac::kfac {

Engine::Layer& Engine::at(LayerId id, const char* operation) {
  const int index = static_cast<int>(id);
  DKFAC_CHECK(index >= 0 && index < layers(), "[", operation, "] layer id ", index,
              " does not exist; add_layer() returned 0 to ", layers() - 1);
  return layers_[static_cast<std::size_t>(index)];
}

std::int64_t Engine::begin_record(const char* operation, int layer, const Recording& record,
                                  ConstTensorView data, RecordScale scale) {
  DKFAC_CHECK(data.ndim() >= 1, "[", operation, "] layer '", name(layer),
              "' got an empty view; it must be [samples, ...]");
  DKFAC_CHECK(scale.global_batch >= 0, "[", operation, "] layer '", name(layer),
              "' got a global batch of ", scale.global_batch, "; it must be >= 0");
  DKFAC_CHECK(record.records < options_.micro_batches, "[", operation, "] layer '", name(layer),
              "' was recorded more than CurvatureOptions::micro_batches = ", options_.micro_batches,
              " times in one step");
  if (scale.global_batch > 0) return scale.global_batch;
  return std::max<std::int64_t>(1, data.dim(0) * comm_->size() * options_.micro_batches);
}

void Engine::end_record(Exchange& exchange, Recording& record) {
  // By count alone, so that buckets leave at the same call on every rank.
  if (++record.records == options_.micro_batches) exchange.mark_filled(record.slot);
}

Operand Engine::operand(const Recording& record, ConstTensorView data, std::int64_t range) {
  if (!options_.operand) return {options_.dtype, 1};
  if (*options_.operand != DType::f16) return {*options_.operand, 1};
  float largest = ranges_.data<float>()[range];
  // A range of 0 says nothing: all was zero, or there was no data.
  if (!record.has_range || !(largest > 0)) ops::max_abs(ctx_, data, view_of(&largest, {1}));
  return {DType::f16, operand_scale(DType::f16, static_cast<double>(largest))};
}

OperandStats Engine::operand_stats(std::int64_t range) {
  if (!options_.operand) return {};
  return {new_ranges_.view().slice(0, range, 1), underflow_.view()};
}

/// Rounding saturates, so that an Inf would not show in the product.
void Engine::check_range(std::int64_t range) {
  if (!options_.operand) return;
  if (!std::isfinite(new_ranges_.data<float>()[range])) *nonfinite_.data<float>() += 1;
}

/// compute(square) writes the lower triangle of this record's part; parts of one step add up.
template <class Compute>
void Engine::record_factor(Exchange& exchange, Recording& record, std::int64_t dim,
                           Compute compute) {
  Scratch scratch(ctx_);
  const TensorView square = scratch.take({dim, dim}, options_.dtype);
  const TensorView slot = exchange.slot(record.slot);
  compute(square);
  if (record.records == 0) {
    ops::pack_lower(ctx_, square, slot, nonfinite_);
    return;
  }
  const TensorView packed = scratch.take(slot.shape(), options_.dtype);
  ops::pack_lower(ctx_, square, packed, nonfinite_);
  ops::axpby(ctx_, 1, packed, 1, slot);
}

void Engine::record_input(LayerId id, ConstTensorView input, RecordScale scale) {
  const PhaseTimer timer(statistics_seconds_, "statistics");
  Layer& layer = at(id, "record_input");
  const int index = static_cast<int>(id);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(index)), "[record_input] layer '",
              name(index), "' is a BatchNorm; call record_batch_norm()");
  if (!statistics_due() || !has_factors(spec(index))) return;
  const std::int64_t global = begin_record("record_input", index, layer.input, input, scale);
  const Operand op = operand(layer.input, input, 2 * index);
  record_factor(*a_exchange_, layer.input, a_dim(spec(index)), [&](TensorView square) {
    compute_a(ctx_, spec(index), input, global, op, operand_stats(2 * index), 0, square);
  });
  check_range(2 * index);
  end_record(*a_exchange_, layer.input);
}

void Engine::record_grad_output(LayerId id, ConstTensorView grad_output, RecordScale scale) {
  const PhaseTimer timer(statistics_seconds_, "statistics");
  Layer& layer = at(id, "record_grad_output");
  const int index = static_cast<int>(id);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(index)), "[record_grad_output] layer '",
              name(index), "' is a BatchNorm; call record_batch_norm()");
  if (!statistics_due() || !has_factors(spec(index))) return;
  const std::int64_t global =
      begin_record("record_grad_output", index, layer.output, grad_output, scale);
  const double s =
      sample_gradient_scale(options_.loss_reduction, grad_output.dim(0), global, scale.loss_scale);
  const Operand op = operand(layer.output, grad_output, 2 * index + 1);
  record_factor(*g_exchange_, layer.output, g_dim(spec(index)), [&](TensorView square) {
    compute_g(ctx_, spec(index), grad_output, global, s, op, operand_stats(2 * index + 1), 0,
              square);
  });
  check_range(2 * index + 1);
  end_record(*g_exchange_, layer.output);
}

void Engine::record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                               ConstTensorView inv_std, ConstTensorView grad_output,
                               RecordScale scale) {
  const PhaseTimer timer(statistics_seconds_, "statistics");
  Layer& layer = at(id, "record_batch_norm");
  const int index = static_cast<int>(id);
  const auto* bn = std::get_if<BatchNormSpec>(&spec(index));
  DKFAC_CHECK(bn != nullptr, "[record_batch_norm] layer '", name(index), "' is a ",
              kfac::describe(spec(index)), "; call record_input() and record_grad_output()");
  if (!statistics_due()) return;
  const std::int64_t global = begin_record("record_batch_norm", index, layer.output, x, scale);
  const double s =
      sample_gradient_scale(options_.loss_reduction, x.dim(0), global, scale.loss_scale);
  const TensorView fisher = g_exchange_->slot(layer.output.slot)
                                .reshape({batch_norm_rows(*bn, options_.batch_norm), bn->channels});
  compute_batch_norm_fisher(ctx_, *bn, options_.batch_norm, x, mean, inv_std, grad_output, global,
                            s, layer.output.records == 0 ? 0 : 1, fisher);
  ops::count_nonfinite(ctx_, fisher, nonfinite_);
  end_record(*g_exchange_, layer.output);
}

}  // namespace dkfac::kfac
