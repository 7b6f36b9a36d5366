#include "nn/backends/activate.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/cuda/elementwise_functors.h"
#include "nn/backends/smooth.h"
#include "vectorized.h"

namespace dkfac::nn::cpu {
namespace {

/// y = f(x), or f(x, z) for a binary f.
template <class T, class F>
void map(Context&, const T* x, const T* z, T* y, std::int64_t n, F f) {
  using C = Computed<T>;
  parallel_for(n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    dkfac::cpu::vectorized([=] {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) {
        if constexpr (std::is_invocable_v<F, C, C>) {
          y[i] = store<T>(f(load(x[i]), load(z[i])));
        } else {
          y[i] = store<T>(f(load(x[i])));
        }
      }
    });
  });
}

using cuda::Activate;
using cuda::ActivateBackward;
using cuda::Add;
using cuda::Mix;
using cuda::SmoothBackward;
using cuda::Times;

}  // namespace

#include "nn/backends/map_kernels.inc"

void repeat_row(Context&, ConstTensorView row, TensorView y) {
  const std::int64_t c = row.numel();
  if (y.numel() == 0) return;
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    const Computed<T>* from = row.data<Computed<T>>();
    T* to = y.data<T>();
    parallel_for(y.numel() / c, grain_of(c), [=](std::int64_t begin, std::int64_t end) {
      dkfac::cpu::vectorized([=] {
        for (std::int64_t r = begin; r < end; ++r) {
#pragma GCC ivdep
          for (std::int64_t j = 0; j < c; ++j) to[r * c + j] = store<T>(from[j]);
        }
      });
    });
  });
}

}  // namespace dkfac::nn::cpu
