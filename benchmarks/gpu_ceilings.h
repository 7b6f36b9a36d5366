#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/cuda/linalg16.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

/// What the device at hand reaches on one large f16 product with f32 sums, and on one large copy.
struct Ceilings {
  double gemm_tflops = 0;
  double copy_gb_per_s = 0;  ///< Bytes read and written.
};

/// Medians of `repeats`, on squares of width n with random elements (zeros are faster).
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
  const auto median_ms = [&](auto work) {
    std::vector<double> all;
    for (int i = -1; i < repeats; ++i) {  // The first one warms up.
      ctx.stream().synchronize();
      const auto start = std::chrono::steady_clock::now();
      work();
      ctx.stream().synchronize();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      if (i >= 0) all.push_back(took.count());
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  };
  const double product =
      median_ms([&] { cuda::gemm16(ctx, ops::Trans::no, ops::Trans::yes, 1, a, a, 0, c); });
  const double copy = median_ms([&] { ops::copy(ctx, c, to); });
  return {2 * std::pow(static_cast<double>(n), 3) / product * 1e-9,
          2 * static_cast<double>(c.bytes()) / copy * 1e-6};
}
