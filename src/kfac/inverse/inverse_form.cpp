#include "dkfac/core/ops.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"

/// FactorForm::inverse
namespace dkfac::kfac {
namespace {

using ops::Trans;

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

/// Computes to(i) = from(i) m(i) for all gradients i.
template <class Matrix, class From, class To>
void multiply_right(Products& products, Matrix&& m, From&& from, To&& to) {
  for_parts(to(0), to(0), [&](std::int64_t c, std::int64_t n) {
    for_parts(from(0), from(0), [&](std::int64_t k, std::int64_t depth) {
      products.multiply(k == 0 ? 0 : 1, [&](std::size_t i) {
        return dkfac::cuda::MatrixProduct{from(i).columns(k, depth), block_of(m(i), k, depth, c, n),
                                          to(i).columns(c, n)};
      });
    });
  });
}

class InverseForm final : public FactorForm {
 public:
  constexpr InverseForm() : FactorForm("inverse", 0, true) {}

  Costs costs(const FactorPlan& plan) const override { return matrices(plan, kFactorisation, 2); }
  bool factorise(Context& ctx, const Solvers& solvers, const Inverted& m,
                 TensorView out) const override {
    if (!factorise_damped(ctx, solvers, m, out) ||
        !succeeds(ctx, [&](TensorView info) { solvers.potri(ctx, out, info); }))
      return false;
    ops::symmetrize(ctx, out);
    return inverts(ctx, m, out);
  }
  void write_clipped(Context& ctx, ConstTensorView s, ConstTensorView,
                     TensorView out) const override {
    ops::gemm(ctx, Trans::no, Trans::yes, 1, s, s, 0, out);
    ops::symmetrize(ctx, out);
  }
  void apply(Context& ctx, Side side, const AppliedFactor& factor, const Columns& from,
             const Columns& to) const override {
    Scratch scratch(ctx);
    Columns out = to;  // A product cannot overwrite its operand.
    if (to.is(from)) out = {scratch.take_aligned({to.rows(), to.d()}, to.weight.dtype()), {}};
    const auto always = [](const auto& x) { return [&x](std::size_t) { return x; }; };
    Products one(ctx, 1, nullptr);
    if (side == Side::left)
      multiply_left(one, always(factor.inverse), always(from), always(out));
    else
      multiply_right(one, always(factor.inverse), always(from), always(out));
    if (to.is(from)) copy_columns(ctx, out, to);
  }
};
constexpr InverseForm kInverse;

}  // namespace

const FactorForm* const FactorForm::inverse = &kInverse;

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

}  // namespace dkfac::kfac
