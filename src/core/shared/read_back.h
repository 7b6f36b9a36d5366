#pragma once

#include <cstddef>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// Copies the elements of a contiguous tensor on any device to the host. Synchronizes, so use it
/// only on rare paths (failures) and in tests.
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
