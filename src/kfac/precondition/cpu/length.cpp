#include <algorithm>

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/precondition/backend_length.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac::cpu {

void set_length(Context&, StepLength rule, ConstTensorView products, ConstTensorView v,
                TensorView u) {
  const double* p = products.data<double>();
  const double factor = length_factor(rule, {p[0] + p[3], p[1] + p[4], p[2] + p[5]});
  with_real("step length", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* out = u.data<T>();
    const T* in = v.data<T>();
    dkfac::cpu::parallel_ranges(u.numel(), dkfac::cpu::kGrain,
                                [&](std::int64_t begin, std::int64_t end) {
                                  if (factor == 0) std::copy(in + begin, in + end, out + begin);
                                  for (std::int64_t i = begin; factor != 0 && i < end; ++i)
                                    out[i] *= static_cast<T>(factor);
                                });
  });
}

}  // namespace dkfac::kfac::cpu
