#include "kfac/precondition/kl_clip.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/precondition/backend_clip.h"
#include "kfac/shared/clip_rule.h"

namespace dkfac::kfac {

double kl_clip_factor(double kappa, double lr, double product) {
  DKFAC_CHECK(kappa >= 0 && std::isfinite(kappa), "[kl_clip_factor] kappa is ", kappa,
              "; it must be finite and >= 0, 0 for no clip");
  return kappa == 0 ? 1 : kl_factor(kappa, lr, product);
}

KlClip::KlClip(Context& ctx, std::int64_t products)
    : ctx_(ctx),
      products_(Tensor::zeros(ctx, {products}, DType::f64)),
      total_(Tensor::zeros(ctx, {1}, DType::f64)),
      factor_(Tensor::zeros(ctx, {1}, DType::f64)),
      scales_(ctx, {products}, DType::f64) {
  std::ranges::fill_n(scales_.numbers<double>(), products, 1.0);
  scales_.push(ctx_);
}

void KlClip::set_rates(const std::vector<double>& multipliers) {
  double* scale = scales_.numbers<double>();
  bool changed = false;
  for (const double s : multipliers) changed = (std::exchange(*scale++, s * s) != s * s) || changed;
  if (changed) scales_.push(ctx_);
}

void KlClip::add(ConstTensorView gradient, ConstTensorView direction) {
  if (gradient.numel() == 0) return;
  ops::dot(ctx_, gradient.flat(), direction.flat(), products_.view().slice(0, count_++, 1));
}

void KlClip::add_up() {
  kernels::add_up(ctx_, products_.view().slice(0, 0, count_), scales_.device().slice(0, 0, count_),
                  total_);
}

ConstTensorView KlClip::total(const comm::WorkerGrid& grid) {
  grid.world->all_reduce(total_, comm::ReduceOp::sum, ctx_.stream(), "kl clip");
  return total_;
}

ConstTensorView KlClip::factor(const comm::WorkerGrid& grid, double kappa, double lr) {
  const ConstTensorView sum = total(grid);
  kernels::find_kl_factor(ctx_, kappa, lr, sum, factor_);
  return factor_;
}

void scale_direction(Context& ctx, ConstTensorView factor, TensorView u) {
  if (u.numel() == 0) return;
  DKFAC_CHECK(u.device() == ctx.device(), "[kl clip] the direction is on ", u.device(),
              ", the context on ", ctx.device());
  kernels::scale_direction(ctx, factor, u);
}

}  // namespace dkfac::kfac
