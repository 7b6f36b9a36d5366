#include "kfac/kl_clip.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/core/parallel.h"

#include "kfac/host.h"

namespace dkfac::kfac {

double kl_factor(double kappa, double lr, double sum) {
  const double length = lr * lr * sum;
  if (!std::isfinite(length)) return 0;
  if (!(length > 0)) return 1;
  return std::min(1.0, std::sqrt(kappa / length));
}

void scale_direction(double factor, TensorView u) {
  if (factor == 1 || u.numel() == 0) return;
  require_host("kl clip", u.device());
  with_real("kl clip", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* data = u.data<T>();
    const T scale = static_cast<T>(factor);
    cpu::parallel_ranges(u.numel(), cpu::kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) data[i] = scale == 0 ? T{0} : scale * data[i];
    });
  });
}

void KlSum::add(ConstTensorView gradient, ConstTensorView direction) {
  if (gradient.numel() == 0) return;
  double product = 0;
  ops::dot(ctx_, gradient.flat(), direction.flat(), view_of(&product, {1}));
  sum_ += product;
}

double KlSum::total(const WorkerGrid& grid) {
  grid.world->all_reduce(view_of(&sum_, {1}), comm::ReduceOp::sum, Stream::cpu(), "kl clip");
  return sum_;
}

}  // namespace dkfac::kfac
