#include "kfac/distribution/split_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/distribution/plan_owners.h"
#include "kfac/inverse/split_inverse.h"
#include "kfac/resnet50_layers.h"

namespace dkfac::kfac {
namespace {

/// Explicit inverses of whole factors.
CurvatureOptions wide_options(bool split_wide, bool split_factors = false) {
  CurvatureOptions options;
  options.refresh.inverse_interval = 100;
  options.inverse.block_width = -1;
  options.distribution.split_wide = split_wide;
  options.distribution.split_factors = split_factors;
  return options;
}

std::vector<LayerOwners> planned(const std::vector<LayerSpec>& specs,
                                 const CurvatureOptions& options, int ranks) {
  return plan_owners(specs, options, {}, ranks, Device::cpu());
}

double cubed(std::int64_t d) { return std::pow(static_cast<double>(d), 3); }

/// Of each rank, by the formulas: d^3 of an inverse, and where several ranks compute it the
/// critical path and 40 operations for each element that the busiest rank hands over in f32.
std::vector<double> work_of(const std::vector<LayerSpec>& specs,
                            const std::vector<LayerOwners>& owners, int ranks) {
  std::vector<double> work(static_cast<std::size_t>(ranks));
  const auto add = [&](int rank, double flops) { work[static_cast<std::size_t>(rank)] += flops; };
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const LayerOwners& at = owners[i];
    const std::int64_t a = a_dim(specs[i]), g = g_dim(specs[i]);
    add(at.layer, 2.0 * static_cast<double>(a * g * (a + g)));
    for (const auto& [d, owner, together] :
         {std::tuple(a, at.a, at.ranks_a), {g, at.g, at.ranks_g}}) {
      const double sent = 40 * (static_cast<double>(ops::packed_size(d)) + 1);
      if (owner != at.layer) {
        add(owner, sent);
        add(at.layer, sent);
      }
      if (together == 1) {
        add(owner, cubed(d));
        continue;
      }
      const int first = owner / together * together;
      for (int r = first; r < first + together; ++r)
        add(r, split_flops(d, together) + 40 * split_numel(d, together));
    }
  }
  return work;
}

double total_of(const std::vector<LayerSpec>& specs) {
  double sum = 0;
  for (const double work : work_of(specs, std::vector<LayerOwners>(specs.size(), 0), 1))
    sum += work;
  return sum;
}

std::map<int, int> factors_by_ranks(const std::vector<LayerOwners>& owners) {
  std::map<int, int> factors;
  for (const LayerOwners& at : owners)
    for (const int ranks : {at.ranks_a, at.ranks_g})
      if (ranks > 1) ++factors[ranks];
  return factors;
}

// The table of docs/distribution.md, "A factor on several ranks".
TEST(SplitPlan, EvensOutTheWorkOfResNet50) {
  const std::vector<LayerSpec> specs = testing::resnet50_layers();
  struct Balance {
    int ranks;
    double before, after, with_factors;  ///< Largest over the even share, to two decimals.
    std::map<int, int> factors;          ///< By the ranks that invert them together.
  };
  for (const Balance& expected : {Balance{2, 1.00, 1.00, 1.00, {}},
                                  {4, 1.00, 1.00, 1.00, {}},
                                  {8, 1.60, 1.08, 1.08, {{2, 3}}},
                                  {64, 12.84, 4.53, 2.60, {{2, 6}, {8, 3}}},
                                  {512, 102.69, 36.25, 20.78, {{2, 4}, {4, 13}, {8, 3}}}}) {
    const auto balance = [&](const CurvatureOptions& options) {
      const auto work = work_of(specs, planned(specs, options, expected.ranks), expected.ranks);
      return std::round(100 * *std::ranges::max_element(work) * expected.ranks / total_of(specs)) /
             100;
    };
    EXPECT_EQ(balance(wide_options(false)), expected.before) << expected.ranks;
    EXPECT_EQ(balance(wide_options(true)), expected.after) << expected.ranks;
    EXPECT_EQ(balance(wide_options(true, true)), expected.with_factors) << expected.ranks;
    EXPECT_EQ(factors_by_ranks(planned(specs, wide_options(true), expected.ranks)),
              expected.factors)
        << expected.ranks;
  }
}

TEST(SplitPlan, TakesNoMoreRanksThanAnEvenShareNeeds) {
  // One factor of 1,000 among seven: on two ranks it is above an even share of 2, on 3 and 4 it is.
  const std::vector<LayerSpec> even(7, LinearSpec{.in = 1000, .out = 4, .bias = false});
  for (const auto& [ranks, together] : {std::pair(1, 1), {2, 1}, {4, 1}, {8, 2}, {32, 4}})
    EXPECT_EQ(planned(even, wide_options(true), ranks)[0].ranks_a, together) << ranks;
  // Never more than there are: three ranks have one pair.
  const std::vector<LayerSpec> one{LinearSpec{.in = 1000, .out = 4, .bias = false}};
  EXPECT_EQ(planned(one, wide_options(true), 3)[0].ranks_a, 2);
}

TEST(SplitPlan, LeavesOtherFormsToOneRank) {
  const LinearSpec wide{.in = 1000, .out = 4, .bias = false};
  const auto together = [](const LayerSpec& spec, const CurvatureOptions& options) {
    return planned({spec}, options, 4)[0].ranks_a;
  };
  EXPECT_EQ(together(wide, wide_options(true)), 4);
  EXPECT_EQ(together(wide, wide_options(false)), 1);
  CurvatureOptions options = wide_options(true);
  options.refresh.inverse_interval = 1;
  EXPECT_EQ(plan_a(wide, options).form, FactorForm::cholesky);
  EXPECT_EQ(together(wide, options), 4);
  options.inverse.block_width = 500;
  EXPECT_EQ(together(wide, options), 1);
  options = wide_options(true);
  options.statistics.new_weight = 1;
  EXPECT_EQ(together(LinearSpec{.in = 1000, .out = 4, .max_rows = 8}, options), 1);
  EXPECT_EQ(together(Conv2dSpec{.in = 2000, .out = 4, .groups = 2}, wide_options(true)), 1);
  EXPECT_EQ(together(EmbeddingSpec{.vocabulary = 5000, .width = 4}, wide_options(true)), 1);
}

TEST(SplitPlan, CountsWorkAlsoWhereOwnersFollowMeasuredCosts) {
  // Costs that are as low as these would leave every factor to one rank.
  CostModel costs;
  for (LinearCost& cost : costs.refresh) cost.per_operation = 1e-20;
  CurvatureOptions options = wide_options(true);
  options.distribution.calibrate = true;
  const std::vector<LayerSpec> one{LinearSpec{.in = 1000, .out = 4, .bias = false}};
  EXPECT_EQ(plan_owners(one, options, costs, 4, Device::cpu())[0].ranks_a, 4);
}

TEST(SplitPlan, IsThatOfExplicitInversesOnADevice) {
  const std::vector<LayerSpec> one{LinearSpec{.in = 1000, .out = 4, .bias = false}};
  const auto plan = [&](Device device) {
    return plan_owners(one, wide_options(true), {}, 4, device)[0];
  };
  EXPECT_EQ(plan(Device::cuda(0)).ranks_a, 4);
  EXPECT_EQ(plan(Device::cuda(0)), plan(Device::cpu()));
  const FactorPlan a = plan_a(one[0], wide_options(true), Device::cuda(0));
  EXPECT_EQ(a.form, FactorForm::inverse);
  EXPECT_EQ(split_part(a, 4), split_flops(1000, 4) / 1e9);
}

}  // namespace
}  // namespace dkfac::kfac
