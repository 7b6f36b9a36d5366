#include "kfac/curvature/block.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/curvature/kronecker_block.h"
#include "kfac/curvature/read_factors.h"
#include "kfac/curvature/record_parts.h"
#include "kfac/planned_table.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/saved_state.h"
#include "support/tensors.h"

namespace dkfac::kfac {
namespace {

using dkfac::testing::natural_gradient;
using testing::values;

const LinearSpec kNumber{.in = 1, .out = 1, .bias = false};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Blocks : public ::testing::Test {
 protected:
  Blocks() {
    options_.dtype = DType::f64;
    options_.damping = 0.1;
  }
  std::unique_ptr<CurvatureBlock> make(const LayerSpec& spec, bool owns = true) {
    auto block = make_block("layer", spec);
    block->allocate(ctx_, options_, {.works = true, .owns = owns, .a = owns, .g = owns});
    return block;
  }
  bool merge(CurvatureBlock& block, StatisticKind kind, std::vector<double> sum, double finite) {
    return block.merge(ctx_, options_, kind,
                       view_of(sum.data(), {static_cast<std::int64_t>(sum.size())}), finite);
  }
  /// Rebuilds stale factors and returns their number.
  std::size_t rebuild(CurvatureBlock& block, RefreshParts parts = {}) {
    std::vector<RefreshTask> tasks;
    add_refresh_tasks(ctx_, options_, block.curvature(), parts, tasks);
    RefreshWorkers(ctx_).run(tasks);
    return tasks.size();
  }
  std::vector<double> precondition(CurvatureBlock& block, std::vector<double> weight,
                                   std::vector<double> bias = {}) {
    const auto count = [](const auto& x) { return static_cast<std::int64_t>(x.size()); };
    const LayerGradient gradient =
        block.gradient(view_of(weight.data(), {count(weight)}),
                       bias.empty() ? TensorView{} : view_of(bias.data(), {count(bias)}));
    ProductBatch batch;
    apply_curvature(ctx_, options_, {&gradient, 1}, batch);
    weight.insert(weight.end(), bias.begin(), bias.end());
    return weight;
  }
  static std::vector<SharedPart> shared(CurvatureBlock& block) {
    std::vector<SharedPart> parts;
    for (const StatisticTraits& traits : block.statistics()) block.add_shared(traits.kind, parts);
    return parts;
  }

  Context ctx_;
  CurvatureOptions options_ = natural_gradient();
};

std::vector<std::string> suffixes(const CurvatureBlock& block) {
  std::vector<std::string> out;
  for (const StatisticTraits& traits : block.statistics()) out.emplace_back(traits.suffix);
  return out;
}

TEST_F(Blocks, AreOfTheKindThatTheSpecificationAsksFor) {
  using Suffixes = std::vector<std::string>;
  for (const LayerSpec& spec : {LayerSpec(kNumber), LayerSpec(Conv2dSpec{.in = 1, .out = 1})}) {
    const auto kronecker = make_block("layer", spec);
    EXPECT_EQ(suffixes(*kronecker), (Suffixes{".a", ".g"}));
    EXPECT_TRUE(kronecker->has_curvature() && kronecker->needs_input());
  }
  const auto norm = make_block("layer", NormSpec{.channels = 2});
  EXPECT_EQ(suffixes(*norm), Suffixes{".fisher"});
  EXPECT_TRUE(norm->has_curvature() && !norm->needs_input());
  const auto plain = make_block("layer", PlainSpec{.weight = 3});
  EXPECT_FALSE(plain->has_curvature() || plain->needs_input());
}

TEST_F(Blocks, AddTheRecordsOfTheirKindAlone) {
  testing::PlannedTable planned(
      {{"fc", kNumber}, {"norm", NormSpec{.channels = 1}}, {"plain", PlainSpec{.weight = 3}}});
  LayerTable& table = planned.table;
  Tensor nonfinite = Tensor::zeros(planned.ctx, {1});
  StatisticSums sums(table, 0, nonfinite, planned.ctx);
  OperandRanges ranges(table, planned.ctx);
  std::vector<comm::BucketedReduce*> active;
  sums.begin(active);
  double x = 3, mean = 1, inv_std = 1;
  const TensorView data = view_of(&x, {1, 1});
  const LayerRecord input{"record_input", StatisticKind::a, data};
  LayerRecord norm{"record_normalization", StatisticKind::norm, view_of(&x, {1, 1, 1, 1})};
  norm.mean = view_of(&mean, {1});
  norm.inv_std = view_of(&inv_std, {1});
  norm.grad_output = norm.data;
  const auto refusal = [&](int layer, const LayerRecord& record) {
    return testing::message_of([&] {
      table.layer(layer).record({table, sums, ranges, planned.ctx, nonfinite}, record);
    });
  };
  const auto records = [&](StatisticId id) { return table.statistic(id).records; };
  EXPECT_EQ(refusal(0, input), "");
  EXPECT_EQ(records(table.layer(0).a), 1);
  EXPECT_EQ(sums.of(table.layer(0).a).data<double>()[0], 9);
  EXPECT_TRUE(testing::contains(refusal(1, input), "recorded by record_normalization()"));
  EXPECT_EQ(refusal(2, input), "");
  EXPECT_TRUE(testing::contains(refusal(0, norm), "by record_input() and record_grad_output()"));
  EXPECT_EQ(records(table.layer(1).g), 0);
  EXPECT_EQ(refusal(1, norm), "");
  EXPECT_EQ(records(table.layer(1).g), 1);
  EXPECT_TRUE(testing::contains(refusal(2, norm), "by record_input() and record_grad_output()"));
}

TEST_F(Blocks, PlanEveryStatisticThatTheyHave) {
  for (const LayerSpec& spec : {LayerSpec(kNumber), LayerSpec(NormSpec{.channels = 2})})
    for (const StatisticTraits& traits : make_block("layer", spec)->statistics())
      EXPECT_GT(plan_statistic(spec, options_, traits.kind).numel(), 0) << traits.title;
}

TEST_F(Blocks, OfFactorsPreconditionWithBoth) {
  const auto block = make(kNumber);
  EXPECT_TRUE(merge(*block, StatisticKind::a, {4}, 4));
  EXPECT_EQ(rebuild(*block), 1U);
  EXPECT_FALSE(block->has_inverse());
  EXPECT_EQ(precondition(*block, {3}), std::vector<double>{3});
  EXPECT_TRUE(merge(*block, StatisticKind::g, {1}, 1));
  EXPECT_EQ(rebuild(*block, {.a = true, .g = false}), 0U);
  block->damping_changed();
  EXPECT_EQ(rebuild(*block), 2U);
  EXPECT_TRUE(block->has_inverse());
  // pi = 2: A + 2 sqrt(0.1), G + sqrt(0.1) / 2.
  const double shift = std::sqrt(0.1);
  EXPECT_TRUE(testing::near(precondition(*block, {3}),
                            std::vector<double>{3 / (4 + 2 * shift) / (1 + shift / 2)},
                            16 * testing::eps<double>));
  LayerFactors copies;
  copy_factors(ctx_, block->curvature(), copies);
  EXPECT_EQ(values(ctx_, copies.a.average), std::vector<double>{4});
  EXPECT_EQ(copies.g.statistics, 1);
  EXPECT_FALSE(copies.norm.is_set());
}

TEST_F(Blocks, CountWhatIsRefusedOfEachStatistic) {
  const auto block = make(kNumber);
  EXPECT_FALSE(merge(*block, StatisticKind::g, {1}, kNan));
  EXPECT_EQ(block->failures(StatisticKind::g).statistic, 1);
  EXPECT_EQ(block->failures(StatisticKind::a).statistic, 0);
  EXPECT_TRUE(merge(*block, StatisticKind::g, {1}, 1));
  EXPECT_EQ(block->failures(StatisticKind::g).statistic, 0);
  for (const auto mode : {NormFisher::unit_wise, NormFisher::full}) {
    options_.statistics.norm_fisher = mode;
    const auto norm = make(NormSpec{.channels = 1});
    EXPECT_FALSE(merge(*norm, StatisticKind::norm, {1, 0, 1}, kNan));
    EXPECT_EQ(norm->failures(StatisticKind::norm).statistic, 1);
    EXPECT_EQ(norm->failures(StatisticKind::norm).inversion, 0);
  }
}

TEST_F(Blocks, ShowWorkersNoAverageThatOnlyTheOwnerHas) {
  testing::Saver owner, worker;
  make(kNumber, true)->visit_state(owner, {.works = true, .owns = true, .a = true, .g = true}, 3);
  make(kNumber, false)->visit_state(worker, {.works = true}, 3);
  EXPECT_TRUE(owner.state.contains("layer.a_average"));
  EXPECT_FALSE(worker.state.contains("layer.a_average"));
  EXPECT_TRUE(worker.state.contains("layer.g_inverse"));
}

TEST_F(Blocks, OfFactorsShareInversesAndTheAgeOfTheirScales) {
  const auto block = make(kNumber);
  EXPECT_EQ(block->scales_numel(), 0);
  const std::vector<SharedPart> parts = shared(*block);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(parts[0].factor != nullptr && parts[0].statistics == nullptr);
  EXPECT_EQ(shared_numel(parts[0]), 4);  // good, kind; shift, inverse
  options_.inverse.method = InverseMethod::ekfac;
  const auto ekfac = make(kNumber);
  EXPECT_EQ(ekfac->scales_numel(), 1);
  for (const SharedPart& part : shared(*ekfac)) EXPECT_NE(part.statistics, nullptr);
}

TEST_F(Blocks, OfEkfacWantBothRecordsOfABatch) {
  options_.inverse.method = InverseMethod::ekfac;
  const auto block = make(kNumber);
  auto& factors = dynamic_cast<KroneckerBlock&>(*block);
  double number = 2, scale = 0;
  const TensorView data = view_of(&number, {1, 1}), slot = view_of(&scale, {1});
  const FactorRecord g{.data = data, .global_batch = 1};
  const auto is_due = [&](StatisticKind kind) { factors.check_alternation({"test"}, kind, data); };
  EXPECT_NO_THROW(is_due(StatisticKind::a));
  EXPECT_THROW(is_due(StatisticKind::g), InvalidArgument);
  factors.keep_input(ctx_, data);
  EXPECT_THROW(is_due(StatisticKind::a), InvalidArgument);
  EXPECT_NO_THROW(is_due(StatisticKind::g));
  *factors.scales() = {};
  EXPECT_THROW(is_due(StatisticKind::g), InvalidArgument);
  EXPECT_TRUE(merge(factors, StatisticKind::a, {4}, 4) && merge(factors, StatisticKind::g, {4}, 4));
  EXPECT_EQ(rebuild(factors), 2U);
  for (const double sum : {16.0, 32.0}) {
    factors.keep_input(ctx_, data);
    factors.record_scales(ctx_, g, slot);
    EXPECT_DOUBLE_EQ(scale, sum);
  }
  EXPECT_EQ(factors.scales()->records, 2);
}

TEST_F(Blocks, OfNormsInvertBlocksInUseAndTheFullMatrixBefore) {
  const NormSpec spec{.channels = 1};
  options_.statistics.norm_fisher = NormFisher::unit_wise;
  const auto blocks = make(spec);
  EXPECT_TRUE(merge(*blocks, StatisticKind::norm, {1, 0, 1}, 1));
  EXPECT_TRUE(blocks->has_inverse());
  EXPECT_EQ(rebuild(*blocks), 0U);
  ASSERT_EQ(shared(*blocks).size(), 1U);
  EXPECT_LT(precondition(*blocks, {1}, {1})[1], 1);
  EXPECT_NE(shared(*blocks)[0].average, nullptr);
  EXPECT_EQ(shared_numel(shared(*blocks)[0]), 4);  // statistics, and the average

  options_.statistics.norm_fisher = NormFisher::full;
  const auto full = make(spec);
  EXPECT_TRUE(merge(*full, StatisticKind::norm, {1, 0, 1}, 2));
  EXPECT_FALSE(full->has_inverse());
  EXPECT_EQ(rebuild(*full), 1U);
  EXPECT_TRUE(full->has_inverse());
  ASSERT_EQ(shared(*full).size(), 1U);
  EXPECT_NE(shared(*full)[0].factor, nullptr);
  EXPECT_LT(precondition(*full, {1}, {1})[1], 1);
}

TEST_F(Blocks, WithoutCurvatureHaveNothing) {
  const auto block = make(PlainSpec{.weight = 2});
  block->damping_changed();
  EXPECT_EQ(rebuild(*block), 0U);
  EXPECT_FALSE(block->has_inverse());
  EXPECT_EQ(precondition(*block, {1, 2}), (std::vector<double>{1, 2}));
  EXPECT_TRUE(shared(*block).empty());
  EXPECT_EQ(block->scales_numel(), 0);
}

}  // namespace
}  // namespace dkfac::kfac
