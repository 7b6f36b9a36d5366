#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "support/fisher.h"
#include "support/on_device.h"

namespace dkfac::testing {

/// The same numbers on the host and on the device: arguments of a function and of its reference.
struct BothPlaces {
  Tensor host, device;

  BothPlaces(Context& cpu, Context& ctx, const fisher::Vector& x, Shape shape, DType dtype)
      : host(fisher::tensor(cpu, x, shape, dtype)), device(to_device(ctx, host)) {}
  [[nodiscard]] ConstTensorView in(const Context& ctx) const {
    return ctx.device().is_cuda() ? device.view() : host.view();
  }
};

/// Lower triangles of f[d,d] or f[groups,d,d], row by row, on the host.
inline fisher::Vector lower_triangles(Context& ctx, ConstTensorView f) {
  const std::vector<double> all = device_values(ctx, f);
  const std::int64_t d = f.dim(f.ndim() - 1);
  fisher::Vector out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (at % d <= at / d % d) out.push_back(all[i]);
  }
  return out;
}

}  // namespace dkfac::testing
