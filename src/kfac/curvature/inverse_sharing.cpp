#include "kfac/curvature/inverse_sharing.h"

#include <numeric>
#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/index.h"

namespace dkfac::kfac {
namespace {

/// Size of the head of a part, the numbers that the host stores: of a factor whether it is valid
/// and the stored form of each group, and a count of statistics.
std::int64_t head_numel(const SharedPart& part) {
  return (part.factor != nullptr ? 1 + part.factor->groups : 0) +
         (part.statistics != nullptr ? 1 : 0);
}

template <class Number>
void visit_head(const SharedPart& part, Number&& number) {
  if (part.factor != nullptr) {
    number(part.factor->valid);
    for (int group = 0; group < part.factor->groups; ++group)
      number(part.factor->stored_form.data<std::int32_t>()[group]);
  }
  if (part.statistics != nullptr) number(*part.statistics);
}

/// Returns consecutive pieces of a segment.
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

/// Copies the body of a part into the piece, or out of it, in the same order.
class PieceCopy {
 public:
  PieceCopy(Context& ctx, TensorView piece, bool out) : ctx_(ctx), cursor_(piece), out_(out) {}

  void part(const SharedPart& p) {
    if (p.factor == nullptr) return move(*p.average);
    Factor& f = *p.factor;
    move(f.shifts);
    if (f.form->is_triangle)
      triangles(f);
    else
      move(f.inverse);
    if (f.values.is_set()) move(f.values);
  }

 private:
  /// Copies between x and the next piece. The types may differ where the values are exact in both.
  void move(TensorView x) {
    const TensorView piece = cursor_.take(x.numel()).reshape(x.shape());
    if (out_)
      ops::cast(ctx_, piece, x);
    else
      ops::cast(ctx_, x, piece);
  }
  /// Copies one triangle per group. A fallback stage may have replaced a Cholesky factor by an
  /// inverse: both are sent alike.
  void triangles(Factor& f) {
    for (int group = 0; group < f.groups; ++group) {
      const TensorView square = f.inverse.view().slice(0, group, 1).reshape({f.dim, f.dim});
      const TensorView piece = cursor_.take(ops::packed_size(f.dim));
      if (out_)
        stored_form(f, group)->unpack(ctx_, piece, square);
      else
        ops::pack_lower(ctx_, square, piece);
    }
  }

  Context& ctx_;
  Cursor cursor_;
  bool out_;
};

}  // namespace

std::int64_t shared_numel(const SharedPart& part) {
  const std::int64_t head = head_numel(part);
  if (part.factor == nullptr) return head + part.average->numel();
  const Factor& f = *part.factor;
  const std::int64_t body =
      f.form->is_triangle ? f.groups * ops::packed_size(f.dim) : f.inverse.numel();
  return head + f.shifts.numel() + body + f.values.numel();
}

InverseSharing::InverseSharing(Context& ctx, const comm::WorkerGrid& grid, DType dtype,
                               std::span<const SharedPart> all)
    : ctx_(ctx), grid_(grid), counts_(index_of(grid.workers), 0), next_(counts_) {
  if (grid_.workers == 1) return;
  buffer_ = Tensor::zeros(ctx, {layout(all)}, dtype);
  std::int64_t numbers = 0;
  for (const SharedPart& part : all) numbers += head_numel(part);
  heads_ = comm::HostDevicePair(ctx, {numbers}, DType::f64);
}

std::int64_t InverseSharing::layout(std::span<const SharedPart> parts) {
  counts_.assign(counts_.size(), 0);
  for (const SharedPart& part : parts)
    counts_[index_of(grid_.row_of(part.owner))] += shared_numel(part);
  std::exclusive_scan(counts_.begin(), counts_.end(), next_.begin(), std::int64_t{0});
  return next_.back() + counts_.back();
}

template <class Body>
void InverseSharing::for_parts(std::span<const SharedPart> parts, bool own, Body&& body) {
  const TensorView all = buffer_.view().slice(0, 0, layout(parts));
  std::int64_t head = 0;
  for (const SharedPart& part : parts) {
    std::int64_t& start = next_[index_of(grid_.row_of(part.owner))];
    const std::int64_t numel = shared_numel(part), numbers = head_numel(part);
    if ((part.owner == grid_.world->rank()) == own)
      body(part, all.slice(0, start, numel), head, numbers);
    start += numel;
    head += numbers;
  }
}

void InverseSharing::run(std::span<const SharedPart> parts) {
  if (grid_.workers == 1 || parts.empty()) return;
  auto* const numbers = heads_.numbers<double>();
  for_parts(parts, true, [&](const SharedPart& part, TensorView, std::int64_t head, std::int64_t) {
    visit_head(part, [&](auto& number) { numbers[head++] = static_cast<double>(number); });
  });
  heads_.push(ctx_);
  for_parts(parts, true,
            [&](const SharedPart& part, TensorView piece, std::int64_t head, std::int64_t count) {
              ops::cast(ctx_, heads_.device().slice(0, head, count), piece.slice(0, 0, count));
              PieceCopy(ctx_, piece.slice(0, count, piece.numel() - count), false).part(part);
            });

  const std::int64_t total = layout(parts);
  const TensorView all = buffer_.view().slice(0, 0, total);
  const auto row = index_of(grid_.row_of(grid_.world->rank()));
  grid_.column->all_gather_v(all.slice(0, next_[row], counts_[row]), counts_, all, ctx_.stream(),
                             "inverses");

  for_parts(parts, false,
            [&](const SharedPart&, TensorView piece, std::int64_t head, std::int64_t count) {
              ops::cast(ctx_, piece.slice(0, 0, count), heads_.device().slice(0, head, count));
            });
  heads_.fetch(ctx_);
  ctx_.stream().synchronize();
  for_parts(parts, false,
            [&](const SharedPart& part, TensorView piece, std::int64_t head, std::int64_t count) {
              visit_head(part, [&](auto& number) {
                number = static_cast<std::remove_reference_t<decltype(number)>>(numbers[head++]);
              });
              PieceCopy(ctx_, piece.slice(0, count, piece.numel() - count), true).part(part);
            });
}

}  // namespace dkfac::kfac
