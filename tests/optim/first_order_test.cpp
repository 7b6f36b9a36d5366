#include "optim/cpu/first_order.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "support/near.h"

namespace dkfac::optim {
namespace {

using testing::eps;
using testing::near;
using namespace cpu;
using Values = std::vector<double>;

TensorView view(Values& v) { return view_of(v.data(), {static_cast<std::int64_t>(v.size())}); }
TensorView state(Values& v) { return view(v).reshape({1, static_cast<std::int64_t>(v.size())}); }

TEST(Norm, IsTheRootOfTheSumOfSquares) {
  Values x{3, -4};
  EXPECT_EQ(l2_norm(view(x)), 5);
  EXPECT_EQ(l2_norm({}), 0);
  std::vector<float> f(10, 2.0F);
  EXPECT_DOUBLE_EQ(l2_norm(view_of(f.data(), {10})), std::sqrt(40.0));
}

TEST(Norm, CountsEveryElementOnceAtEveryLength) {
  // Sizes around the ends of lanes, and of the parts of threads.
  for (const std::int64_t n : {1, 7, 8, 9, 17, 65535, 65536, 65537, 4 * 1024 * 1024 + 5}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    double squares = 0;  // Whole numbers, so that every order of additions is exact.
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 13) - 6;
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    EXPECT_EQ(l2_norm(view_of(x.data(), {n})), std::sqrt(squares)) << n;
  }
}

TEST(Norm, HasTheSameBitsAtEveryNumberOfThreads) {
  std::vector<double> x(300'000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i));
  const int before = threads();
  set_threads(1);
  const double one = l2_norm(view(x));
  set_threads(3);
  const double three = l2_norm(view(x));
  set_threads(before);
  EXPECT_EQ(one, three);
}

TEST(Rescale, BringsTheNormToTheRootOfTwiceTheOutputs) {
  Values small{0.3, 0.4}, large{30, 40}, kept{0.3, 0.4};
  rescale(Rescale::always, 8, view(small));
  EXPECT_TRUE(near(small, Values{4 * 0.6, 4 * 0.8}, 1e-8));  // the 1e-9 in the divisor
  rescale(Rescale::shrink, 8, view(large));
  EXPECT_TRUE(near(large, Values{4 * 0.6, 4 * 0.8}, 1e-9));
  rescale(Rescale::shrink, 8, view(kept));
  EXPECT_EQ(kept, (Values{0.3, 0.4}));
  rescale(Rescale::off, 8, view(kept));
  EXPECT_EQ(kept, (Values{0.3, 0.4}));
}

TEST(Rescale, LeavesAZeroWeightFinite) {
  Values zero{0, 0};
  rescale(Rescale::always, 8, view(zero));
  EXPECT_EQ(zero, (Values{0, 0}));
}

TEST(WeightRescaling, IsEquation24) {
  // sqrt(2 8) = 4; a norm of 4 stays.
  EXPECT_NEAR(weight_rescaling(Rescale::always, 8, 2), 2, 1e-8);
  EXPECT_NEAR(weight_rescaling(Rescale::always, 8, 8), 0.5, 1e-9);
  EXPECT_NEAR(weight_rescaling(Rescale::shrink, 8, 8), 0.5, 1e-9);
  EXPECT_EQ(weight_rescaling(Rescale::shrink, 8, 2), 1);
  EXPECT_EQ(weight_rescaling(Rescale::off, 8, 8), 1);
  EXPECT_DOUBLE_EQ(weight_rescaling(Rescale::always, 8, 0), 4e9);
  EXPECT_THROW((void)weight_rescaling(Rescale::always, 0, 1), InvalidArgument);
}

TEST(TrustRatio, IsOneWhenANormIsZero) {
  const LarsOptions options{.weight_decay = 0.5, .eta = 0.1};
  EXPECT_EQ(lars_trust_ratio(options, 0, 3, 1), 1);
  EXPECT_EQ(lars_trust_ratio(options, 3, 0, 1), 1);
  EXPECT_THROW((void)lars_trust_ratio({.eta = -1}, 2, 3, 1), InvalidArgument);
  EXPECT_THROW((void)lars_trust_ratio(options, 2, 3, -1), InvalidArgument);
}

TEST(TrustRatio, IsOneWhenANormIsNotANumber) {
  for (const LarsForm form :
       {LarsForm::mlperf, LarsForm::larc, LarsForm::joint_norm, LarsForm::clipped}) {
    const LarsOptions options{.form = form, .weight_decay = 0.5, .eta = 0.1};
    EXPECT_EQ(lars_trust_ratio(options, std::nan(""), 3, 1), 1);
    EXPECT_EQ(lars_trust_ratio(options, 3, std::nan(""), 1), 1);
  }
}

TEST(TrustRatio, IsTheFormula) {
  // 0.1 * 2 / (3 + 0.5 * 2 + 1)
  LarsOptions options{.weight_decay = 0.5, .eta = 0.1, .epsilon = 1};
  EXPECT_DOUBLE_EQ(lars_trust_ratio(options, 2, 3, 7), 0.04);
  EXPECT_DOUBLE_EQ(lars_trust_ratio({.weight_decay = 0, .eta = 0.1}, 2, 4, 7), 0.05);
  options.form = LarsForm::joint_norm;  // 0.1 * 2 / (3 + 1)
  EXPECT_DOUBLE_EQ(lars_trust_ratio(options, 2, 3, 7), 0.05);
  options.form = LarsForm::larc;
  EXPECT_DOUBLE_EQ(lars_trust_ratio(options, 2, 3, 0.4), 0.1);
  for (const double lr : {0.04, 0.01, 0.0}) EXPECT_EQ(lars_trust_ratio(options, 2, 3, lr), 1);
  options.form = LarsForm::clipped;
  EXPECT_DOUBLE_EQ(lars_trust_ratio(options, 2, 3, 7), 0.04);
  options.max_trust = 0.03;
  EXPECT_EQ(lars_trust_ratio(options, 2, 3, 7), 0.03);
  options.min_trust = options.max_trust = 0.05;
  EXPECT_EQ(lars_trust_ratio(options, 2, 3, 7), 0.05);
}

TEST(Passes, RefuseTensorsThatAreNotAlike) {
  Values three(3), two(2);
  std::vector<float> single(3);
  EXPECT_THROW(elementwise_pass(SgdPass{}, view(three), view(three).reshape({1, 3}), view(two)),
               InvalidArgument);
  EXPECT_THROW(lars_pass({}, view(three), view_of(single.data(), {3}), view(three)),
               InvalidArgument);
  EXPECT_THROW(lars_pass({}, view(three), view(three), view(two)), InvalidArgument);
  EXPECT_THROW(direction_pass({}, 1, view(three), view(three), state(three), view(two)),
               InvalidArgument);
}

TEST(DirectionPass, LeavesTheWeightAndThePapersMomentumToTheCaller) {
  Values u{1, 2}, w{1, 1}, v{0.5, 0.5}, out(2);
  direction_pass(KfacPass{.lr = 0.1, .momentum = 0.8, .rule = MomentumRule::paper}, 1, view(u),
                 view(w), state(v), view(out));
  EXPECT_TRUE(near(out, Values{1 - 0.1 + 0.4, 1 - 0.2 + 0.4}, 4 * eps<double>));
  EXPECT_EQ(w, (Values{1, 1}));
  EXPECT_EQ(v, w);
  finish_paper_momentum(view(out), view(v));
  EXPECT_TRUE(near(v, Values{0.3, 0.2}, 8 * eps<double>));
}

TEST(DirectionPass, GivesTheSameBitsInPlace) {
  const DirectionPass passes[] = {
      KfacPass{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.3},
      KfacPass{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.3, .rule = MomentumRule::paper},
      AdamwPass{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.3}};
  for (const DirectionPass& pass : passes)
    for (const double clip : {1.0, 0.25}) {
      const Values u{1, 2}, w{1, -3};
      Values v{0.5, 0.25, 0.3, 0.2}, out(2), own_v = v, own = w;  // Two states of two elements.
      direction_pass(pass, clip, view_of(u.data(), {2}), view_of(w.data(), {2}),
                     view(v).reshape({2, 2}), view(out));
      direction_pass(pass, clip, view_of(u.data(), {2}), view(own), view(own_v).reshape({2, 2}),
                     view(own));
      EXPECT_EQ(own, out);
      EXPECT_EQ(own_v, v);
      EXPECT_NE(own, w);
    }
}

TEST(Passes, GiveTheSameBitsOverLongAndShortTensors) {
  // Long tensors are shared by threads; each element is computed alike.
  const std::size_t n = 100'003;
  Values g(n), v(n, 0.25), w(n, 1.0);
  for (std::size_t i = 0; i < n; ++i) g[i] = std::sin(static_cast<double>(i));
  const SgdPass pass{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
  const auto row = [](Values& x) { return view(x).reshape({1, std::ssize(x)}); };
  elementwise_pass(pass, view(g), row(v), view(w));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, n / 2, n - 1}) {
    Values g1{g[i]}, v1{0.25}, w1{1.0};
    elementwise_pass(pass, view(g1), row(v1), view(w1));
    EXPECT_EQ(w[i], w1[0]) << i;
    EXPECT_EQ(v[i], v1[0]) << i;
  }
}

}  // namespace
}  // namespace dkfac::optim
