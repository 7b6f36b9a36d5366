#include "optim/updates.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/on_device.h"

namespace dkfac::testing {
namespace {

using optim::MomentumRule;
using optim::Rescale;
using optim::UpdatedPart;

// Sizes around the ends of chunks, and so many parts that separate launches would be noticed.
constexpr std::int64_t kLengths[] = {1, 5, 4095, 4096, 4097, 10000, 3, 64, 7, 12, 2, 33};

/// Parameters of a table in one place, with NaN between them.
struct Place {
  Tensor gradient, velocity, parameter, master, block;
  optim::UpdateTable table;

  Place(Context& ctx, DType dtype, std::optional<DType> wire, bool blocks) {
    Context host;
    std::int64_t total = 1;
    for (const std::int64_t n : kLengths) total += n + 1;
    std::vector<double> g(static_cast<std::size_t>(total), std::nan("")), v = g, w = g;
    std::int64_t first = 1;
    for (const std::int64_t n : kLengths) {
      for (std::int64_t i = first; i < first + n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const auto x = static_cast<double>(i);
        g[at] = std::sin(x);
        v[at] = 0.1 * std::cos(x);
        w[at] = 1 + 0.5 * std::sin(0.3 * x);
      }
      first += n + 1;
    }
    const auto put = [&](const std::vector<double>& x, DType type) {
      Tensor cast = Tensor::empty(host, {total}, type);
      ops::cast(host, view_of(x.data(), {total}), cast);
      return Tensor::copy_of(ctx, cast);
    };
    gradient = put(g, dtype);
    velocity = put(v, dtype);
    parameter = put(w, dtype);
    if (wire) master = put(w, dtype);
    const std::vector<double> nothing(w.size(), std::nan(""));
    if (blocks) block = put(nothing, wire.value_or(dtype));
    std::vector<UpdatedPart> parts;
    first = 1;
    for (const std::int64_t n : kLengths) {
      const auto of = [&](Tensor& whole) {
        return whole.is_set() ? whole.view().slice(0, first, n) : TensorView{};
      };
      const auto index = static_cast<std::int64_t>(parts.size());
      parts.push_back({.gradient = of(gradient),
                       .states = of(velocity).empty() ? TensorView{} : of(velocity).reshape({1, n}),
                       .parameter = of(parameter),
                       .master = of(master),
                       .block = of(block),
                       .lr = 1 + 0.25 * static_cast<double>(index % 4),
                       .decay = static_cast<double>(index % 3),
                       .is_weight = index % 2 == 0,
                       .preconditioned = index % 4 != 1,
                       .d_out = index % 2 == 0 ? 4 + index : 0});
      first += n + 1;
    }
    table = optim::make_update_table(ctx, dtype, std::move(parts));
  }
};

/// The same on the host and on the device, and what may differ between them.
class Updates : public OnDevice {
 protected:
  void make(std::optional<DType> wire = std::nullopt, bool blocks = false) {
    host_ = std::make_unique<Place>(cpu, dtype(), wire, blocks);
    device_ = std::make_unique<Place>(ctx, dtype(), wire, blocks);
  }
  void expect_same(double bound) { expect_same(bound, bound); }
  /// rounded: the bound of what a wire rounds.
  void expect_same(double bound, double rounded) {
    for (Tensor Place::*field :
         {&Place::gradient, &Place::velocity, &Place::parameter, &Place::master, &Place::block}) {
      if (!((*host_).*field).is_set()) continue;
      std::vector<double> expected = values(cpu, (*host_).*field);
      std::vector<double> actual = device_values(ctx, (*device_).*field);
      ASSERT_EQ(expected.size(), actual.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (std::isnan(expected[i])) {
          EXPECT_TRUE(std::isnan(actual[i])) << i;
          expected[i] = actual[i] = 0;
        } else if (std::isinf(expected[i])) {
          EXPECT_EQ(actual[i], expected[i]) << i;
          expected[i] = actual[i] = 0;
        }
      const bool on_wire = field == &Place::parameter || field == &Place::block;
      EXPECT_TRUE(near(actual, expected, on_wire ? rounded : bound));
    }
  }
  /// What update(ctx, table) launches.
  template <class Update>
  std::int64_t launches(Update update) {
    update(cpu, host_->table);
    const std::int64_t before = kernel_launches(), waits = host_waits();
    update(ctx, device_->table);
    EXPECT_EQ(host_waits(), waits);
    return kernel_launches() - before;
  }
  std::unique_ptr<Place> host_, device_;
};

TEST_P(Updates, OfSgdTakeOneKernel) {
  make();
  for (const bool nesterov : {false, true})
    for (const bool correction : {false, true})
      EXPECT_LE(launches([&](Context& on, optim::UpdateTable& table) {
                  optim::update(on, table,
                                {.lr = 0.1,
                                 .momentum = 0.9,
                                 .weight_decay = 0.01,
                                 .nesterov = nesterov,
                                 .correction = correction});
                }),
                1);
  expect_same(tolerance());
}

TEST_P(Updates, OfLarsTakeThreeKernels) {
  using optim::LarsForm;
  for (const LarsForm form :
       {LarsForm::mlperf, LarsForm::larc, LarsForm::joint_norm, LarsForm::clipped})
    for (const bool nesterov : {false, true}) {
      const optim::LarsOptions options{.form = form,
                                       .nesterov = nesterov,
                                       .weight_decay = 0.01,
                                       .eta = 0.02,
                                       .max_trust = 0.015};
      make();
      for (int step = 0; step < 3; ++step)
        EXPECT_LE(launches([&](Context& on, optim::UpdateTable& table) {
                    optim::lars_update(on, table, options, 0.3);
                  }),
                  3);
      expect_same(tolerance());
    }
}

TEST_P(Updates, OfKfacFollowEveryRule) {
  for (const MomentumRule rule : {MomentumRule::corrected, MomentumRule::paper})
    for (const Rescale rescale : {Rescale::off, Rescale::always, Rescale::shrink})
      for (const bool blocks : {false, true}) {
        make(std::nullopt, blocks);
        Tensor clip = Tensor::empty(cpu, {1}, DType::f64);
        ops::fill(cpu, clip, 0.25);
        Tensor clip_there = Tensor::copy_of(ctx, clip);
        EXPECT_LE(launches([&](Context& on, optim::UpdateTable& table) {
                    optim::kfac_update(
                        on, table,
                        {.pass =
                             optim::KfacPass{
                                 .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .rule = rule},
                         .rescale = rescale,
                         .clip = on.device().is_cuda() ? clip_there.view() : clip.view()});
                  }),
                  4);
        expect_same(tolerance());
      }
}

/// What becomes of a weight past every wire.
double saturated(DType wire) {
  if (wire == DType::f16) return 65504;
  return wire == DType::bf16 ? 0x1.FEp127 : std::numeric_limits<double>::infinity();
}

/// Relative distance of two neighbours.
double unit_of(DType wire) {
  return wire == DType::f16 ? 0x1p-10 : (wire == DType::bf16 ? 0x1p-7 : 0x1p-23);
}

TEST_P(Updates, OfMastersPublishWhatTheWireHolds) {
  // One weight past every wire, the last of a part that is not rescaled.
  constexpr std::size_t kPart = 5;
  constexpr std::int64_t kAt = kLengths[kPart] - 1;
  const auto publish = [&](DType wire, MomentumRule rule, Rescale rescale) {
    make(wire, true);
    const std::pair<Context*, UpdatedPart*> places[] = {{&cpu, &host_->table.parts[kPart]},
                                                        {&ctx, &device_->table.parts[kPart]}};
    ASSERT_EQ(places[0].second->d_out, 0);
    const double past = wire == DType::f16 ? 1e5 : (dtype() == DType::f64 ? 1e300 : 3.4e38);
    for (const auto& [on, part] : places) ops::fill(*on, part->master.slice(0, kAt, 1), past);
    Tensor count = Tensor::zeros(cpu, {1}, DType::f64),
           count_there = Tensor::zeros(ctx, {1}, DType::f64);
    EXPECT_LE(launches([&](Context& on, optim::UpdateTable& table) {
                optim::kfac_update(
                    on, table,
                    {.pass = optim::KfacPass{.lr = 1e-3, .momentum = 0.9, .rule = rule},
                     .rescale = rescale,
                     .wire = wire,
                     .saturated = on.device().is_cuda() ? count_there.view() : count.view()});
              }),
              rescale == Rescale::off ? 4 : 6);
    EXPECT_EQ(*count.data<double>(), 1);
    EXPECT_EQ(device_values(ctx, count_there), (std::vector<double>{1}));
    for (const auto& [on, part] : places) {
      const std::vector<double> expected{saturated(wire)};
      EXPECT_EQ(device_values(*on, part->parameter.slice(0, kAt, 1)), expected);
      EXPECT_EQ(device_values(*on, part->block.slice(0, kAt, 1)), expected);
      // Errors of the others would be small beside it.
      for (const TensorView& x : {part->parameter, part->block, part->master, part->state(0)})
        ops::fill(*on, x.slice(0, kAt, 1), 0);
    }
    // Masters agree to the bound; rounding to the wire may turn that into one of its steps.
    expect_same(tolerance(), std::max(tolerance(), unit_of(wire)));
  };
  for (const DType wire : {DType::f16, DType::bf16, DType::f32})
    for (const MomentumRule rule : {MomentumRule::corrected, MomentumRule::paper})
      for (const Rescale rescale : {Rescale::off, Rescale::always, Rescale::shrink}) {
        SCOPED_TRACE(detail::concat(wire, ' ', static_cast<int>(rule), static_cast<int>(rescale)));
        if (wire != dtype()) publish(wire, rule, rescale);
      }
}

TEST_P(Updates, GiveTheSameBitsTwice) {
  std::vector<double> first;
  for (int run = 0; run < 2; ++run) {
    make();
    optim::lars_update(ctx, device_->table, {}, 0.3);
    optim::kfac_update(ctx, device_->table,
                       {.pass = optim::KfacPass{.lr = 0.1}, .rescale = Rescale::always});
    std::vector<double> all = device_values(ctx, device_->parameter);
    for (double& x : all)
      if (std::isnan(x)) x = -1;
    if (run == 0) first = all;
    EXPECT_EQ(all, first);
  }
}

TEST_P(Updates, RefuseTensorsOfAnotherPlace) {
  Tensor here = Tensor::zeros(cpu, {3}, dtype()), there = Tensor::zeros(ctx, {3}, dtype());
  const auto table = [&](TensorView gradient) {
    (void)optim::make_update_table(
        ctx, dtype(),
        {{.gradient = gradient, .states = there.view().reshape({1, 3}), .parameter = there}});
  };
  EXPECT_NO_THROW(table(there));
  EXPECT_THROW(table(here), InvalidArgument);
  EXPECT_THROW(table(there.view().slice(0, 0, 2)), InvalidArgument);
}

DKFAC_ON_DEVICE(Updates);

}  // namespace
}  // namespace dkfac::testing
