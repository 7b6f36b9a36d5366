#include "dkfac/kfac/report.h"

#include <gtest/gtest.h>

namespace dkfac::kfac {
namespace {

TEST(StepReport, TellsAStepInOneLine) {
  StepReport report;
  report.step = 12;
  report.updated = true;
  report.statistics_refreshed = report.inverses_refreshed = true;
  report.failed_factors = 2;
  report.damping = 0.25;
  report.bytes = 640;
  EXPECT_EQ(report.brief(),
            "step 12: updated, statistics, inverses, 2 inverses kept, damping 0.25, 640 bytes");
}

TEST(StepReport, SaysWhoVotedAgainstAStep) {
  StepReport report;
  report.step = 3;
  report.vote.nonfinite_loss = 1;
  report.vote.nonfinite_gradient = 2;
  EXPECT_EQ(report.brief(),
            "step 3: skipped, 1 rank: loss not finite, 2 ranks: gradient not finite, 0 bytes");
}

}  // namespace
}  // namespace dkfac::kfac
