#include "optim/cuda/update_functors.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "optim/cpu/first_order.h"
#include "optim/cuda/update_sums.h"
#include "support/near.h"

namespace dkfac::optim::cuda {
namespace {

using testing::eps;

// Sizes around the ends of lanes and chunks.
constexpr std::int64_t kLengths[] = {1, 3, 1023, 1024, 1025, 4095, 4096, 4097, 9000};
constexpr std::int64_t kGap = 3;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Parameters of kLengths elements in one buffer each, with NaN between them.
template <class T>
struct Parts {
  std::vector<T> g, v, w, out;
  std::vector<PartEntry<T>> entries;
  std::vector<ChunkEntry> chunks;

  Parts() {
    std::int64_t total = kGap;
    for (const std::int64_t n : kLengths) total += n + kGap;
    for (std::vector<T>* x : {&g, &v, &w, &out})
      x->assign(at(total), std::numeric_limits<T>::quiet_NaN());
    std::int64_t first = kGap;
    for (const std::int64_t n : kLengths) {
      for (std::int64_t i = first; i < first + n; ++i) {
        g[at(i)] = static_cast<T>(std::sin(static_cast<double>(i)));
        v[at(i)] = static_cast<T>(0.1 * std::cos(static_cast<double>(i)));
        w[at(i)] = static_cast<T>(1 + 0.5 * std::sin(0.3 * static_cast<double>(i)));
      }
      const auto index = static_cast<std::int64_t>(entries.size());
      PartEntry<T> entry{};
      entry.gradient = &g[at(first)];
      entry.states = &v[at(first)];
      entry.state_stride = n;
      entry.from = entry.out = &w[at(first)];
      entry.numel = n;
      entry.first_chunk = static_cast<std::int64_t>(chunks.size());
      entry.lr = 1 + 0.25 * static_cast<double>(index);
      entry.decay = static_cast<double>(index % 3);
      entry.is_weight = index % 2 == 0;
      entry.preconditioned = index % 4 != 1;
      entry.d_out = index % 2 == 0 ? 4 + index : 0;
      entries.push_back(entry);
      for (std::int64_t i = 0; i < n; i += kChunkElements) chunks.push_back({index, i});
      first += n + kGap;
    }
  }
  /// The new weights go to `out`.
  void apart() {
    for (PartEntry<T>& e : entries) e.out = &out[at(e.from - w.data())];
  }
  [[nodiscard]] PartTable<T> table() const { return {entries.data(), chunks.data()}; }
  /// Runs a functor in an order of its own.
  template <class F>
  void run(F f) const {
    for (std::int64_t lane = kLanes - 1; lane >= 0; --lane)
      for (std::size_t c = chunks.size(); c-- > 0;) f(static_cast<std::int64_t>(c), lane);
  }
  /// Sums over the elements of each part, as the kernels compute them.
  template <class Value, class Map, class Out>
  void sum(Map map, Out out_of) const {
    std::vector<Value> sums;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      Value total{};
      for (std::int64_t k = 0; k < kChunkElements; ++k)
        total = total + map(static_cast<std::int64_t>(c), k);
      sums.push_back(total);
    }
    const OfPart<T, Value> of{entries.data(), sums.data()};
    for (std::size_t p = 0; p < entries.size(); ++p) {
      Value total{};
      for (std::int64_t k = 0; k < 5; ++k)  // More than any part has.
        total = total + of(static_cast<std::int64_t>(p), k);
      out_of(static_cast<std::int64_t>(p), total);
    }
  }
  TensorView view(const T* data, std::int64_t n) const {
    return view_of(const_cast<T*>(data), {n});
  }
};

template <class T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) << "element " << i;
}

template <class T>
class Update : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Update, Types, );

TYPED_TEST(Update, OfSgdIsThePassOverEveryPart) {
  for (const bool nesterov : {false, true}) {
    const SgdPass pass{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov};
    Parts<TypeParam> on, host;
    on.run(ElementwiseUpdate<TypeParam, SgdPass>{on.table(), pass});
    for (const auto& e : host.entries) {
      cpu::elementwise_pass(scaled(pass, e.lr, e.decay), host.view(e.gradient, e.numel),
                            host.view(e.states, e.numel).reshape({1, e.numel}),
                            host.view(e.out, e.numel));
    }
    expect_same(on.w, host.w);
    expect_same(on.v, host.v);
    expect_same(on.g, host.g);
  }
}

TYPED_TEST(Update, OfLarsTakesTheTrustRatioOfEveryWeight) {
  for (const LarsForm form :
       {LarsForm::mlperf, LarsForm::larc, LarsForm::joint_norm, LarsForm::clipped}) {
    const LarsOptions options{.form = form,
                              .nesterov = true,
                              .weight_decay = 0.01,
                              .eta = 0.02,
                              .min_trust = 1e-3,
                              .max_trust = 0.015};
    Parts<TypeParam> on, host;
    std::vector<double> trusts(on.entries.size());
    on.template sum<Squares>(TrustSquares<TypeParam>{on.table(), {form, options.weight_decay}},
                             TrustRatio<TypeParam>{on.entries.data(), options, 0.3, trusts.data()});
    const LarsPass pass{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    for (std::size_t p = 0; p < host.entries.size(); ++p) {
      const auto& e = host.entries[p];
      LarsPass own = pass;
      own.weight_decay *= e.decay;
      const double trust =
          e.is_weight
              ? trust_ratio(options, cpu::l2_norm(host.view(e.out, e.numel)),
                            cpu::trust_norm(form, own.weight_decay, host.view(e.gradient, e.numel),
                                            host.view(e.out, e.numel)),
                            0.3 * e.lr)
              : 1;
      EXPECT_NEAR(trusts[p], trust, 1e-12 * trust);  // Sums of up to 9,000 squares.
      set_rate(own, form, 0.3 * e.lr, trusts[p]);
      cpu::lars_pass(own, host.view(e.gradient, e.numel), host.view(e.states, e.numel),
                     host.view(e.out, e.numel));
    }
    on.run(LarsUpdate<TypeParam>{on.table(), pass, form, 0.3, trusts.data()});
    expect_same(on.w, host.w);
    expect_same(on.v, host.v);
  }
}

TYPED_TEST(Update, OfKfacClipsRescalesAndFinishesThePapersMomentum) {
  for (const MomentumRule rule : {MomentumRule::corrected, MomentumRule::paper}) {
    const KfacPass pass{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .rule = rule};
    const double clip = 0.25;
    Parts<TypeParam> on, host;
    on.apart();
    host.apart();
    on.run(ElementwiseUpdate<TypeParam, KfacPass>{on.table(), pass, &clip});
    std::vector<double> factors(on.entries.size());
    on.template sum<double>(
        RescaledSquares<TypeParam>{on.table()},
        RescaleFactor<TypeParam>{on.entries.data(), Rescale::always, factors.data()});
    const bool paper = rule == MomentumRule::paper;
    on.run(KfacFinish<TypeParam, float>{on.table(), factors.data(), paper});
    for (std::size_t p = 0; p < host.entries.size(); ++p) {
      const auto& e = host.entries[p];
      const TensorView to = host.view(e.out, e.numel), v = host.view(e.states, e.numel);
      cpu::direction_pass(scaled(pass, e.lr, e.decay), e.preconditioned ? clip : 1,
                          host.view(e.gradient, e.numel), host.view(e.from, e.numel),
                          v.reshape({1, e.numel}), to);
      if (e.d_out > 0) {
        const double factor = rescale_factor(Rescale::always, e.d_out, cpu::l2_norm(to));
        EXPECT_NEAR(factors[p], factor, 1e-12 * factor);
        for (std::int64_t i = 0; i < e.numel; ++i) e.out[i] *= static_cast<TypeParam>(factors[p]);
      } else {
        EXPECT_EQ(factors[p], 1);
      }
      if (paper) cpu::finish_paper_momentum(to, v);
    }
    expect_same(on.out, host.out);
    expect_same(on.v, host.v);
    expect_same(on.w, host.w);
    expect_same(on.g, host.g);
  }
}

TYPED_TEST(Update, OfKfacWithoutADirectionIsStoppedByAFactorOfZero) {
  Parts<TypeParam> on;
  for (auto& e : on.entries) e.preconditioned = true;
  for (TypeParam& g : on.g) g = std::numeric_limits<TypeParam>::infinity();
  const double clip = 0;
  on.run(ElementwiseUpdate<TypeParam, KfacPass>{on.table(), {.lr = 0.1, .momentum = 0.9}, &clip});
  for (const auto& e : on.entries)
    for (std::int64_t i = 0; i < e.numel; ++i) ASSERT_TRUE(std::isfinite(e.out[i]));
}

TYPED_TEST(Update, PublishesMastersRoundedToTheWire) {
  Parts<TypeParam> on;
  std::vector<TypeParam> rounded(on.w.size(), std::numeric_limits<TypeParam>::quiet_NaN());
  std::vector<f16> block(on.w.size(), f16{0x7E00});
  for (auto& e : on.entries) {
    e.rounded = &rounded[at(e.out - on.w.data())];
    e.block = e.is_weight ? &block[at(e.out - on.w.data())] : nullptr;
  }
  on.entries.back().out[0] = static_cast<TypeParam>(-1e6);
  on.entries[1].out[2] = static_cast<TypeParam>(65519);  // Rounds to the largest number.
  on.entries[1].out[1] = static_cast<TypeParam>(65520);  // Would round to infinity.
  const auto masters = on.w;
  on.run(KfacFinish<TypeParam, f16>{on.table(), nullptr, false});
  expect_same(on.w, masters);
  double past = 0;
  on.template sum<double>(PastWire<TypeParam, f16>{on.table()},
                          [&past](std::int64_t, double count) { past += count; });
  EXPECT_EQ(past, 2);
  for (const auto& e : on.entries)
    for (std::int64_t i = 0; i < e.numel; ++i) {
      const TypeParam expected = detail::quantize<f16>(e.out[i]);
      ASSERT_EQ(e.rounded[i], expected);
      if (e.block == nullptr) continue;
      ASSERT_EQ(static_cast<TypeParam>(to_float(static_cast<f16*>(e.block)[i])), expected);
    }
  EXPECT_EQ(on.entries.back().rounded[0], static_cast<TypeParam>(-65504));
  for (std::size_t i = 0; i < on.w.size(); ++i)
    if (std::isnan(on.w[i])) {
      EXPECT_TRUE(std::isnan(rounded[i]));
      EXPECT_EQ(block[i].bits, 0x7E00);
    }
}

TEST(OnWire, OfF32TakesDoublesAsTheyAre) {
  EXPECT_EQ(element::rounded_to<float>(0.1), static_cast<double>(0.1F));
  EXPECT_TRUE(fits_wire<float>(1e38));
  EXPECT_FALSE(fits_wire<float>(1e39));
  EXPECT_FALSE(fits_wire<bf16>(std::nan("")));
}

}  // namespace
}  // namespace dkfac::optim::cuda
