#include <algorithm>
#include <cstdint>

#include "core/backend_linalg.h"
#include "core/cuda/gram.h"
#include "core/cuda/gram_functors.h"
#include "core/cuda/patch_cost.h"
#include "core/cuda/products.h"
#include "core/patch_shapes.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using element::Type;
using element::visit_computing;
using ops::PatchMethod;
using ops::PatchSpec;

/// Rows of one panel of patches with `row` elements each; all panels of `rows` have similar sizes.
/// 256 MiB hold thousands of rows even of the widest patches, so products outweigh the pass over c
/// that each panel costs, and are a small part of any device's memory.
std::int64_t panel_rows(std::int64_t rows, std::int64_t row, DType dtype) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const std::int64_t most =
      std::max<std::int64_t>(1, kBytes / (row * static_cast<std::int64_t>(size_of(dtype))));
  const std::int64_t panels = (rows + most - 1) / most;
  return (rows + panels - 1) / panels;
}

/// Row stride of a panel in elements: rows are aligned to 16 bytes, which speeds up products.
std::int64_t padded_width(std::int64_t width, DType dtype) {
  const std::int64_t in_word = 16 / static_cast<std::int64_t>(size_of(dtype));
  return (width + in_word - 1) / in_word * in_word;
}

/// Calls f(panel) for consecutive panels of at most `most` patches.
template <class F>
void for_each_panel(Context& ctx, const PatchSpec& s, std::int64_t groups, std::int64_t most,
                    ConstTensorView x, F&& f) {
  const std::int64_t rows = s.rows(), row = padded_width(s.width(), x.dtype());
  const std::int64_t height = std::min(most, panel_rows(rows, row, x.dtype()));
  Scratch scratch(ctx);
  const TensorView panel = scratch.take({height, row}, x.dtype()).slice(1, 0, s.width());
  for (std::int64_t first = 0; first < rows; first += height) {
    const TensorView patches = panel.slice(0, 0, std::min(height, rows - first));
    fill_panel(ctx, s, groups, x, first, patches);
    f(patches);
  }
}

void add_panels(Context& ctx, const PatchSpec& s, double alpha, ConstTensorView x, double beta,
                TensorView c) {
  for_each_panel(ctx, s, 1, s.rows(), x, [&](TensorView patches) {
    add_rows(ctx, alpha, patches, beta, c);
    beta = 1;
  });
}

void gram_of_one(Context& ctx, const PatchSpec& s, double alpha, ConstTensorView x, double beta,
                 TensorView c, PatchMethod method) {
  const std::int64_t rows = s.rows(), width = s.width();
  if (dkfac::detail::is_plain(s)) return gram(ctx, alpha, dkfac::detail::plain_rows(s, x), beta, c);
  if (dkfac::detail::is_whole(s)) return gram(ctx, alpha, x.reshape({rows, width}), beta, c);
  if (width > 0) {
    if (method == PatchMethod::automatic) method = cheapest_method(s, x.dtype());
    method == PatchMethod::offsets ? offset_gram(ctx, s, alpha, x, beta, c)
                                   : add_panels(ctx, s, alpha, x, beta, c);
  }
  if (c.dim(0) > width) set_corner(ctx, alpha, rows, beta, c);
}

/// Computes one product per group of columns of the same panels.
void gram_of_groups(Context& ctx, const PatchSpec& s, double alpha, ConstTensorView x, double beta,
                    TensorView c) {
  const std::int64_t groups = c.dim(0), d = c.dim(1), width = s.width() / groups;
  Scratch scratch(ctx);
  const TensorView products = scratch.take({groups, width, width}, c.dtype());
  const TensorView sums = scratch.take({groups * width}, c.dtype());
  double before = 0;
  const auto add = [&](TensorView patches) {
    const TensorView columns = batch_from(patches, groups, width, patches.dim(0), width,
                                          padded_width(s.width(), x.dtype()));
    multiply_batches(ctx, columns, columns, before, products);
    if (d > width) column_sums(ctx, 1, patches, before, sums);
    before = 1;
  };
  if (width > 0) for_each_panel(ctx, s, groups, kRunningSum, x, add);
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    for_each_2d(
        ctx.stream(), groups * d, d,
        StoreGroups<T>{products.data<T>(), sums.data<T>(), width, d, c.data<T>(), c.stride(0),
                       c.stride(1), static_cast<T>(alpha), static_cast<T>(beta),
                       static_cast<T>(alpha * static_cast<double>(s.rows()))});
  });
}

}  // namespace

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c, PatchMethod method) {
  if (c.ndim() == 2) return gram_of_one(ctx, spec, alpha, x, beta, c, method);
  if (c.dim(0) == 1) return gram_of_one(ctx, spec, alpha, x, beta, matrix_at(c, 0), method);
  gram_of_groups(ctx, spec, alpha, x, beta, c);
}

}  // namespace dkfac::cuda
