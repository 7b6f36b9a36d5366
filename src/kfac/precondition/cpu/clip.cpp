#include <numeric>

#include "dkfac/kfac/inverse.h"

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/precondition/backend_clip.h"
#include "kfac/shared/clip_rule.h"

namespace dkfac::kfac::cpu {

void add_up(Context&, ConstTensorView products, ConstTensorView scales, TensorView total) {
  const double* first = products.data<double>();
  *total.data<double>() =
      std::inner_product(first, first + products.numel(), scales.data<double>(), 0.0);
}

void find_kl_factor(Context&, double kappa, double lr, ConstTensorView total, TensorView factor) {
  *factor.data<double>() = kl_clip_factor(kappa, lr, *total.data<double>());
}

void scale_direction(Context&, ConstTensorView factor, TensorView u) {
  const double scale = *factor.data<double>();
  if (scale == 1) return;
  with_real("kl clip", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* data = u.data<T>();
    dkfac::cpu::parallel_ranges(u.numel(), dkfac::cpu::kGrain,
                                [&](std::int64_t begin, std::int64_t end) {
                                  for (std::int64_t i = begin; i < end; ++i)
                                    data[i] = clipped(data[i], static_cast<T>(scale));
                                });
  });
}

}  // namespace dkfac::kfac::cpu
