#include "kfac/curvature/shared_part.h"

#include "dkfac/core/ops.h"

namespace dkfac::kfac {
namespace {

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
  return head_numel(part) +
         (part.factor != nullptr ? sent_numel(*part.factor) : part.average->numel());
}

void write_body(Context& ctx, const SharedPart& part, TensorView piece) {
  PieceCopy(ctx, piece, false).part(part);
}

void read_body(Context& ctx, TensorView piece, const SharedPart& part) {
  PieceCopy(ctx, piece, true).part(part);
}

}  // namespace dkfac::kfac
