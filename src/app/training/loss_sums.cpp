#include "app/training/loss_sums.h"

#include "dkfac/core/ops.h"

namespace dkfac::app {

LossSums::LossSums(Context& ctx)
    : sums_(Tensor::zeros(ctx, {3}, DType::f64)), host_(Tensor::pinned(ctx, {3}, DType::f64)) {}

void LossSums::clear(Context& ctx) { ops::fill(ctx, sums_, 0); }

void LossSums::fetch(Context& ctx) { ops::copy(ctx, sums_, host_); }

}  // namespace dkfac::app
