#include "kfac/distribution/cost_model.h"

#include <limits>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using kfac::CostModel, kfac::FactorForm, kfac::FactorPlan, kfac::LinearCost, kfac::MeasureCost;

FactorPlan plan_of(std::int64_t dim, const FactorForm* form) {
  return {.dim = dim, .groups = 1, .form = form, .rows = 0};
}

TEST(CostModel, CountsOperationsUnlessItWasMeasured) {
  const CostModel model;
  const FactorPlan plan = plan_of(100, FactorForm::inverse);
  EXPECT_DOUBLE_EQ(kfac::refresh_seconds(model, plan), 1e-11 * kfac::refresh_operations(plan));
  EXPECT_DOUBLE_EQ(kfac::apply_seconds(model, plan, 30), 1e-11 * kfac::apply_operations(plan, 30));
  EXPECT_EQ(kfac::refresh_seconds(model, {}), 0);
}

TEST(CostModel, SpreadsARebuildOverItsInterval) {
  const LayerSpec spec = LinearSpec{.in = 40, .out = 30};
  CostModel model;
  model.apply.fill({0, 0});
  kfac::CurvatureOptions options = natural_gradient();
  options.inverse.method = kfac::InverseMethod::eigen;
  const auto seconds = [&](const LayerSpec& of) {
    return kfac::factor_seconds(model, of, options).whole();
  };
  const double each = seconds(spec);
  options.refresh.inverse_interval = 10;
  EXPECT_DOUBLE_EQ(seconds(spec), each / 10);
  // A new inverse needs a new statistic.
  options.refresh.inverse_interval = 1;
  options.refresh.statistics_interval = 10;
  EXPECT_DOUBLE_EQ(seconds(spec), each / 10);
  EXPECT_EQ(seconds(NormSpec{.channels = 8}), 0);
}

TEST(CostModel, IsTheSameOnAllRanksAfterCalibration) {
  comm::run_ranks(3, [](auto comm) {
    Context ctx;
    for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::eigen}) {
      kfac::CurvatureOptions options;
      options.inverse.method = method;
      options.statistics.new_weight = 1;
      const CostModel model = kfac::calibrate(*comm, options, kfac::measure_on(ctx, options.dtype));
      std::string text;
      for (const auto* costs : {&model.refresh, &model.apply})
        for (const LinearCost& c : *costs) {
          EXPECT_GT(c.per_operation, 0);
          EXPECT_GE(c.fixed, 0);
          text += detail::concat(1e15 * c.per_operation, ' ', 1e9 * c.fixed, ' ');
        }
      comm::require_equal(*comm, text, "costs");
    }
  });
}

/// Costs that a machine could have: a call, and a rate per operation.
MeasureCost scripted(double scale, std::vector<std::int64_t>* widths = nullptr) {
  return [scale, widths](const FactorPlan& plan) {
    if (widths != nullptr) widths->push_back(plan.dim);
    return kfac::MeasuredCost{
        scale * (3e-5 + 2e-11 * kfac::refresh_operations(plan)),
        scale * (1e-5 + 4e-12 * kfac::apply_operations(plan, kfac::kCostColumns))};
  };
}

TEST(CostModel, FindsTheFixedCostAndTheRateOfAScript) {
  const auto comm = comm::make_self();
  kfac::CurvatureOptions options;
  const CostModel model = kfac::calibrate(*comm, options, scripted(1e-2));
  for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky}) {
    const auto i = static_cast<std::size_t>(form->index);
    // c*n*eps with c*n = 1e5: the widths' operations are some 1700 to 1, and enter squared.
    const double bar = 1e5 * std::numeric_limits<double>::epsilon();
    EXPECT_NEAR(model.refresh[i].fixed, 3e-7, 3e-7 * bar);
    EXPECT_NEAR(model.refresh[i].per_operation, 2e-13, 2e-13 * bar);
    EXPECT_NEAR(model.apply[i].fixed, 1e-7, 1e-7 * bar);
    EXPECT_NEAR(model.apply[i].per_operation, 4e-14, 4e-14 * bar);
  }
  // Forms that no plan uses are not measured.
  EXPECT_EQ(model.refresh[static_cast<std::size_t>(FactorForm::eigen->index)].per_operation, 1e-11);
  EXPECT_EQ(kfac::refresh_seconds(model, plan_of(300, FactorForm::inverse)),
            kfac::refresh_seconds(kfac::calibrate(*comm, options, scripted(1e-2)),
                                  plan_of(300, FactorForm::inverse)));
}

TEST(CostModel, IsMeasuredByRankZeroAndNoLongerThanItMust) {
  using Widths = std::vector<std::int64_t>;
  for (const auto& [scale, expected] :
       {std::pair(1e-2, Widths{64, 256, 768, 64, 256, 768}), {1e3, Widths{64, 64}}})
    comm::run_ranks(2, [&](auto comm) {
      Widths widths;
      (void)kfac::calibrate(*comm, {}, scripted(scale, &widths));
      EXPECT_EQ(widths, comm->rank() == 0 ? expected : Widths{});
    });
}

TEST(CostModel, IsPositiveWhateverWasMeasured) {
  using Samples = std::vector<kfac::CostSample>;
  for (const Samples& samples :
       {Samples{{1e6, 0}}, Samples{{1e6, 5e-3}, {1e8, 1e-3}},  // slower where there is less to do
        Samples{{1e6, 1e-6}, {1e8, 9e-3}}}) {                  // less than nothing to begin with
    const LinearCost cost = kfac::fit_cost(samples);
    EXPECT_EQ(cost.fixed, 0);
    EXPECT_GT(cost.per_operation, 0);
  }
}

/// Owners of layers on two ranks: an average is part of its owner's state alone.
std::vector<int> owners_of(const std::vector<LinearSpec>& specs,
                           const kfac::CurvatureOptions& options) {
  std::vector<int> owners(specs.size(), -1);
  comm::run_ranks(2, [&](auto comm) {
    kfac::Preconditioner preconditioner(comm, options);
    for (std::size_t i = 0; i < specs.size(); ++i)
      (void)preconditioner.add_layer(detail::concat("fc", i), specs[i]);
    preconditioner.prepare();
    Saver saver;
    preconditioner.visit_state(saver);
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (saver.state.contains(detail::concat("fc", i, ".a_average"))) owners[i] = comm->rank();
  });
  return owners;
}

TEST(CostModel, AssignsOwnersByTimeWhereItIsMeasured) {
  const LinearSpec wide{.in = 300, .out = 1, .bias = false},
      square{.in = 128, .out = 128, .bias = false};
  kfac::CurvatureOptions options;
  // Counts do not know how rarely inverses are rebuilt: 300^3 operations outweigh all others.
  options.refresh.inverse_interval = 1'000'000'000;
  EXPECT_EQ(owners_of({wide, square, square}, options), (std::vector<int>{0, 1, 1}));
  // Over so many steps all forms are inverses and only products take time, most of it in the square
  // layers, whatever a product costs: one for each rank, and then the wide layer.
  options.distribution.calibrate = true;
  EXPECT_EQ(owners_of({wide, square, square}, options), (std::vector<int>{0, 0, 1}));
}

TEST(CostModel, ChangesNothingButWhoOwnsWhat) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  const MakeOptimizer counted = [&](auto comm) { return optim::make_kfac(comm, options); };
  const std::vector<double> alone = train_ranks<double>(1, counted, {.steps = 5});
  options.curvature.distribution.calibrate = true;
  // As for any number of ranks, over 20 steps at that.
  for (const int ranks : {1, 3})
    EXPECT_TRUE(near(train_ranks<double>(ranks, counted, {.steps = 5}), alone, 1e-10)) << ranks;
}

}  // namespace
}  // namespace dkfac::testing
