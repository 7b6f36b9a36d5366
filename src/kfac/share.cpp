#include "kfac/share.h"

#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

namespace dkfac::kfac {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The ladder may leave Cholesky for an inverse, so that both travel alike.
bool is_triangle(const Factor& factor) {
  return factor.form == FactorForm::inverse || factor.form == FactorForm::cholesky;
}

/// What is known of a factor: whether it is good; per group its damping and what it holds.
std::int64_t head_numel(const Factor& factor) { return 1 + 2 * std::int64_t{factor.groups}; }

/// Hands out consecutive pieces of a segment.
class Cursor {
 public:
  explicit Cursor(TensorView segment) : segment_(segment) {}
  TensorView take(std::int64_t count) {
    const TensorView piece = segment_.slice(0, at_, count);
    at_ += count;
    return piece;
  }

 private:
  TensorView segment_;
  std::int64_t at_ = 0;
};

/// Moves `part` into the piece, or out of it: one order for both.
class Mover {
 public:
  Mover(Context& ctx, TensorView piece, bool out) : ctx_(ctx), cursor_(piece), out_(out) {}

  template <class T>
  void number(T& value) {
    auto wide = static_cast<double>(value);
    move(view_of(&wide, {1}));
    value = static_cast<T>(wide);
  }
  /// Equal numbers of elements; the types may differ where the values are exact in both.
  void move(TensorView x) {
    const TensorView piece = cursor_.take(x.numel());
    if (out_)
      ops::cast(ctx_, piece, x.flat());
    else
      ops::cast(ctx_, x.flat(), piece);
  }
  /// Inverses are symmetric, Cholesky factors zero above the diagonal.
  void triangles(Factor& f) {
    const TensorView all = f.inverse.view().reshape({f.groups, f.dim, f.dim});
    for (int group = 0; group < f.groups; ++group) {
      const TensorView square = all.slice(0, group, 1).reshape({f.dim, f.dim});
      const TensorView piece = cursor_.take(ops::packed_size(f.dim));
      const bool inverse =
          static_cast<FactorForm>(f.held.data<std::int32_t>()[group]) == FactorForm::inverse;
      if (!out_) {
        ops::pack_lower(ctx_, square, piece);
        continue;
      }
      if (!inverse) ops::fill(ctx_, square, 0);
      ops::unpack_lower(ctx_, piece, square, inverse ? ops::Mirror::yes : ops::Mirror::no);
    }
  }

  void factor(Factor& f) {
    number(f.good);
    for (int group = 0; group < f.groups; ++group) {
      number(f.shifts.data<double>()[group]);
      number(f.held.data<std::int32_t>()[group]);
    }
    if (is_triangle(f))
      triangles(f);
    else
      move(f.inverse);
    if (f.values.is_set()) move(f.values);
  }
  void part(const SharedPart& p) {
    LayerCurvature& layer = *p.layer;
    if (p.factor == nullptr) {
      number(layer.fisher_statistics);
      return move(layer.fisher);
    }
    factor(*p.factor);
    // EKFAC: every rank merges the same scales, and only forgets them with their eigenvectors.
    if (layer.scales.is_set()) number(layer.scale_statistics);
  }

 private:
  Context& ctx_;
  Cursor cursor_;
  bool out_;
};

}  // namespace

std::int64_t shared_numel(const SharedPart& part) {
  const LayerCurvature& layer = *part.layer;
  if (part.factor == nullptr) return 1 + layer.fisher.numel();
  const Factor& f = *part.factor;
  const std::int64_t scales = layer.scales.is_set() ? 1 : 0;
  const std::int64_t body = is_triangle(f) ? f.groups * ops::packed_size(f.dim) : f.inverse.numel();
  return head_numel(f) + body + f.values.numel() + scales;
}

void add_shared_parts(Engine& engine, const WorkerGrid& grid, bool all,
                      std::vector<SharedPart>& parts) {
  for (int i = 0; i < engine.layers(); ++i) {
    const int owner = engine.owner(i);
    if (!grid.works(owner)) continue;
    LayerCurvature& layer = engine.curvature(i);
    const bool batch_norm = std::holds_alternative<BatchNormSpec>(engine.spec(i));
    const StatisticKind second = batch_norm ? StatisticKind::batch_norm : StatisticKind::g;
    if (layer.a.is_set() && (all || engine.rebuilt(i, StatisticKind::a)))
      parts.push_back({owner, &layer, &layer.a});
    if (layer.g.is_set() && (all || engine.rebuilt(i, second)))
      parts.push_back({owner, &layer, &layer.g});
    if (layer.fisher.is_set() && (all || engine.rebuilt(i, second)))
      parts.push_back({owner, &layer, nullptr});
  }
}

Share::Share(Context& ctx, const WorkerGrid& grid, DType dtype, std::span<const SharedPart> all)
    : ctx_(ctx), grid_(grid), counts_(at(grid.workers), 0), next_(counts_) {
  if (grid_.workers > 1) buffer_ = Tensor::zeros(ctx, {layout(all)}, dtype);
}

std::int64_t Share::layout(std::span<const SharedPart> parts) {
  counts_.assign(counts_.size(), 0);
  for (const SharedPart& part : parts) counts_[at(grid_.row_of(part.owner))] += shared_numel(part);
  std::exclusive_scan(counts_.begin(), counts_.end(), next_.begin(), std::int64_t{0});
  return next_.back() + counts_.back();
}

void Share::run(std::span<const SharedPart> parts) {
  if (grid_.workers == 1) return;
  const std::int64_t total = layout(parts);
  if (total == 0) return;
  const TensorView all = buffer_.view().slice(0, 0, total);
  const auto row = at(grid_.row_of(grid_.world->rank()));
  const TensorView own = all.slice(0, next_[row], counts_[row]);
  const auto move = [&](bool out) {
    for (const SharedPart& part : parts) {
      const bool mine = part.owner == grid_.world->rank();
      std::int64_t& start = next_[at(grid_.row_of(part.owner))];
      const std::int64_t numel = shared_numel(part);
      if (mine != out) Mover(ctx_, all.slice(0, start, numel), out).part(part);
      start += numel;
    }
  };
  move(false);
  grid_.column->all_gather_v(own, counts_, all, Stream::cpu(), "inverses");
  (void)layout(parts);
  move(true);
}

}  // namespace dkfac::kfac
