#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

#include "core/shared/cuda/linalg16.h"
#include "program.h"

/// Measured ceilings of the device: one large f16 product with f32 accumulation, one large copy.
struct Ceilings {
  double gemm_tflops = 0;
  double copy_gb_per_s = 0;  ///< Bytes read and written.
};

/// Measures the medians of `repeats` on square matrices of width n with random elements (zeros are
/// faster).
inline Ceilings measure_ceilings(std::int64_t n, int repeats) {
  using namespace dkfac;
  Context ctx(Device::cuda()), host;
  Random random(1);
  Tensor some = Tensor::empty(host, {n, n});
  fill_uniform(some, -1, 1, random);
  Tensor narrow = Tensor::empty(host, some.shape(), DType::f16);
  ops::cast(host, some, narrow);
  Tensor a = Tensor::copy_of(ctx, narrow), c = Tensor::zeros(ctx, {n, n}),
         to = Tensor::zeros(ctx, {n, n});
  const TensorView one = a.view().reshape({1, n, n}), result = c.view().reshape({1, n, n});
  const double product = median_ms(ctx, {repeats}, [&] {
    cuda::gemm16_batched(ctx, ops::Trans::no, ops::Trans::yes, 1, one, one, 0, result);
  });
  const double copy = median_ms(ctx, {repeats}, [&] { ops::copy(ctx, c, to); });
  return {2 * std::pow(static_cast<double>(n), 3) / product * 1e-9,
          2 * static_cast<double>(c.bytes()) / copy * 1e-6};
}
