#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend.h"
#include "core/checks.h"

namespace dkfac::ops {
namespace {

/// Requires table[v,w], i32 indices, and one row of w elements for each index.
void check_rows_by_index(std::string_view op, const Context& ctx, ConstTensorView table,
                         ConstTensorView indices, ConstTensorView rows, std::string_view name) {
  const std::pair<ConstTensorView, std::string_view> all[] = {
      {table, "table"}, {indices, "indices"}, {rows, name}};
  for (const auto& [view, what] : all) {
    check_device(op, what, view, ctx.device());
    check_contiguous(op, what, view);
  }
  check_dtype(op, "indices", indices, DType::i32);
  check_computing(op, "table", table);
  check_dtype(op, name, rows, table.dtype());
  check_matrix(op, "table", table);
  check_shape(op, name, rows, Shape{indices.numel(), table.dim(1)});
  DKFAC_CHECK(table.dim(0) > 0 || indices.numel() == 0, "[", op, "] table ", table.shape(),
              " has no rows for ", indices.numel(), " indices");
}

/// Checks host indices before anything is written.
void check_index_range(std::string_view op, ConstTensorView indices, std::int64_t count) {
  if (indices.device().is_cuda()) return;
  const auto* const index = indices.data<std::int32_t>();
  for (std::int64_t r = 0; r < indices.numel(); ++r)
    DKFAC_CHECK(index[r] >= 0 && index[r] < count, "[", op, "] index ", r, " is ", index[r],
                "; it must be in [0, ", count, "), the rows of the table");
}

}  // namespace

void gather_rows(Context& ctx, ConstTensorView table, ConstTensorView indices, TensorView out) {
  check_rows_by_index("gather_rows", ctx, table, indices, out, "out");
  if (indices.numel() == 0) return;
  check_index_range("gather_rows", indices, table.dim(0));
  kernels::gather_rows(ctx, table, indices, out);
}

void scatter_add_rows(Context& ctx, ConstTensorView rows, ConstTensorView indices,
                      TensorView table) {
  check_rows_by_index("scatter_add_rows", ctx, table, indices, rows, "rows");
  if (indices.numel() == 0) return;
  check_index_range("scatter_add_rows", indices, table.dim(0));
  kernels::scatter_add_rows(ctx, rows, indices, table);
}

}  // namespace dkfac::ops
