#include "kfac/curvature/operand_ranges.h"

#include "dkfac/core/ops.h"

#include "kfac/statistics/operand_form.h"
#include "kfac/statistics/operand_range.h"

namespace dkfac::kfac {

OperandRanges::OperandRanges(LayerTable& layers, Context& on)
    : layers_(layers),
      on_(on),
      step_(layers.ctx, {layers.ids()}, DType::f32),
      records_(Tensor::zeros(layers.ctx, {2})),
      underflow_(layers.ctx, {1}, DType::f32) {
  Context host;
  accepted_ = Tensor::zeros(host, {layers.ids()});
}

Operand OperandRanges::operand(StatisticId id, ConstTensorView data, std::int64_t terms) {
  const CurvatureOptions& options = layers_.options;
  if (!rounds()) return {options.dtype, 1};
  if (*options.statistics.operand != DType::f16) return {*options.statistics.operand, 1};
  // Means and sums over positions are rounded for data of any type.
  const Operand exact{DType::f16, 1};
  if (options.statistics.sharing != WeightSharing::reduce &&
      !operand_form(layers_.ctx.device(), data.dtype(), options.dtype, exact).rounds)
    return exact;
  layers_.statistic(id).scaled = true;
  double largest = known(id);
  // An upper bound; f16 has room for sums far below it. The host waits, but only while no range is
  // known.
  if (largest == 0) largest = largest_magnitude(on_, data) * static_cast<double>(terms);
  return {DType::f16, operand_scale(DType::f16, largest)};
}

double OperandRanges::known(StatisticId id) const {
  if (layers_.options.statistics.operand != DType::f16) return 0;
  const auto largest = static_cast<double>(accepted_.data<float>()[id]);
  // A range of 0 carries no information: all elements were zero, or there was no data.
  return layers_.statistic(id).has_range && largest > 0 ? largest : 0;
}

OperandStats OperandRanges::measure(StatisticId id) {
  if (!rounds()) return {};
  if (layers_.statistic(id).records == 0) return {range(id), underflow_.device()};
  const TensorView both = records_;
  ops::fill(on_, both, 0);
  ops::copy(on_, range(id), both.slice(0, 0, 1));
  return {both.slice(0, 1, 1), underflow_.device()};
}

void OperandRanges::measured(StatisticId id, TensorView nonfinite) {
  if (!rounds()) return;
  if (layers_.statistic(id).records > 0) ops::max_abs(on_, records_, range(id));
  ops::count_nonfinite(on_, range(id), nonfinite);
}

void OperandRanges::request() {
  if (!rounds()) return;
  step_.fetch(layers_.ctx);
  underflow_.fetch(layers_.ctx);
}

void OperandRanges::accept(StatisticId id) {
  layers_.statistic(id).has_range = true;
  accepted_.data<float>()[id] = step_.numbers<float>()[id];
}

std::int64_t OperandRanges::underflow() const {
  return static_cast<std::int64_t>(*underflow_.numbers<float>());
}

void OperandRanges::begin_step() { ops::fill(layers_.ctx, underflow_.device(), 0); }

void OperandRanges::visit_state(StateVisitor& visitor) {
  visitor.tensor("ranges", StateKind::any_rank, accepted_);
}

}  // namespace dkfac::kfac
