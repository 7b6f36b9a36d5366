#include "kfac/inverse/split_inverse.h"

#include <algorithm>
#include <vector>

#include "dkfac/core/ops.h"

#include "core/shared/exact_products.h"
#include "core/shared/index.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/split_columns.h"

namespace dkfac::kfac {
namespace {

using ops::Trans;

std::vector<ColumnBlock> blocks_of(std::int64_t d, int ranks) {
  std::vector<ColumnBlock> blocks;
  for_columns(d, ranks, [&](const ColumnBlock& block) { blocks.push_back(block); });
  return blocks;
}

/// Elements of the blocks of each rank, or the columns of them.
struct Shares {
  std::vector<std::int64_t> numel, columns;
};
Shares shares_of(std::span<const ColumnBlock> blocks, int ranks) {
  Shares shares{std::vector<std::int64_t>(index_of(ranks)),
                std::vector<std::int64_t>(index_of(ranks))};
  for (const ColumnBlock& block : blocks) {
    shares.numel[index_of(block.rank)] += block.numel();
    shares.columns[index_of(block.rank)] += block.width;
  }
  return shares;
}

class SplitInversion {
 public:
  SplitInversion(Context& ctx, comm::Communicator& group, int root, const SplitMatrix& m)
      : ctx_(ctx),
        exact_(ctx),
        group_(group),
        root_(root),
        m_(m),
        blocks_(blocks_of(m.dim, group.size())),
        shares_(shares_of(blocks_, group.size())),
        scratch_(ctx) {
    const ColumnBlock& last = blocks_.back();
    triangle_ = scratch_.take({last.start + last.numel()}, m.dtype);
    const std::int64_t width = blocks_.front().width;
    diagonal_ = scratch_.take({width * width}, m.dtype);
    own_ = scratch_.take({m.dim, std::max(width, columns_here())}, m.dtype);
  }

  /// Sends each rank its columns; `out` is scratch.
  void distribute(TensorView out) {
    if (here() == root_ && m_.average.empty()) {
      ops::fill(ctx_, out, 0);
    } else if (here() == root_) {
      ops::unpack_lower(ctx_, m_.average, out, ops::Upper::untouched);
      kernels::add_damping(ctx_, m_.damping, out);
    }
    for_messages(root_, true, [&](const ColumnBlock& b, TensorView piece, bool sent) {
      if (sent)
        ops::copy(ctx_, of(out, b), piece);
      else
        ops::copy(ctx_, piece, column(b));
    });
    if (here() != root_) return;
    for (const ColumnBlock& b : blocks_)
      if (b.rank == root_) ops::copy(ctx_, of(out, b), column(b));
  }

  /// Factorises: afterwards every rank has the blocked L, with NaN from the first leading minor on
  /// that is not positive definite.
  void factorise() {
    for (const ColumnBlock& b : blocks_) {
      const TensorView panel = column(b);
      if (b.rank == here()) factorise(b, panel);
      group_.broadcast(panel, b.rank, ctx_.stream(), "columns of a factor");
      for (const ColumnBlock& after : blocks_) {
        if (after.rank != here() || after.first <= b.first) continue;
        const ConstTensorView left = panel.slice(0, after.first - b.first, after.rows());
        ops::gemm(ctx_, Trans::no, Trans::yes, -1, left, left.slice(0, 0, after.width), 1,
                  column(after));
      }
    }
  }

  void write_factor(TensorView out) const {
    if (here() != root_) return;
    for (const ColumnBlock& b : blocks_) ops::copy(ctx_, column(b), of(out, b));
  }

  /// The columns of the inverse that are this rank's, from their diagonal blocks down.
  void invert() {
    if (columns_here() == 0) return;
    ops::fill(ctx_, own_, 0);
    for (const ColumnBlock& b : blocks_) {  // L^-1
      const std::int64_t columns = columns_up_to(b);
      if (b.rank == here())
        ops::add_diagonal(ctx_, rows(b.first, b.width).slice(1, b.own, b.width), 1);
      if (columns == 0) continue;
      const TensorView solved = multiply_diagonal(b, Trans::no, columns);
      if (b.below() > 0)
        ops::gemm(ctx_, Trans::no, Trans::no, -1, column(b).slice(0, b.width, b.below()), solved, 1,
                  rows(b.first + b.width, b.below()).slice(1, 0, columns));
    }
    for (auto b = blocks_.rbegin(); b != blocks_.rend(); ++b) {  // L'^-1 of it
      const std::int64_t columns = columns_up_to(*b);
      if (columns == 0) continue;
      if (b->below() > 0)
        ops::gemm(ctx_, Trans::yes, Trans::no, -1, column(*b).slice(0, b->width, b->below()),
                  rows(b->first + b->width, b->below()).slice(1, 0, columns), 1,
                  rows(b->first, b->width).slice(1, 0, columns));
      (void)multiply_diagonal(*b, Trans::yes, columns);
    }
  }

  /// Brings the inverse to the root.
  void collect(TensorView out) {
    if (here() == root_)
      for (const ColumnBlock& b : blocks_)
        if (b.rank == root_) ops::copy(ctx_, solved(b), of(out, b));
    for_messages(root_, false, [&](const ColumnBlock& b, TensorView piece, bool sent) {
      if (sent)
        ops::copy(ctx_, solved(b), piece);
      else
        ops::copy(ctx_, piece, of(out, b));
    });
    if (here() == root_) ops::symmetrize(ctx_, out);
  }

 private:
  [[nodiscard]] int here() const { return group_.rank(); }
  [[nodiscard]] std::int64_t columns_here() const { return shares_.columns[index_of(here())]; }
  /// Columns of this rank in the blocks up to this one.
  [[nodiscard]] std::int64_t columns_up_to(const ColumnBlock& b) const {
    std::int64_t columns = 0;
    for (const ColumnBlock& block : blocks_)
      if (block.rank == here() && block.first <= b.first) columns += block.width;
    return columns;
  }
  [[nodiscard]] TensorView column(const ColumnBlock& b) const {
    return triangle_.slice(0, b.start, b.numel()).reshape({b.rows(), b.width});
  }
  [[nodiscard]] static TensorView of(TensorView square, const ColumnBlock& b) {
    return square.slice(0, b.first, b.rows()).slice(1, b.first, b.width);
  }
  [[nodiscard]] TensorView rows(std::int64_t first, std::int64_t count) const {
    return own_.slice(0, first, count);
  }
  /// This rank's block of the inverse.
  [[nodiscard]] TensorView solved(const ColumnBlock& b) const {
    return rows(b.first, b.rows()).slice(1, b.own, b.width);
  }

  /// Replaces the diagonal block by the inverse of its Cholesky factor, and multiplies the rest.
  void factorise(const ColumnBlock& b, TensorView panel) {
    Scratch scratch(ctx_);
    const TensorView info = scratch.take({1}, DType::i32),
                     one = scratch.take({b.width, b.width}, m_.dtype),
                     l = diagonal_.slice(0, 0, b.width * b.width).reshape({b.width, b.width}),
                     diagonal = panel.slice(0, 0, b.width);
    ops::copy(ctx_, diagonal, l);
    ops::potrf(ctx_, l, info);
    ops::fill(ctx_, one, 0);
    ops::add_diagonal(ctx_, one, 1);
    kernels::solve_rows(ctx_, l, one, diagonal);
    kernels::fail_where(ctx_, info, diagonal);
    if (b.below() == 0) return;
    const TensorView below = panel.slice(0, b.width, b.below()),
                     copy = scratch.take({b.below(), b.width}, m_.dtype);
    ops::copy(ctx_, below, copy);
    ops::gemm(ctx_, Trans::no, Trans::yes, 1, copy, diagonal, 0, below);
  }
  /// Multiplies the first columns of a block of rows by the diagonal block of L^-1; returns them.
  TensorView multiply_diagonal(const ColumnBlock& b, Trans trans, std::int64_t columns) {
    const TensorView part = rows(b.first, b.width).slice(1, 0, columns);
    Scratch scratch(ctx_);
    const TensorView copy = scratch.take({b.width, columns}, m_.dtype);
    ops::copy(ctx_, part, copy);
    ops::gemm(ctx_, trans, Trans::no, 1, column(b).slice(0, 0, b.width), copy, 0, part);
    return part;
  }

  /// Exchanges one message between the root and each other rank: the blocks of that rank. Calls
  /// body(block, piece, whether it is sent), before the exchange for what this rank sends, and
  /// after it for what it receives.
  template <class Body>
  void for_messages(int root, bool from_root, Body&& body) {
    std::vector<comm::Route> routes;
    std::int64_t sent = 0, received = 0;
    for (int r = 0; r < group_.size(); ++r) {
      if (r == root) continue;
      const int from = from_root ? root : r, to = from_root ? r : root;
      const std::int64_t count = shares_.numel[index_of(r)];
      routes.push_back({from, to, count});
      sent += from == here() ? count : 0;
      received += to == here() ? count : 0;
    }
    if (routes.empty()) return;
    Scratch scratch(ctx_);
    const TensorView out = scratch.take({sent}, m_.dtype), in = scratch.take({received}, m_.dtype);
    for_pieces(root, out, [&](const ColumnBlock& b, TensorView x) { body(b, x, true); });
    group_.exchange(out, routes, in, ctx_.stream(), "columns of a factor");
    for_pieces(root, in, [&](const ColumnBlock& b, TensorView x) { body(b, x, false); });
  }
  /// Calls body(block, piece) for the messages of this rank, one after the other in `all`.
  template <class Body>
  void for_pieces(int root, TensorView all, Body&& body) {
    if (all.numel() == 0) return;
    std::int64_t at = 0;
    for (int r = 0; r < group_.size(); ++r) {
      if (r == root || (here() != root && r != here())) continue;
      for (const ColumnBlock& b : blocks_) {
        if (b.rank != r) continue;
        body(b, all.slice(0, at, b.numel()).reshape({b.rows(), b.width}));
        at += b.numel();
      }
    }
  }

  Context& ctx_;
  ExactProducts exact_;  ///< Rounding to TF32 could exceed a small damping.
  comm::Communicator& group_;
  int root_;
  SplitMatrix m_;
  std::vector<ColumnBlock> blocks_;
  Shares shares_;
  Scratch scratch_;
  TensorView triangle_;  ///< Blocks of columns, one after the other.
  TensorView diagonal_, own_;
};

double factorise_flops(const ColumnBlock& b) {
  const auto w = static_cast<double>(b.width);
  return w * w * w / 3 + w * w * w + 2 * static_cast<double>(b.below()) * w * w;
}

}  // namespace

void invert_split(Context& ctx, comm::Communicator& group, int root, const SplitMatrix& m,
                  TensorView out) {
  SplitInversion inversion(ctx, group, root, m);
  inversion.distribute(out);
  inversion.factorise();
  if (m.factored) return inversion.write_factor(out);
  inversion.invert();
  inversion.collect(out);
}

double split_flops(std::int64_t d, int ranks, bool factored) {
  const std::vector<ColumnBlock> blocks = blocks_of(d, ranks);
  std::vector<double> update(index_of(ranks)), solve(index_of(ranks));
  std::vector<std::int64_t> columns(index_of(ranks));
  double path = 0;
  for (const ColumnBlock& b : blocks) {
    path += factorise_flops(b);
    std::ranges::fill(update, 0.0);
    for (const ColumnBlock& after : blocks)
      if (after.first > b.first)
        update[index_of(after.rank)] +=
            2 * static_cast<double>(after.numel()) * static_cast<double>(b.width);
    path += *std::ranges::max_element(update);
    columns[index_of(b.rank)] += b.width;
    // Each of the two solves multiplies by the block of columns, as a whole.
    for (int r = 0; r < ranks; ++r)
      solve[index_of(r)] +=
          2 * 2 * static_cast<double>(b.numel()) * static_cast<double>(columns[index_of(r)]);
  }
  return factored ? path : path + *std::ranges::max_element(solve);
}

double split_numel(std::int64_t d, int ranks, bool factored) {
  if (ranks == 1) return 0;
  const std::vector<ColumnBlock> blocks = blocks_of(d, ranks);
  const Shares shares = shares_of(blocks, ranks);
  const auto all = static_cast<double>(blocks.back().start + blocks.back().numel());
  const double others = all - static_cast<double>(std::ranges::min(shares.numel));
  return all + (factored ? 1 : 2) * others;
}

std::int64_t split_scratch(std::int64_t d, int ranks) {
  const std::vector<ColumnBlock> blocks = blocks_of(d, ranks);
  const std::int64_t width = blocks.front().width;
  const std::int64_t all = blocks.back().start + blocks.back().numel();
  return 2 * all + 3 * width * width + d * (width + shares_of(blocks, ranks).columns.front());
}

int split_ranks(std::int64_t d) {
  constexpr std::int64_t kLeastBlocks = 4;
  const std::int64_t blocks = (d + solve_block(d) - 1) / solve_block(d);
  int ranks = 1;
  while (ranks < 8 && blocks >= kLeastBlocks * 2 * ranks) ranks *= 2;
  return ranks;
}

}  // namespace dkfac::kfac
