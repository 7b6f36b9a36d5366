#include "kfac/curvature/operand_ranges.h"

#include <limits>

#include <gtest/gtest.h>

#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/saved_state.h"

namespace dkfac::testing {
namespace {

using kfac::OperandRanges;

class RangesOfOneLayer : public ::testing::Test {
 protected:
  static kfac::CurvatureOptions with_operand(DType operand) {
    kfac::CurvatureOptions options = options_f64();
    options.statistics.operand = operand;
    return options;
  }
  /// A record whose product has found `largest`.
  void record(double largest) {
    ops::fill(planned_.ctx, ranges_.measure(0).max_abs, largest);
    ranges_.measured(0, nonfinite_);
    ++planned_.table.statistic(0).records;
  }
  double scale_of(double data) {
    const std::vector<double> x{data};
    return ranges_.operand(0, view_of(x.data(), {1, 1})).scale;
  }

  PlannedTable planned_{{{"fc", kOneWeight}}, with_operand(DType::f16)};
  OperandRanges ranges_{planned_.table, planned_.ctx};
  Tensor nonfinite_ = Tensor::zeros(planned_.ctx, {1});
};

TEST_F(RangesOfOneLayer, ScaleByTheDataUntilAStepIsAccepted) {
  EXPECT_EQ(ranges_.known(0), 0);
  EXPECT_EQ(scale_of(3), kfac::operand_scale(DType::f16, 3));
  record(5e-6);
  ranges_.request();
  EXPECT_EQ(ranges_.known(0), 0) << "not accepted yet";
  ranges_.accept(0);
  EXPECT_EQ(ranges_.known(0), static_cast<double>(5e-6F));
  EXPECT_EQ(scale_of(3), kfac::operand_scale(DType::f16, 5e-6));
  EXPECT_NE(scale_of(3), kfac::operand_scale(DType::f16, 3));
}

TEST_F(RangesOfOneLayer, AreOfAllRecordsOfAStep) {
  for (const double largest : {2.0, 7.0, 4.0}) record(largest);
  ranges_.request();
  ranges_.accept(0);
  EXPECT_EQ(ranges_.known(0), 7);
}

TEST_F(RangesOfOneLayer, CountOneThatIsNotFinite) {
  record(1);
  EXPECT_EQ(values(planned_.ctx, nonfinite_), std::vector<double>{0});
  record(std::numeric_limits<double>::infinity());
  EXPECT_EQ(values(planned_.ctx, nonfinite_), std::vector<double>{1});
}

TEST_F(RangesOfOneLayer, CountWhatRoundsToZeroInOneStep) {
  ops::fill(planned_.ctx, ranges_.measure(0).underflow, 4);
  ranges_.request();
  EXPECT_EQ(ranges_.underflow(), 4);
  ranges_.begin_step();
  ranges_.request();
  EXPECT_EQ(ranges_.underflow(), 0);
}

TEST_F(RangesOfOneLayer, ContinueFromASavedState) {
  record(6);
  ranges_.request();
  ranges_.accept(0);
  Saver saver;
  ranges_.visit_state(saver);
  OperandRanges other(planned_.table, planned_.ctx);
  EXPECT_EQ(other.known(0), 0);
  const std::vector<SavedState> saved{saver.state};
  Loader loader(saved, 0);
  other.visit_state(loader);
  EXPECT_EQ(other.known(0), 6);
}

TEST_F(RangesOfOneLayer, AreNotMeasuredWithoutAnOperandType) {
  PlannedTable exact({{"fc", kOneWeight}});
  OperandRanges ranges(exact.table, exact.ctx);
  EXPECT_TRUE(ranges.measure(0).max_abs.empty());
  const double x = 3;
  EXPECT_EQ(ranges.operand(0, view_of(&x, {1, 1})).scale, 1);
  EXPECT_EQ(ranges.operand(0, view_of(&x, {1, 1})).type, DType::f64);
  PlannedTable bf16({{"fc", kOneWeight}}, with_operand(DType::bf16));
  OperandRanges unscaled(bf16.table, bf16.ctx);
  EXPECT_EQ(unscaled.operand(0, view_of(&x, {1, 1})).type, DType::bf16);
  EXPECT_EQ(unscaled.operand(0, view_of(&x, {1, 1})).scale, 1);
}

}  // namespace
}  // namespace dkfac::testing
