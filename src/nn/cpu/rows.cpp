#include "nn/cpu/rows.h"

#include <algorithm>

#include "nn/cpu/parallel.h"
#include "nn/dtype.h"

namespace dkfac::nn::cpu {

void repeat_row(ConstTensorView row, TensorView y) {
  const std::int64_t c = row.numel();
  if (y.numel() == 0) return;
  for_dtype(y.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* from = row.data<T>();
    T* to = y.data<T>();
    parallel_for(y.numel() / c, grain_of(c), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) std::copy_n(from, c, to + r * c);
    });
  });
}

void add(ConstTensorView x, ConstTensorView z, TensorView y) {
  for_dtype(y.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* a = x.data<T>();
    const T* b = z.data<T>();
    T* out = y.data<T>();
    parallel_for(y.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = a[i] + b[i];
    });
  });
}

void scale(TensorView x, double factor) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    T* values = x.data<T>();
    const T f = static_cast<T>(factor);
    parallel_for(x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] *= f;
    });
  });
}

}  // namespace dkfac::nn::cpu
