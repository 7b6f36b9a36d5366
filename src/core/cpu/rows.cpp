#include <algorithm>
#include <cstdint>

#include "core/backend.h"
#include "core/shared/element.h"

namespace dkfac::cpu {

void gather_rows(Context&, ConstTensorView table, ConstTensorView indices, TensorView out) {
  element::visit_computing(table.dtype(), [&]<class T>(element::Type<T>) {
    const std::int64_t width = table.dim(1);
    const auto* const index = indices.data<std::int32_t>();
    for (std::int64_t r = 0; r < indices.numel(); ++r)
      std::copy_n(table.data<T>() + index[r] * width, width, out.data<T>() + r * width);
  });
}

void scatter_add_rows(Context&, ConstTensorView rows, ConstTensorView indices, TensorView table) {
  element::visit_computing(table.dtype(), [&]<class T>(element::Type<T>) {
    const std::int64_t width = table.dim(1);
    const auto* const index = indices.data<std::int32_t>();
    for (std::int64_t r = 0; r < indices.numel(); ++r) {
      const T* const from = rows.data<T>() + r * width;
      T* const to = table.data<T>() + index[r] * width;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < width; ++c) to[c] += from[c];
    }
  });
}

}  // namespace dkfac::cpu
