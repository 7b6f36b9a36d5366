#include "kfac/curvature/record_parts.h"

#include <limits>

#include <gtest/gtest.h>

#include "kfac/curvature/kronecker_block.h"
#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::LayerTable;

kfac::CurvatureOptions two_records() {
  kfac::CurvatureOptions options = options_f64();
  options.statistics.micro_batches = 2;
  return options;
}

class PartsOfRecords : public ::testing::Test {
 protected:
  double check(RecordScale scale = {}) {
    return kfac::check_record(planned_.table, kCaller, 0, data(), 3, scale);
  }
  bool count(std::int64_t samples = 3) {
    return kfac::count_record(planned_.table, 0, 6, samples, samples, 1);
  }
  [[nodiscard]] ConstTensorView data() const { return view_of(x_.data(), {3, 1}); }
  /// Adds the record to sum_.
  void add() {
    LayerTable& table = planned_.table;
    kfac::add_record(table, kCaller, 0, table.layer(0).spec, {.data = data(), .global_batch = 3}, 3,
                     {planned_.ctx, view_of(sum_.data(), {1}), nonfinite_});
  }

  inline static const Caller kCaller{"record_input", "fc"};
  std::vector<double> x_{1, 2, 3}, sum_{std::numeric_limits<double>::quiet_NaN()};
  PlannedTable planned_{{{"fc", kOneWeight}}, two_records()};
  Tensor nonfinite_ = Tensor::zeros(planned_.ctx, {1});
};

TEST_F(PartsOfRecords, GiveTheSamplesOfAllRanksAndRecords) {
  EXPECT_EQ(check(), 6);
  EXPECT_EQ(check({.loss_scale = 1, .global_batch = 40}), 40);
}

TEST_F(PartsOfRecords, AreRefusedWithAReason) {
  EXPECT_TRUE(contains(message_of([&] { check({.loss_scale = -1}); }), "loss_scale is -1"));
  EXPECT_TRUE(contains(message_of([&] { check({.loss_scale = 1, .global_batch = -2}); }),
                       "global_batch is -2"));
  EXPECT_FALSE(count(2));
  EXPECT_TRUE(contains(message_of([&] { check(); }), "a record of 3 samples follows one of 2"));
  EXPECT_EQ(message_of([&] { check({.loss_scale = 1, .global_batch = 5}); }), "");
  EXPECT_TRUE(count());
  EXPECT_TRUE(contains(message_of([&] { check(); }), "micro_batches = 2 times in one step"));
}

TEST_F(PartsOfRecords, AreOfTheSameSamplesInBothFactors) {
  LayerTable& table = planned_.table;
  for (int record = 0; record < 2; ++record) (void)kfac::count_record(table, 1, 6, 3, 3, 1);
  EXPECT_FALSE(count(3));
  EXPECT_EQ(message_of([&] { check(); }), "");
  EXPECT_TRUE(
      contains(message_of([&] { (void)kfac::check_record(table, kCaller, 0, data(), 4, {}); }),
               "6 samples in 7 rows"));
}

TEST_F(PartsOfRecords, OverwriteWithTheFirstAndAddTheOthers) {
  add();
  EXPECT_DOUBLE_EQ(sum_[0], (1 + 4 + 9) / 3.0);
  EXPECT_FALSE(count());
  add();
  EXPECT_DOUBLE_EQ(sum_[0], 2 * (1 + 4 + 9) / 3.0);
  EXPECT_EQ(values(planned_.ctx, nonfinite_), std::vector<double>{0});
}

TEST_F(PartsOfRecords, CountWhatIsNotFinite) {
  x_[1] = std::numeric_limits<double>::infinity();
  add();
  EXPECT_GT(values(planned_.ctx, nonfinite_)[0], 0);
}

TEST_F(PartsOfRecords, AreCountedUntilTheLast) {
  EXPECT_FALSE(count());
  EXPECT_EQ(planned_.table.statistic(0).samples, 3);
  const double flops = planned_.table.statistic(0).step_flops;
  EXPECT_GT(flops, 0);
  EXPECT_TRUE(count());
  EXPECT_EQ(planned_.table.statistic(0).samples, 6);
  EXPECT_EQ(planned_.table.statistic(0).step_flops, 2 * flops);
}

}  // namespace
}  // namespace dkfac::testing
