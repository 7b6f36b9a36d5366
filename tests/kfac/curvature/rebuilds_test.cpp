#include "kfac/curvature/rebuilds.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::Rebuilds;

/// Merges sums of 1 element into both averages of a layer; returns whether they were accepted.
bool merge_both(PlannedTable& planned, int layer, double sum) {
  const auto merge = [&](kfac::StatisticKind kind) {
    return planned.table.layer(layer).merge(planned.ctx, planned.table.options, kind,
                                            view_of(&sum, {1}), sum);
  };
  const bool a = merge(kfac::StatisticKind::a), g = merge(kfac::StatisticKind::g);
  return a && g;
}

class RebuildsOfTwoLayers : public ::testing::Test {
 protected:
  RebuildsOfTwoLayers() { rebuilds_.prepare(); }
  comm::FlagMessage flags() const {
    comm::FlagMessage message;
    rebuilds_.raise_flags(message);
    return message;
  }
  /// collect() of a step after the flags of this rank alone.
  void collect() {
    comm::AgreedFlags agreed;
    agreed.lacks_inverse = flags().lacks_inverse;
    rebuilds_.collect(agreed, report_);
  }
  static kfac::CurvatureOptions first_failure() {
    kfac::CurvatureOptions options = options_f64();
    options.inverse.max_failed_refreshes = 0;
    return options;
  }

  PlannedTable planned_{{{"first", kOneWeight}, {"second", kOneWeight}}, first_failure()};
  Rebuilds rebuilds_{planned_.table};
  kfac::StepReport report_;
};

TEST_F(RebuildsOfTwoLayers, InvertWhatIsDue) {
  ASSERT_TRUE(merge_both(planned_, 0, 4) && merge_both(planned_, 1, 9));
  collect();
  report_.step = 7;
  EXPECT_TRUE(rebuilds_.refresh(report_));
  EXPECT_TRUE(report_.inverses_refreshed);
  EXPECT_EQ(report_.inverses[0], 4);
  EXPECT_EQ(report_.inverses_step, 7);
  EXPECT_TRUE(report_.without_inverse.empty());
  EXPECT_TRUE(planned_.table.layer(0).has_inverse() && planned_.table.layer(1).has_inverse());
  EXPECT_FALSE(flags().lacks_inverse);
}

TEST_F(RebuildsOfTwoLayers, LeaveWhatIsNotDue) {
  planned_.table.options.refresh.inverse_interval = 5;
  planned_.table.schedule.configure(planned_.table.options);
  ASSERT_TRUE(merge_both(planned_, 0, 4) && merge_both(planned_, 1, 9));
  planned_.end_step();
  collect();
  EXPECT_FALSE(rebuilds_.refresh(report_));
  EXPECT_FALSE(report_.inverses_refreshed);
  EXPECT_EQ(report_.inverses[0], 0);
}

TEST_F(RebuildsOfTwoLayers, NameTheLayersWithoutAnInverse) {
  EXPECT_TRUE(flags().lacks_inverse);
  collect();
  EXPECT_FALSE(rebuilds_.refresh(report_)) << "neither has one";
  EXPECT_EQ(report_.without_inverse, (std::vector<std::string>{"first", "second"}));
  EXPECT_FALSE(rebuilds_.is_inverted(0) || rebuilds_.is_inverted(1));
  ASSERT_TRUE(merge_both(planned_, 1, 9));
  report_ = {};
  collect();
  EXPECT_TRUE(rebuilds_.refresh(report_));
  EXPECT_EQ(report_.without_inverse, std::vector<std::string>{"first"});
  EXPECT_TRUE(!rebuilds_.is_inverted(0) && rebuilds_.is_inverted(1));
}

TEST_F(RebuildsOfTwoLayers, DelayWhatTheNextStepUsesOnlyOnceAllLayersHaveInverses) {
  planned_.table.options.refresh.delay_inverses = true;
  ASSERT_TRUE(merge_both(planned_, 0, 4) && merge_both(planned_, 1, 9));
  collect();
  EXPECT_TRUE(rebuilds_.refresh(report_));
  EXPECT_EQ(report_.inverses[0], 4) << "the first inverses";
  ASSERT_TRUE(merge_both(planned_, 0, 16));
  report_ = {};
  collect();
  EXPECT_TRUE(rebuilds_.refresh(report_));
  EXPECT_EQ(report_.inverses[0], 0);
  rebuilds_.refresh_delayed(report_);
  EXPECT_EQ(report_.inverses[0], 2);
}

TEST_F(RebuildsOfTwoLayers, ThrowAFailureThatNamesTheFactor) {
  ASSERT_TRUE(merge_both(planned_, 0, 4));
  rebuilds_.find_failed();
  EXPECT_EQ(flags().failed_statistic, kfac::kNoStatistic);
  EXPECT_FALSE(merge_both(planned_, 1, std::numeric_limits<double>::quiet_NaN()));
  rebuilds_.find_failed();
  EXPECT_EQ(flags().failed_statistic, planned_.table.layer(1).g);
  comm::AgreedFlags agreed;
  rebuilds_.require_no_failure(agreed);
  agreed.flags.numeric_failure = 1;
  try {
    rebuilds_.require_no_failure(agreed);
    ADD_FAILURE() << "did not throw";
  } catch (const NumericError& error) {
    EXPECT_TRUE(contains(error.what(), "factor G of layer 'second', owned by rank 0"));
  }
}

TEST(Rebuilds, AreSharedWithTheOtherWorkers) {
  comm::run_ranks(2, [](std::shared_ptr<comm::Communicator> comm) {
    kfac::CurvatureOptions options = options_f64();
    options.distribution.grad_worker_fraction = 1;
    PlannedTable planned({{"fc", kOneWeight}}, options, comm);
    Rebuilds rebuilds(planned.table);
    rebuilds.prepare();
    EXPECT_TRUE(comm->rank() > 0 || merge_both(planned, 0, 4));
    EXPECT_FALSE(planned.table.layer(0).has_inverse());
    comm::AgreedFlags agreed;
    agreed.lacks_inverse = true;
    kfac::StepReport report;
    rebuilds.collect(agreed, report);
    EXPECT_TRUE(rebuilds.refresh(report));
    EXPECT_EQ(report.inverses[0], comm->rank() == 0 ? 2 : 0);
    EXPECT_TRUE(planned.table.layer(0).has_inverse()) << comm->rank();
    EXPECT_TRUE(rebuilds.is_inverted(0));
  });
}

}  // namespace
}  // namespace dkfac::testing
