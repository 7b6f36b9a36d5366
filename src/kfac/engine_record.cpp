#include <algorithm>

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

std::int64_t Engine::begin_record(const char* operation, int layer, Exchange& exchange,
                                  Recording& record, ConstTensorView data, RecordScale scale) {
  DKFAC_CHECK(data.ndim() >= 1, "[", operation, "] layer '", name(layer),
              "' got an empty view; it must be [samples, ...]");
  DKFAC_CHECK(scale.global_batch >= 0, "[", operation, "] layer '", name(layer),
              "' got a global batch of ", scale.global_batch, "; it must be >= 0");
  const bool whole = scale.global_batch == 0;
  DKFAC_CHECK(record.records == 0 || !(whole || record.whole_batch), "[", operation, "] layer '",
              name(layer),
              "' was recorded twice in one step without RecordScale::global_batch; "
              "micro-batches need it, since it counts the samples of all of them on all ranks");
  DKFAC_CHECK(!exchange.launched(record.slot), "[", operation, "] layer '", name(layer),
              "' was recorded again after its statistic had left with ", record.samples,
              " samples; with unequal micro-batches set CurvatureOptions::overlap to false");
  const std::int64_t global = whole ? data.dim(0) * comm_->size() : scale.global_batch;
  record.whole_batch = whole;
  record.global = std::max<std::int64_t>(global, 1);
  return record.global;
}

void Engine::end_record(Exchange& exchange, Recording& record, std::int64_t samples) {
  ++record.records;
  record.samples += samples;
  // An equal share of the global batch is taken to be all of this rank's.
  if (record.samples * comm_->size() >= record.global) exchange.mark_filled(record.slot);
}

Operand Engine::operand(Recording& record, ConstTensorView data, std::int64_t range) {
  if (!options_.operand) return {options_.dtype, 1};
  float& largest = ranges_.data<float>()[range];
  if (*options_.operand == DType::f16 && !record.has_range)
    ops::max_abs(ctx_, data, view_of(&largest, {1}));
  record.has_range = true;
  return {*options_.operand, operand_scale(*options_.operand, static_cast<double>(largest))};
}

OperandStats Engine::operand_stats(std::int64_t range) {
  if (!options_.operand) return {};
  return {ranges_.view().slice(0, range, 1), underflow_.view()};
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
  const PhaseTimer timer(statistics_seconds_);
  Layer& layer = at(id, "record_input");
  const int index = static_cast<int>(id);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(index)), "[record_input] layer '",
              name(index), "' is a BatchNorm; call record_batch_norm()");
  if (!statistics_due() || !has_factors(spec(index))) return;
  const std::int64_t global =
      begin_record("record_input", index, *a_exchange_, layer.input, input, scale);
  const Operand op = operand(layer.input, input, 2 * index);
  record_factor(*a_exchange_, layer.input, a_dim(spec(index)), [&](TensorView square) {
    compute_a(ctx_, spec(index), input, global, op, operand_stats(2 * index), 0, square);
  });
  end_record(*a_exchange_, layer.input, input.dim(0));
}

void Engine::record_grad_output(LayerId id, ConstTensorView grad_output, RecordScale scale) {
  const PhaseTimer timer(statistics_seconds_);
  Layer& layer = at(id, "record_grad_output");
  const int index = static_cast<int>(id);
  DKFAC_CHECK(!std::holds_alternative<BatchNormSpec>(spec(index)), "[record_grad_output] layer '",
              name(index), "' is a BatchNorm; call record_batch_norm()");
  if (!statistics_due() || !has_factors(spec(index))) return;
  const std::int64_t global =
      begin_record("record_grad_output", index, *g_exchange_, layer.output, grad_output, scale);
  const double s =
      sample_gradient_scale(options_.loss_reduction, grad_output.dim(0), global, scale.loss_scale);
  const Operand op = operand(layer.output, grad_output, 2 * index + 1);
  record_factor(*g_exchange_, layer.output, g_dim(spec(index)), [&](TensorView square) {
    compute_g(ctx_, spec(index), grad_output, global, s, op, operand_stats(2 * index + 1), 0,
              square);
  });
  end_record(*g_exchange_, layer.output, grad_output.dim(0));
}

void Engine::record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                               ConstTensorView inv_std, ConstTensorView grad_output,
                               RecordScale scale) {
  const PhaseTimer timer(statistics_seconds_);
  Layer& layer = at(id, "record_batch_norm");
  const int index = static_cast<int>(id);
  const auto* bn = std::get_if<BatchNormSpec>(&spec(index));
  DKFAC_CHECK(bn != nullptr, "[record_batch_norm] layer '", name(index), "' is a ",
              kfac::describe(spec(index)), "; call record_input() and record_grad_output()");
  if (!statistics_due()) return;
  const std::int64_t global =
      begin_record("record_batch_norm", index, *g_exchange_, layer.output, x, scale);
  const double s =
      sample_gradient_scale(options_.loss_reduction, x.dim(0), global, scale.loss_scale);
  const TensorView fisher = g_exchange_->slot(layer.output.slot)
                                .reshape({batch_norm_rows(options_.batch_norm), bn->channels});
  compute_batch_norm_fisher(ctx_, *bn, options_.batch_norm, x, mean, inv_std, grad_output, global,
                            s, layer.output.records == 0 ? 0 : 1, fisher);
  ops::count_nonfinite(ctx_, fisher, nonfinite_);
  end_record(*g_exchange_, layer.output, x.dim(0));
}

}  // namespace dkfac::kfac
