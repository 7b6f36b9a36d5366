#include "kfac/inverse/apply_factor.h"

namespace dkfac::kfac {

// Solves and multiplications alternate between v and scratch, so that the last writes v.
void apply_factors(Context& ctx, const AppliedFactor& a, const AppliedFactor& g, const Columns& v) {
  if (a.form->is_explicit() && g.form->is_explicit()) {
    const FactoredGradient one{a, g, v};
    return apply_inverses(ctx, {&one, 1}, nullptr);
  }
  if (!a.form->is_triangle || !(a.form->is_explicit() || g.form->is_explicit())) {
    apply_right(ctx, a, v);
    return apply_left(ctx, g, v);
  }
  Scratch scratch(ctx);
  const Columns between{scratch.take_aligned({v.rows(), v.d()}, v.weight.dtype()), {}};
  if (g.form->is_explicit()) {
    g.form->apply(ctx, Side::left, g, v, between);
    return a.form->apply(ctx, Side::right, a, between, v);
  }
  a.form->apply(ctx, Side::right, a, v, between);
  g.form->apply(ctx, Side::left, g, between, v);
}

}  // namespace dkfac::kfac
