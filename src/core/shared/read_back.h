#pragma once

#include <cstddef>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// The elements of a contiguous tensor, wherever it is. Waits for the device, so it is for what is
/// rare: failures, and tests.
template <class T>
[[nodiscard]] std::vector<T> read_back(Context& ctx, ConstTensorView x) {
  std::vector<T> out(static_cast<std::size_t>(x.numel()));
  if (out.empty()) return out;
  ctx.stream().synchronize();  // A copy to pageable memory would wait unwatched, in the driver.
  ops::copy(ctx, x.flat(), view_of(out.data(), {x.numel()}));
  ctx.stream().synchronize();
  return out;
}

}  // namespace dkfac
