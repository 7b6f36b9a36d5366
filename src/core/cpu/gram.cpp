#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend.h"
#include "core/backend_linalg.h"
#include "core/cpu/lane_gram.h"
#include "core/cpu/matrix.h"
#include "core/cpu/offset_gram.h"
#include "core/cpu/patch_method.h"
#include "core/cpu/patches.h"
#include "core/cpu/symmetric_product.h"
#include "core/patch_shapes.h"
#include "core/shared/parallel.h"
#include "core/shared/workers.h"

namespace dkfac::cpu {
namespace {

using ops::PatchMethod;
using ops::PatchSpec;

/// Symmetric product on one thread or on all threads.
using Syrk = void (*)(Context&, double, ConstTensorView, double, TensorView);

/// c = alpha * [x 1]'[x 1] + beta*c except the corner; the width of c determines if there is a
/// bias.
void add_rows(Context& ctx, Syrk syrk, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1);
  if (width == 0) return;
  syrk(ctx, alpha, x, beta, c.slice(0, 0, width).slice(1, 0, width));
  if (c.dim(0) == width) return;
  const TensorView sums = c.slice(0, width, 1).slice(1, 0, width);
  col_sum(ctx, alpha, x, beta, sums.reshape({width}));
}

/// Rows of one panel of `rows` in total. A panel fits half of a common L2 cache, but has enough
/// rows for products to outweigh one pass over c; all panels have similar sizes.
std::int64_t panel_rows(const PatchSpec& s, DType dtype, std::int64_t rows) {
  constexpr std::int64_t kBytes = 512 * 1024, kLeast = 512;
  const std::int64_t row_bytes = s.width() * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t most = std::max(kBytes / row_bytes, kLeast);
  const std::int64_t panels = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return (rows + panels - 1) / panels;
}

/// Runs add_rows() for the patches [first, last) of x, panel by panel.
void add_patches(Context& ctx, Syrk syrk, const PatchSpec& s, double alpha, ConstTensorView x,
                 std::int64_t first, std::int64_t last, double beta, TensorView c) {
  Scratch scratch(ctx);
  const std::int64_t height = panel_rows(s, x.dtype(), last - first);
  const TensorView panel = scratch.take({height, s.width()}, x.dtype());
  for (; first < last; first += height, beta = 1) {
    const TensorView patches = panel.slice(0, 0, std::min(height, last - first));
    fill_panel(s, x, first, patches);
    add_rows(ctx, syrk, alpha, patches, beta, c);
  }
}

/// Number of concurrent parts of a sum over `rows`. Each part has its own accumulator, which is
/// cheap while these are small; otherwise 1, and all threads work on one product.
int parts_of(std::int64_t rows, TensorView c) {
  constexpr std::int64_t kRowsPerPart = 512, kWidest = 192;
  if (c.dim(0) > kWidest) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(rows / kRowsPerPart, 1, threads()));
}

/// Calls f(row, end) for the rows of the lower triangle of c, in parallel, where `end` follows
/// their last element. Without with_corner the last element, which a bias sets itself, is left out.
template <class F>
void for_lower(TensorView c, bool with_corner, F&& f) {
  const std::int64_t d = c.dim(0);
  parallel_ranges(d, kGrain / d + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i, i + 1 < d || with_corner ? i + 1 : i);
  });
}

/// Lower triangle of c += x.
template <class From, class To>
void add_lower(ConstTensorView x, bool with_corner, TensorView c) {
  const auto from = matrix_of<From>(x);
  const auto to = matrix_of<To>(c);
  for_lower(c, with_corner, [&](std::int64_t i, std::int64_t last) {
    for (std::int64_t j = 0; j < last; ++j) to(i, j) += static_cast<To>(from(i, j));
  });
}

/// Lower triangle of c = sum + beta*c.
void store_lower(ConstTensorView sum, double beta, bool with_corner, TensorView c) {
  const auto from = matrix_of<double>(sum);
  const auto to = matrix_of<float>(c);
  for_lower(c, with_corner, [&](std::int64_t i, std::int64_t last) {
    for (std::int64_t j = 0; j < last; ++j) {
      const double before = beta == 0 ? 0 : beta * static_cast<double>(to(i, j));
      to(i, j) = static_cast<float>(from(i, j) + before);
    }
  });
}

/// Maximal rows of one product in f32. A running sum of n equal terms errs by up to n/2 eps;
/// products of this many rows outweigh the pass over their result that adds them in f64.
std::int64_t most_rows(TensorView c) {
  constexpr std::int64_t kNarrow = 192;
  return c.dim(0) <= kNarrow ? 1024 : 4096;
}

/// Calls add(first, last, beta, c) for pieces of [first, last) and adds their results in f64.
template <class Add>
void add_in_pieces(Context& ctx, std::int64_t first, std::int64_t last, double beta,
                   bool with_corner, TensorView c, Add&& add) {
  const std::int64_t rows = last - first, most = most_rows(c);
  if (c.dtype() != DType::f32 || rows <= most) return add(first, last, beta, c);
  Scratch scratch(ctx);
  const TensorView piece = scratch.take(c.shape(), DType::f32);
  const TensorView sum = scratch.take(c.shape(), DType::f64);
  fill(ctx, sum, 0);
  const std::int64_t pieces = (rows + most - 1) / most;
  for (std::int64_t i = 0; i < pieces; ++i) {
    add(first + rows * i / pieces, first + rows * (i + 1) / pieces, 0.0, piece);
    add_lower<float, double>(piece, with_corner, sum);
  }
  store_lower(sum, beta, with_corner, c);
}

/// Calls add(worker, syrk, first, last, beta, c) over a partition of [0, rows): the first part into
/// c, the others into matrices that are added to it. The corner of a bias is not accessed.
template <class Add>
void add_in_parts(Context& ctx, std::int64_t rows, bool bias, double beta, TensorView c,
                  Add&& add) {
  const auto run = [&](Context& worker, Syrk syrk, std::int64_t first, std::int64_t last,
                       double scale, TensorView sum) {
    add_in_pieces(worker, first, last, scale, !bias, sum,
                  [&](std::int64_t from, std::int64_t to, double piece_beta, TensorView piece) {
                    add(worker, syrk, from, to, piece_beta, piece);
                  });
  };
  const int parts = parts_of(rows, c);
  if (parts == 1) return run(ctx, symmetric_product, 0, rows, beta, c);
  Scratch scratch(ctx);
  const std::int64_t d = c.dim(0);
  const TensorView sums = scratch.take({parts - 1, d, d}, c.dtype());
  const auto part_sum = [&](int part) { return sums.slice(0, part - 1, 1).reshape({d, d}); };
  parallel_workers(ctx, parts, [&](Context& worker, int part) {
    const std::int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
    const Syrk syrk = symmetric_product_alone;
    part == 0 ? run(worker, syrk, first, last, beta, c)
              : run(worker, syrk, first, last, 0.0, part_sum(part));
  });
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    for (int part = 1; part < parts; ++part) add_lower<T, T>(part_sum(part), !bias, c);
  });
}

/// Sets the element that counts the rows, once and not panel by panel, so that it is exact.
void set_corner(double alpha, std::int64_t rows, double beta, TensorView c) {
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    T& corner = matrix_of<T>(c)(c.dim(0) - 1, c.dim(0) - 1);
    const double before = beta == 0 ? 0 : beta * static_cast<double>(corner);
    corner = static_cast<T>(alpha * static_cast<double>(rows) + before);
  });
}

void patch_gram_of_one(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x,
                       double beta, TensorView c, PatchMethod method = PatchMethod::automatic) {
  const std::int64_t rows = spec.rows(), width = spec.width();
  if (method == PatchMethod::automatic) method = fastest_method(ctx.backend(), spec, x.dtype());
  if (detail::is_plain(spec)) return gram(ctx, alpha, detail::plain_rows(spec, x), beta, c);
  if (detail::is_whole(spec)) return gram(ctx, alpha, x.reshape({rows, width}), beta, c);
  const auto add = [&](Context& worker, Syrk syrk, std::int64_t first, std::int64_t last,
                       double scale, TensorView sum) {
    add_patches(worker, syrk, spec, alpha, x, first, last, scale, sum);
  };
  if (method != PatchMethod::panels) {
    offset_gram(ctx, spec, alpha, x, beta, c, method == PatchMethod::correlation);
  } else if (width > 0) {
    add_in_parts(ctx, rows, c.dim(0) > width, beta, c, add);
  }
  if (c.dim(0) > width) set_corner(alpha, rows, beta, c);
}

}  // namespace

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1), rows = x.dim(0);
  const auto add = [&](Context& worker, Syrk syrk, std::int64_t first, std::int64_t last,
                       double scale, TensorView sum) {
    add_rows(worker, syrk, alpha, x.slice(0, first, last - first), scale, sum);
  };
  if (width > 0) add_in_parts(ctx, rows, c.dim(0) > width, beta, c, add);
  if (c.dim(0) > width) set_corner(alpha, rows, beta, c);
}

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c, PatchMethod method) {
  if (c.ndim() == 2) return patch_gram_of_one(ctx, spec, alpha, x, beta, c, method);
  const std::int64_t groups = c.dim(0), d = c.dim(1);
  PatchSpec one = spec;
  one.c = spec.c / groups;
  one.x_c = spec.x_channels();
  const bool lanes = prefers_lanes(groups, d);
  if (lanes) lane_gram(ctx, spec, alpha, x, beta, c);
  for (std::int64_t i = 0; i < groups; ++i, one.first_c += one.c) {
    if (!lanes) {
      patch_gram_of_one(ctx, one, alpha, x, beta, matrix_at(c, i));
    } else if (d > one.width()) {
      set_corner(alpha, spec.rows(), beta, matrix_at(c, i));
    }
  }
}

}  // namespace dkfac::cpu
