#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"
#include "dkfac/core/parallel.h"

#include "core/backend.h"
#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cpu/offset_gram.h"
#include "core/cpu/patches.h"
#include "core/cpu/workers.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// c = alpha * [x 1]'[x 1] + beta*c but for the corner; whether there is a bias shows in c.
void add_rows(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1);
  if (width == 0) return;
  ops::syrk(ctx, alpha, x, beta, c.slice(0, 0, width).slice(1, 0, width));
  if (c.dim(0) == width) return;
  const TensorView sums = c.slice(0, width, 1).slice(1, 0, width);
  col_sum(ctx, alpha, x, beta, sums.reshape({width}));
}

/// Rows of one panel: what fits half of a common second-level cache, but enough for the products
/// to outweigh one pass over c.
std::int64_t panel_rows(const PatchSpec& s, DType dtype) {
  constexpr std::int64_t kBytes = 512 * 1024, kLeast = 384;
  const std::int64_t row_bytes = s.width() * static_cast<std::int64_t>(size_of(dtype));
  return std::max(kBytes / row_bytes, kLeast);
}

/// The same for the patches [first, last) of x, panel by panel.
void add_patches(Context& ctx, const PatchSpec& s, double alpha, ConstTensorView x,
                 std::int64_t first, std::int64_t last, double beta, TensorView c) {
  Scratch scratch(ctx);
  const std::int64_t step = std::min(panel_rows(s, x.dtype()), last - first);
  const TensorView panel = scratch.take({step, s.width()}, x.dtype());
  for (; first < last; first += step, beta = 1) {
    const TensorView patches = panel.slice(0, 0, std::min(step, last - first));
    fill_panel(s, x, first, patches);
    add_rows(ctx, alpha, patches, beta, c);
  }
}

/// Parts of a sum over `rows`, each with a matrix of its own to sum into: one thread per part beats
/// threads inside every product while those matrices are small. 1 where they are not.
int parts_of(std::int64_t rows, TensorView c) {
  constexpr std::int64_t kRowsPerPart = 512, kBytes = 64 << 20;
  const std::int64_t bytes = c.numel() * static_cast<std::int64_t>(size_of(c.dtype()));
  if (threads() * bytes > kBytes) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(rows / kRowsPerPart, 1, threads()));
}

/// Lower triangle of c += x.
void add_lower(ConstTensorView x, TensorView c) {
  with_real(c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto from = matrix_of<T>(x);
    const auto to = matrix_of<T>(c);
    const std::int64_t d = c.dim(0);
    parallel_ranges(d, kGrain / d + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) to(i, j) += from(i, j);
      }
    });
  });
}

/// add(worker, first, last, beta, c) over a partition of [0, rows): the first part into c, the
/// others into matrices that are added to it.
template <class Add>
void add_in_parts(Context& ctx, std::int64_t rows, double beta, TensorView c, Add&& add) {
  const int parts = parts_of(rows, c);
  Scratch scratch(ctx);
  const std::int64_t d = c.dim(0);
  const TensorView sums = scratch.take({parts - 1, d, d}, c.dtype());
  const auto part_sum = [&](int part) { return sums.slice(0, part - 1, 1).reshape({d, d}); };
  // With a bias nobody else writes their corners.
  for (int part = 1; part < parts; ++part) {
    ops::fill(ctx, part_sum(part).slice(0, d - 1, 1).slice(1, d - 1, 1), 0);
  }
  parallel_workers(ctx, parts, [&](Context& worker, int part) {
    const std::int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
    part == 0 ? add(worker, first, last, beta, c) : add(worker, first, last, 0.0, part_sum(part));
  });
  for (int part = 1; part < parts; ++part) add_lower(part_sum(part), c);
}

/// The element that counts the rows, once and not panel by panel, so that it is exact.
void set_corner(double alpha, std::int64_t rows, double beta, TensorView c) {
  with_real(c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T& corner = matrix_of<T>(c)(c.dim(0) - 1, c.dim(0) - 1);
    const double before = beta == 0 ? 0 : beta * static_cast<double>(corner);
    corner = static_cast<T>(alpha * static_cast<double>(rows) + before);
  });
}

/// A 1x1 kernel that visits every pixel once: the patches are the tensor as it lies.
bool is_plain(const PatchSpec& s) {
  return s.layout == Layout::nhwc && s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 &&
         s.stride_w == 1 && s.padded_h() == s.h && s.padded_w() == s.w;
}

}  // namespace

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1), rows = x.dim(0);
  const auto add = [&](Context& worker, std::int64_t first, std::int64_t last, double scale,
                       TensorView sum) {
    add_rows(worker, alpha, x.slice(0, first, last - first), scale, sum);
  };
  if (width > 0) add_in_parts(ctx, rows, beta, c, add);
  if (c.dim(0) > width) set_corner(alpha, rows, beta, c);
}

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c) {
  const std::int64_t rows = spec.rows(), width = spec.width();
  if (is_plain(spec)) return gram(ctx, alpha, x.reshape({rows, width}), beta, c);
  const auto add = [&](Context& worker, std::int64_t first, std::int64_t last, double scale,
                       TensorView sum) {
    add_patches(worker, spec, alpha, x, first, last, scale, sum);
  };
  if (ctx.backend() == Backend::fast && prefers_offsets(spec)) {
    offset_gram(ctx, spec, alpha, x, beta, c);
  } else if (width > 0) {
    add_in_parts(ctx, rows, beta, c, add);
  }
  if (c.dim(0) > width) set_corner(alpha, rows, beta, c);
}

}  // namespace dkfac::cpu
