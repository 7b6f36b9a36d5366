#include "kfac/inverse/apply_factor.h"

#include <algorithm>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "core/shared/exact_products.h"
#include "core/shared/workers.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/block_triangular.h"

namespace dkfac::kfac {
namespace {

using ops::Trans;

/// Calls f(first, count) for the parts of columns [first, first + count) on either side of the last
/// column of d, if that is stored separately in x or y.
template <class F>
void for_parts(const Columns& x, const Columns& y, std::int64_t first, std::int64_t count, F&& f) {
  const bool apart = !x.bias.empty() || !y.bias.empty();
  const std::int64_t last = x.d() - 1, in_weight = apart ? std::min(count, last - first) : count;
  if (in_weight > 0) f(first, in_weight);
  if (in_weight < count) f(last, std::int64_t{1});
}
template <class F>
void for_parts(const Columns& x, const Columns& y, F&& f) {
  for_parts(x, y, 0, x.d(), f);
}

ConstTensorView block(ConstTensorView m, std::int64_t row, std::int64_t rows, std::int64_t column,
                      std::int64_t columns) {
  return m.slice(0, row, rows).slice(1, column, columns);
}

void copy(Context& ctx, const Columns& from, const Columns& to) {
  for_parts(from, to, [&](std::int64_t c, std::int64_t n) {
    ops::copy(ctx, from.columns(c, n), to.columns(c, n));
  });
}

/// Products of `count` gradients of one shape: one after the other, or all in one call where there
/// is a batch.
class Products {
 public:
  Products(Context& ctx, std::size_t count, ProductBatch* batch)
      : ctx_(ctx), count_(count), batch_(batch) {}

  /// Computes c = a b + beta c for the operands of each gradient: {a, b, c} = of(i).
  template <class Operands>
  void multiply(double beta, Operands&& of) {
    if (count_ == 1) {
      const dkfac::cuda::MatrixProduct p = of(std::size_t{0});
      return ops::gemm(ctx_, Trans::no, Trans::no, 1, p.a, p.b, beta, p.c);
    }
    batch_->products.clear();
    for (std::size_t i = 0; i < count_; ++i) batch_->products.push_back(of(i));
    dkfac::cuda::gemm_each(ctx_, Trans::no, Trans::no, 1, batch_->products, beta,
                           batch_->addresses.at(calls_++));
  }

 private:
  Context& ctx_;
  std::size_t count_;
  ProductBatch* batch_;
  std::size_t calls_ = 0;
};

/// Computes to(i) = m(i) from(i) for all gradients i.
template <class Matrix, class From, class To>
void multiply_left(Products& products, Matrix&& m, From&& from, To&& to) {
  for_parts(from(0), to(0), [&](std::int64_t c, std::int64_t n) {
    products.multiply(0, [&](std::size_t i) {
      return dkfac::cuda::MatrixProduct{m(i), from(i).columns(c, n), to(i).columns(c, n)};
    });
  });
}
void multiply_left(Context& ctx, ConstTensorView m, const Columns& from, const Columns& to) {
  Products one(ctx, 1, nullptr);
  multiply_left(
      one, [&](std::size_t) { return m; }, [&](std::size_t) { return from; },
      [&](std::size_t) { return to; });
}

/// Computes to(i) = from(i) m(i) for all gradients i.
template <class Matrix, class From, class To>
void multiply_right(Products& products, Matrix&& m, From&& from, To&& to) {
  for_parts(to(0), to(0), [&](std::int64_t c, std::int64_t n) {
    for_parts(from(0), from(0), [&](std::int64_t k, std::int64_t depth) {
      products.multiply(k == 0 ? 0 : 1, [&](std::size_t i) {
        return dkfac::cuda::MatrixProduct{from(i).columns(k, depth), block(m(i), k, depth, c, n),
                                          to(i).columns(c, n)};
      });
    });
  });
}
void multiply_right(Context& ctx, ConstTensorView m, const Columns& from, const Columns& to) {
  Products one(ctx, 1, nullptr);
  multiply_right(
      one, [&](std::size_t) { return m; }, [&](std::size_t) { return from; },
      [&](std::size_t) { return to; });
}

/// Computes to = (L L')^-1 from for a blocked L, by two solves over blocks of rows. `between` is
/// scratch; `from` is overwritten.
void solve_left(Context& ctx, ConstTensorView l, const Columns& from, const Columns& between,
                const Columns& to) {
  const std::int64_t d = l.dim(0);
  for_parts(from, to, [&](std::int64_t c, std::int64_t n) {
    const TensorView x = from.columns(c, n), y = between.columns(c, n), z = to.columns(c, n);
    for_blocks(d, [&](std::int64_t k, std::int64_t rows) {
      const TensorView rest = x.slice(0, k, rows);
      if (k > 0)
        ops::gemm(ctx, Trans::no, Trans::no, -1, block(l, k, rows, 0, k), y.slice(0, 0, k), 1,
                  rest);
      ops::gemm(ctx, Trans::no, Trans::no, 1, block(l, k, rows, k, rows), rest, 0,
                y.slice(0, k, rows));
    });
    for_blocks_backward(d, [&](std::int64_t k, std::int64_t rows) {
      const TensorView rest = y.slice(0, k, rows);
      const std::int64_t below = k + rows;
      if (below < d)
        ops::gemm(ctx, Trans::yes, Trans::no, -1, block(l, below, d - below, k, rows),
                  z.slice(0, below, d - below), 1, rest);
      ops::gemm(ctx, Trans::yes, Trans::no, 1, block(l, k, rows, k, rows), rest, 0,
                z.slice(0, k, rows));
    });
  });
}

/// Computes to = from (L L')^-1, by two solves over blocks of columns; `between` is one matrix.
void solve_right(Context& ctx, ConstTensorView l, const Columns& from, TensorView between,
                 const Columns& to) {
  const std::int64_t d = l.dim(0);
  const auto split = [&](std::int64_t first, std::int64_t count, auto&& f) {
    for_parts(from, to, first, count, f);
  };
  for_blocks(d, [&](std::int64_t k, std::int64_t width) {
    const TensorView solved = between.slice(1, k, width);
    split(k, width, [&](std::int64_t c, std::int64_t n) {
      const TensorView rest = from.columns(c, n);
      if (k > 0)
        ops::gemm(ctx, Trans::no, Trans::yes, -1, between.slice(1, 0, k), block(l, c, n, 0, k), 1,
                  rest);
      ops::gemm(ctx, Trans::no, Trans::yes, 1, rest, block(l, k, width, c, n), c == k ? 0 : 1,
                solved);
    });
  });
  for_blocks_backward(d, [&](std::int64_t k, std::int64_t width) {
    const TensorView rest = between.slice(1, k, width);
    const std::int64_t after = k + width;
    if (after < d)
      split(after, d - after, [&](std::int64_t c, std::int64_t n) {
        ops::gemm(ctx, Trans::no, Trans::no, -1, to.columns(c, n), block(l, c, n, k, width), 1,
                  rest);
      });
    split(k, width, [&](std::int64_t c, std::int64_t n) {
      ops::gemm(ctx, Trans::no, Trans::no, 1, rest, block(l, k, width, c, n), 0, to.columns(c, n));
    });
  });
}

/// Calls f(worker, first, count) in parallel for parts of `n` independent right-hand sides. Whole
/// solves in parallel synchronize less than threads within each of their small products.
template <class F>
void for_parts_of_solve(Context& ctx, std::int64_t d, std::int64_t n, F&& f) {
  // Least size of a part that makes an efficient product, and least operations per thread.
  constexpr std::int64_t kLeast = 64, kGrain = 4'000'000;
  const std::int64_t worth = std::min(n / kLeast, 2 * n * d * d / kGrain);
  const std::int64_t parts = std::clamp<std::int64_t>(worth, 1, threads());
  dkfac::cpu::parallel_workers(ctx, static_cast<int>(parts), [&](Context& worker, int part) {
    const std::int64_t first = n * part / parts, end = n * (part + 1) / parts;
    f(worker, first, end - first);
  });
}

void solve_left_in_parts(Context& ctx, ConstTensorView l, const Columns& from,
                         const Columns& between, const Columns& to) {
  const auto solve = [&](Context& worker, std::int64_t first, std::int64_t count) {
    const auto part = [&](const Columns& v) { return Columns{v.columns(first, count), {}}; };
    solve_left(worker, l, part(from), part(between), part(to));
  };
  // Up to the first bias, which is stored separately.
  const std::int64_t width = std::min(from.width(), to.width());
  for_parts_of_solve(ctx, l.dim(0), width, solve);
  if (width < from.d()) solve(ctx, width, 1);
}

void solve_right_in_parts(Context& ctx, ConstTensorView l, const Columns& from, TensorView between,
                          const Columns& to) {
  for_parts_of_solve(ctx, l.dim(0), from.rows(),
                     [&](Context& worker, std::int64_t first, std::int64_t count) {
                       const auto part = [&](const Columns& v) {
                         return Columns{v.weight.slice(0, first, count),
                                        v.bias.empty() ? v.bias : v.bias.slice(0, first, count)};
                       };
                       solve_right(worker, l, part(from), between.slice(0, first, count), part(to));
                     });
}

// Along the rows of Y, (I - Y'Y) v is a small difference of large numbers that is then divided by
// the damping, so products here are not rounded to TF32.

/// Computes v <- (I - Y'Y) v / shift.
void project_left(Context& ctx, const AppliedFactor& g, const Columns& v) {
  const ExactProducts exact(ctx);
  Scratch scratch(ctx);
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    const TensorView x = v.columns(c, n);
    const TensorView product = scratch.take_aligned({g.inverse.dim(0), n}, x.dtype());
    ops::gemm(ctx, Trans::no, Trans::no, 1, g.inverse, x, 0, product);
    if (!x.device().is_cuda()) {
      ops::gemm(ctx, Trans::yes, Trans::no, -1 / g.shift, g.inverse, product, 1 / g.shift, x);
      return;
    }
    ops::gemm(ctx, Trans::yes, Trans::no, -1, g.inverse, product, 1, x);
    cuda::divide(ctx, x, g.device_shift);
  });
}

/// Computes v <- v (I - Y'Y) / shift.
void project_right(Context& ctx, const AppliedFactor& a, const Columns& v) {
  const ExactProducts exact(ctx);
  Scratch scratch(ctx);
  const TensorView product = scratch.take_aligned({v.rows(), a.inverse.dim(0)}, v.weight.dtype());
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    ops::gemm(ctx, Trans::no, Trans::yes, 1, v.columns(c, n), a.inverse.slice(1, c, n),
              c == 0 ? 0 : 1, product);
  });
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    const TensorView x = v.columns(c, n);
    const ConstTensorView y = a.inverse.slice(1, c, n);
    if (!x.device().is_cuda()) {
      ops::gemm(ctx, Trans::no, Trans::no, -1 / a.shift, product, y, 1 / a.shift, x);
      return;
    }
    ops::gemm(ctx, Trans::no, Trans::no, -1, product, y, 1, x);
    cuda::divide(ctx, x, a.device_shift);
  });
}

}  // namespace

void apply_left(Context& ctx, const AppliedFactor& g, const Columns& v) {
  if (g.form == FactorForm::low_rank) return project_left(ctx, g, v);
  Scratch scratch(ctx);
  const Columns spare{scratch.take_aligned({v.rows(), v.d()}, v.weight.dtype()), {}};
  if (g.form == FactorForm::cholesky) return solve_left_in_parts(ctx, g.inverse, v, spare, v);
  multiply_left(ctx, g.inverse, v, spare);
  copy(ctx, spare, v);
}

void apply_right(Context& ctx, const AppliedFactor& a, const Columns& v) {
  if (a.form == FactorForm::low_rank) return project_right(ctx, a, v);
  Scratch scratch(ctx);
  const TensorView between = scratch.take_aligned({v.rows(), v.d()}, v.weight.dtype());
  if (a.form == FactorForm::cholesky) return solve_right_in_parts(ctx, a.inverse, v, between, v);
  multiply_right(ctx, a.inverse, v, {between, {}});
  copy(ctx, {between, {}}, v);
}

void apply_inverses(Context& ctx, std::span<const FactoredGradient> gradients,
                    ProductBatch* batch) {
  const Columns& first = gradients.front().v;
  const std::int64_t rows = first.rows(), d = first.d();
  Scratch scratch(ctx);
  const TensorView memory = scratch.take_aligned(
      {static_cast<std::int64_t>(gradients.size()), rows, d}, first.weight.dtype());
  const auto between = [&](std::size_t i) {
    return Columns{memory.slice(0, static_cast<std::int64_t>(i), 1).reshape({rows, d}), {}};
  };
  const auto v = [&](std::size_t i) { return gradients[i].v; };
  Products products(ctx, gradients.size(), batch);
  multiply_left(
      products, [&](std::size_t i) { return gradients[i].g.inverse; }, v, between);
  multiply_right(
      products, [&](std::size_t i) { return gradients[i].a.inverse; }, between, v);
}

// Solves and multiplications alternate between v and scratch, so that the last writes v.
void apply_factors(Context& ctx, const AppliedFactor& a, const AppliedFactor& g, const Columns& v) {
  if (a.form == FactorForm::inverse && g.form == FactorForm::inverse) {
    const FactoredGradient one{a, g, v};
    return apply_inverses(ctx, {&one, 1}, nullptr);
  }
  Scratch scratch(ctx);
  const auto take = [&] { return scratch.take_aligned({v.rows(), v.d()}, v.weight.dtype()); };
  if (a.form == FactorForm::low_rank) {
    project_right(ctx, a, v);
    return apply_left(ctx, g, v);
  }
  const Columns between{take(), {}};
  if (a.form == FactorForm::cholesky) {
    if (g.form != FactorForm::inverse) {
      solve_right_in_parts(ctx, a.inverse, v, between.weight, v);
      return apply_left(ctx, g, v);
    }
    multiply_left(ctx, g.inverse, v, between);
    return solve_right_in_parts(ctx, a.inverse, between, take(), v);
  }
  multiply_right(ctx, a.inverse, v, between);
  if (g.form == FactorForm::cholesky)
    return solve_left_in_parts(ctx, g.inverse, between, {take(), {}}, v);
  copy(ctx, between, v);
  project_left(ctx, g, v);
}

}  // namespace dkfac::kfac
