#include "kfac/inverse/robust_inverse.h"

#include <cmath>
#include <limits>

namespace dkfac::kfac {
double round_to(DType dtype, double x) {
  return dtype == DType::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

double largest_of(Context& ctx, ConstTensorView x) {
  return number_of<double>(ctx, [&](TensorView out) { ops::max_abs(ctx, x, out); });
}

bool is_finite(Context& ctx, ConstTensorView x) { return std::isfinite(largest_of(ctx, x)); }

TensorView widen(Context& ctx, Scratch& scratch, ConstTensorView average) {
  const TensorView wide = scratch.take(average.shape(), DType::f64);
  ops::cast(ctx, average, wide);
  return wide;
}

bool leaves_room(DType dtype, double shift) {
  const double largest = dtype == DType::f32
                             ? static_cast<double>(std::numeric_limits<float>::max())
                             : std::numeric_limits<double>::max();
  return std::isfinite(shift) && 1 / shift <= largest * kRoom;
}

InverseResult rebuild_inverse(Context& ctx, const FactorGroup& block, double shift,
                              const Solvers& solvers) {
  if (!is_finite(ctx, block.average)) return {};
  return block.form->rebuild(ctx, block, shift, solvers);
}

InverseResult invert_identity(Context& ctx, const FactorGroup& block, double shift) {
  const double damping = round_to(block.inverse.dtype(), shift);
  if (!leaves_room(block.inverse.dtype(), damping)) return {};
  if (round_to(block.inverse.dtype(), 1 / damping) == 0) return {};
  ops::fill(ctx, block.inverse, 0);
  const double element = round_to(block.inverse.dtype(), block.form->identity(1 / damping));
  if (element != 0) ops::add_diagonal(ctx, block.inverse, element);
  return {InverseStage::damped, damping, block.form};
}

}  // namespace dkfac::kfac
