#include <cstdint>
#include <limits>

#include "core/backend.h"
#include "core/cuda/rows_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

RowIndices row_indices(ConstTensorView indices, ConstTensorView table) {
  return {indices.data<std::int32_t>(), indices.numel(), table.dim(0)};
}

}  // namespace

void gather_rows(Context& ctx, ConstTensorView table, ConstTensorView indices, TensorView out) {
  element::visit_computing(table.dtype(), [&]<class T>(element::Type<T>) {
    for_each_2d(
        ctx.stream(), indices.numel(), table.dim(1),
        GatherRow<T>{row_indices(indices, table), table.data<T>(), out.data<T>(), table.dim(1)});
  });
}

void scatter_add_rows(Context& ctx, ConstTensorView rows, ConstTensorView indices,
                      TensorView table) {
  const std::int64_t count = indices.numel();
  DKFAC_CHECK(count < std::numeric_limits<std::int32_t>::max(), "[scatter_add_rows] ", count,
              " rows are too many; there may be 2^31 - 2");
  Scratch scratch(ctx);
  auto* const first = scratch.take({count}, DType::i32).data<std::int32_t>();
  auto* const next = scratch.take({count}, DType::i32).data<std::int32_t>();
  const RowIndices by = row_indices(indices, table);
  for_each(ctx.stream(), count, LinkRows{by, first, next});
  element::visit_computing(table.dtype(), [&]<class T>(element::Type<T>) {
    for_each_2d(ctx.stream(), count, table.dim(1),
                ScatterAddRow<T>{by, first, next, rows.data<T>(), table.data<T>(), table.dim(1)});
  });
}

}  // namespace dkfac::cuda
