#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/precondition/backend_length.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac::cpu {

void set_length_factors(Context&, StepLength rule, ConstTensorView products, TensorView lengths,
                        TensorView factors) {
  store_length_factors(rule, products.data<double>(), lengths.data<double>(),
                       factors.data<double>());
}

void set_length(Context&, ConstTensorView factors, ConstTensorView v, TensorView u) {
  const double* f = factors.data<double>();
  with_real("step length", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* out = u.data<T>();
    const T* in = v.data<T>();
    const auto direction = static_cast<T>(f[0]), gradient = static_cast<T>(f[1]);
    dkfac::cpu::parallel_ranges(
        u.numel(), dkfac::cpu::kGrain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            out[i] = gradient * in[i] + (direction == 0 ? T{0} : direction * out[i]);
        });
  });
}

}  // namespace dkfac::kfac::cpu
