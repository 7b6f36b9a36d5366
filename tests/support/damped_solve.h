#pragma once

#include <array>
#include <cstdint>

#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "support/fisher.h"

/// The library's computation from data to a preconditioned gradient, on one rank and in f64.
namespace dkfac::testing::fisher {

struct Factors {
  Matrix a, g;
};

/// A and G of `spec`; rows of gradients may outnumber samples (one per label).
inline Factors compute_factors(Context& ctx, const LayerSpec& spec, ConstTensorView inputs,
                               ConstTensorView gradients, std::int64_t samples) {
  const std::int64_t da = dkfac::a_dim(spec), dg = dkfac::g_dim(spec);
  Tensor a = Tensor::zeros(ctx, {da, da}, DType::f64), g = Tensor::zeros(ctx, {dg, dg}, DType::f64);
  const kfac::Operand operand{DType::f64, 1};
  kfac::compute_a(
      ctx, spec, {.data = inputs, .global_batch = static_cast<double>(samples), .operand = operand},
      0, a);
  kfac::compute_g(
      ctx, spec,
      {.data = gradients, .global_batch = static_cast<double>(samples), .operand = operand}, 0, g);
  return {symmetric(ctx, a), symmetric(ctx, g)};
}

/// By inverses with pi-split damping. The last column of v goes the way of a bias.
inline Matrix solve_pi(Context& ctx, const Factors& f, const Matrix& v, double lambda) {
  Matrix a(f.a.rows, f.a.rows), g(f.g.rows, f.g.rows);
  std::array<std::int32_t, 2> info{-1, -1};
  const Vector pa = packed(f.a), pg = packed(f.g);
  const auto whole = [](const Vector& x) {
    return view_of(x.data(), {static_cast<std::int64_t>(x.size())});
  };
  kfac::invert_factors(ctx, whole(pa), whole(pg), lambda, a.view(), g.view(),
                       view_of(info.data(), {2}));
  EXPECT_EQ(info, (std::array<std::int32_t, 2>{0, 0}));
  auto [weight, bias] = split_bias(v);
  kfac::precondition(ctx, a.view(), g.view(), weight.view(), view_of(bias.data(), {v.rows}));
  return join_bias(weight, bias);
}

/// By eigenvectors, lambda being added to the products of eigenvalues.
inline Matrix solve_eigen(Context& ctx, const Factors& f, const Matrix& v, double lambda) {
  Matrix qa(f.a.rows, f.a.rows), qg(f.g.rows, f.g.rows), wa(1, f.a.rows), wg(1, f.g.rows);
  std::int32_t info_a = -1, info_g = -1;
  const Vector pa = packed(f.a), pg = packed(f.g);
  const auto whole = [](const Vector& x) {
    return view_of(x.data(), {static_cast<std::int64_t>(x.size())});
  };
  kfac::decompose_factor(ctx, whole(pa), qa.view(), wa.view().flat(), view_of(&info_a, {1}));
  kfac::decompose_factor(ctx, whole(pg), qg.view(), wg.view().flat(), view_of(&info_g, {1}));
  EXPECT_EQ(info_a, 0);
  EXPECT_EQ(info_g, 0);
  auto [weight, bias] = split_bias(v);
  kfac::precondition_eigen(ctx, qa.view(), wa.view().flat(), qg.view(), wg.view().flat(), lambda,
                           weight.view(), view_of(bias.data(), {v.rows}));
  return join_bias(weight, bias);
}

}  // namespace dkfac::testing::fisher
