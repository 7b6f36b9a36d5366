#include <algorithm>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "core/shared/cuda/batched.h"
#include "core/shared/workers.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/factor_plan.h"

/// FactorForm::blocks
namespace dkfac::kfac {
namespace {

using ops::Trans;

/// Least operations of a thread.
constexpr double kBlocksGrain = 4e6;

template <class View>
View matrix_of(const View& x, std::int64_t i) {
  return x.slice(0, i, 1).reshape({x.dim(1), x.dim(2)});
}

/// Blocks [first, first + count), each `width` wide.
struct BlockRange {
  std::int64_t first = 0, count = 0, width = 0;
};

/// c[i] = a[i] b[i] for [count, rows, columns] each.
void multiply_all(Context& ctx, ConstTensorView a, ConstTensorView b, TensorView c) {
  if (c.device().is_cuda())
    return dkfac::cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, a, b, 0, c);
  for (std::int64_t i = 0; i < c.dim(0); ++i)
    ops::gemm(ctx, Trans::no, Trans::no, 1, matrix_of(a, i), matrix_of(b, i), 0, matrix_of(c, i));
}

/// x[n, rows, taps * piece] as [n, rows, taps, piece].
TensorView in_pieces(const TensorView& x, std::int64_t taps) {
  const std::int64_t piece = x.dim(2) / taps;
  return {x.raw(),
          x.dtype(),
          {x.dim(0), x.dim(1), taps, piece},
          {x.stride(0), x.stride(1), piece, 1},
          x.device()};
}

ConstTensorView inverses_of(const AppliedFactor& factor, const BlockRange& blocks) {
  return factor.inverse.slice(0, blocks.first, blocks.count)
      .slice(1, 0, blocks.width)
      .slice(2, 0, blocks.width);
}

/// Multiplies the rows of `blocks`.
void apply_rows(Context& ctx, const AppliedFactor& g, const BlockRange& blocks, const Columns& from,
                const Columns& to) {
  const std::int64_t b = g.inverse.dim(1), n = blocks.count, width = blocks.width;
  for_parts(from, to, [&](std::int64_t c, std::int64_t count) {
    const auto rows_of = [&](const Columns& v) -> TensorView {
      const TensorView x = v.columns(c, count).slice(0, blocks.first * b, (n - 1) * b + width);
      return {x.raw(), x.dtype(), {n, width, count}, {b * x.stride(0), x.stride(0), 1}, x.device()};
    };
    Scratch scratch(ctx);
    TensorView out = rows_of(to);
    if (to.is(from)) out = scratch.take_aligned({n, width, count}, out.dtype());
    multiply_all(ctx, inverses_of(g, blocks), rows_of(from), out);
    if (to.is(from)) ops::copy(ctx, out, rows_of(to));
  });
}

/// Multiplies the columns of `blocks`, all of them in `weight`.
void apply_columns(Context& ctx, const AppliedFactor& a, const BlockRange& blocks,
                   const Columns& from, const Columns& to) {
  const std::int64_t taps = a.taps, piece = blocks.width / taps, n = blocks.count;
  const auto pieces_of = [&](const Columns& v) -> TensorView {
    const TensorView& w = v.weight;
    return {w.slice(1, blocks.first * piece, 1).raw(),
            w.dtype(),
            {n, v.rows(), taps, piece},
            {piece, w.stride(0), w.dim(1) / taps, 1},
            w.device()};
  };
  Scratch scratch(ctx);
  /// The columns of v where they are, or memory for a copy.
  const auto operand = [&](const Columns& v, bool in_place) -> TensorView {
    const Shape shape{n, v.rows(), blocks.width};
    if (!in_place) return scratch.take_aligned(shape, v.weight.dtype());
    const TensorView x = pieces_of(v);
    return {x.raw(), x.dtype(), shape, {x.stride(0), x.stride(1), 1}, x.device()};
  };
  const bool whole = taps == 1, written = whole && !to.is(from);
  const TensorView x = operand(from, whole), y = operand(to, written);
  if (!whole) ops::copy(ctx, pieces_of(from), in_pieces(x, taps));
  multiply_all(ctx, x, inverses_of(a, blocks), y);
  if (!written) ops::copy(ctx, in_pieces(y, taps), pieces_of(to));
}

/// Multiplies columns [first, d): the last block, which may have the bias.
void apply_last_columns(Context& ctx, const AppliedFactor& a, std::int64_t first,
                        const Columns& from, const Columns& to) {
  const std::int64_t width = from.d() - first;
  Scratch scratch(ctx);
  const auto apart = [&] {
    return scratch.take_aligned({from.rows(), width}, from.weight.dtype());
  };
  const TensorView x = apart(), y = apart();
  for_parts(from, from, first, width, [&](std::int64_t c, std::int64_t n) {
    ops::copy(ctx, from.columns(c, n), x.slice(1, c - first, n));
  });
  const ConstTensorView last = inverses_of(a, {a.inverse.dim(0) - 1, 1, width});
  ops::gemm(ctx, Trans::no, Trans::no, 1, x, matrix_of(last, 0), 0, y);
  for_parts(to, to, first, width, [&](std::int64_t c, std::int64_t n) {
    ops::copy(ctx, y.slice(1, c - first, n), to.columns(c, n));
  });
}

/// Calls f(worker, blocks) for `count` blocks, `width` wide: all at once on a device, and on the
/// host one after the other on each thread, so that they stay in its cache.
template <class F>
void for_ranges(Context& ctx, std::int64_t count, std::int64_t width, double operations, F&& f) {
  if (count == 0) return;
  if (ctx.device().is_cuda()) return f(ctx, BlockRange{0, count, width});
  const auto parts = std::clamp<std::int64_t>(static_cast<std::int64_t>(operations / kBlocksGrain),
                                              1, std::min<std::int64_t>(threads(), count));
  dkfac::cpu::parallel_workers(ctx, static_cast<int>(parts), [&](Context& worker, int part) {
    for (std::int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i)
      f(worker, BlockRange{i, 1, width});
  });
}

class BlocksForm final : public FactorForm {
 public:
  constexpr BlocksForm() : FactorForm("blocks", 5, true) {}

  Costs costs(const FactorPlan& plan) const override { return matrices(plan, kFactorisation, 2); }
  const FactorForm* of_group() const override { return inverse; }
  bool factorise(Context& ctx, const Solvers& solvers, const Inverted& m,
                 TensorView out) const override {
    return inverse->factorise(ctx, solvers, m, out);
  }
  void write_clipped(Context& ctx, ConstTensorView s, ConstTensorView average,
                     TensorView out) const override {
    inverse->write_clipped(ctx, s, average, out);
  }
  void apply(Context& ctx, Side side, const AppliedFactor& factor, const Columns& from,
             const Columns& to) const override {
    const bool left = side == Side::left;
    const std::int64_t b = factor.inverse.dim(1), whole = left ? from.rows() : from.d();
    const std::int64_t full = (left ? whole : std::min(from.width(), to.width())) / b;
    const double operations = 2 * static_cast<double>(from.rows() * from.d() * b);
    for_ranges(ctx, full, b, operations, [&](Context& worker, const BlockRange& range) {
      (left ? apply_rows : apply_columns)(worker, factor, range, from, to);
    });
    if (full * b == whole) return;
    if (left) return apply_rows(ctx, factor, {full, 1, whole - full * b}, from, to);
    apply_last_columns(ctx, factor, full * b, from, to);
  }
};
constexpr BlocksForm kBlocksForm;

}  // namespace

const FactorForm* const FactorForm::blocks = &kBlocksForm;

}  // namespace dkfac::kfac
