#include "dkfac/kfac/report.h"

#include <vector>

#include <gtest/gtest.h>

namespace dkfac::kfac {
namespace {

TEST(StepReport, DescribesAStepInOneLine) {
  StepReport report;
  report.step = 12;
  report.updated = true;
  report.statistics_refreshed = report.inverses_refreshed = true;
  report.failed_factors = 2;
  report.damping = 0.25;
  report.bytes = 640;
  EXPECT_EQ(report.brief(),
            "step 12: updated, statistics, inverses, 2 factors failed, old one kept, damping 0.25, "
            "640 bytes");
}

TEST(StepReport, ReportsWhatWasSkippedAndTheStagesOfInversion) {
  const std::vector<StatisticReport> statistics{{.layer = 0, .refreshed = true},
                                                {.layer = 0, .kind = StatisticKind::g},
                                                {.layer = 1, .kind = StatisticKind::norm}};
  StepReport report;
  report.step = 7;
  report.updated = report.statistics_refreshed = true;
  report.statistics = statistics;
  report.inverses = {4, 1, 0, 2, 0};
  report.bytes = 80;
  report.bytes_skipped = 560;
  EXPECT_EQ(report.brief(),
            "step 7: updated, 1 of 3 statistics, 1 inverses more damped, 2 inverses clipped, "
            "80 bytes (560 skipped)");
}

TEST(StepReport, CountsLayersWithoutAnInverse) {
  StepReport report;
  report.step = 1;
  report.without_inverse = {"a", "b"};
  EXPECT_EQ(report.brief(), "step 1: skipped, 2 layers without an inverse, 0 bytes");
}

TEST(StepReport, ReportsWhichFlagsRejectedAStep) {
  StepReport report;
  report.step = 3;
  report.agreement.nonfinite_loss = 1;
  report.agreement.nonfinite_gradient = 2;
  EXPECT_EQ(report.brief(),
            "step 3: skipped, 1 rank: loss not finite, 2 ranks: gradient not finite, 0 bytes");
}

}  // namespace
}  // namespace dkfac::kfac
