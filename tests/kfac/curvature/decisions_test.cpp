#include "kfac/curvature/decisions.h"

#include <limits>

#include <gtest/gtest.h>

#include "kfac/planned_table.h"

namespace dkfac::testing {
namespace {

using kfac::Decisions;
using kfac::Recorder;

class DecisionsOfOneLayer {
 public:
  explicit DecisionsOfOneLayer(const kfac::CurvatureOptions& options)
      : planned_({{"fc", kOneWeight}}, options),
        recorder_(planned_.table, {}),
        decisions_(planned_.table) {
    recorder_.prepare(comm::kFlagElements);
    decisions_.prepare();
  }
  /// A step with these sums; returns the decision on A.
  kfac::RefreshDecision step(double a, double g) {
    std::vector<comm::BucketedReduce*> active;
    recorder_.begin(active);
    for (const auto& [id, value] : {std::pair(0, a), std::pair(1, g)})
      ops::fill(planned_.ctx, recorder_.sums().of(id), value);
    recorder_.request();
    decisions_.request(recorder_);
    decisions_.collect();
    for (int id = 0; id < 2; ++id) {
      kfac::Statistic& s = planned_.table.statistic(id);
      if (s.history.is_set())
        s.history.keep(planned_.ctx, recorder_.sums().of(id).reshape(s.plan.shape));
    }
    return decisions_.all()[0];
  }

 private:
  PlannedTable planned_;
  Recorder recorder_;
  Decisions decisions_;
};

TEST(Decisions, RefreshAStatisticLaterThatHasNotChanged) {
  kfac::CurvatureOptions options = options_f64();
  options.refresh.staleness = kfac::Staleness::adaptive;
  DecisionsOfOneLayer layer(options);
  EXPECT_EQ(layer.step(4, 1).interval, 1) << "there is no earlier value";
  EXPECT_EQ(layer.step(4, 1).interval, 1) << "there is one";
  const kfac::RefreshDecision same = layer.step(4, 1);
  EXPECT_EQ(same.interval, 2) << "similar to both: the sum of the last two intervals";
  EXPECT_EQ(same.drift, 0);
  const kfac::RefreshDecision other = layer.step(6, 1);
  EXPECT_EQ(other.interval, 1);
  EXPECT_EQ(other.drift, 0.5);
}

TEST(Decisions, DoNotCompareASumThatIsNotFinite) {
  kfac::CurvatureOptions options = options_f64();
  options.refresh.staleness = kfac::Staleness::adaptive;
  DecisionsOfOneLayer layer(options);
  for (int step = 0; step < 3; ++step) (void)layer.step(4, 1);
  const kfac::RefreshDecision decision = layer.step(std::numeric_limits<double>::infinity(), 1);
  EXPECT_EQ(decision.interval, 1);
  EXPECT_LT(decision.drift, 0);
}

TEST(Decisions, ScaleAnF16WireByTheLargestMagnitude) {
  kfac::CurvatureOptions options = options_f64();
  EXPECT_EQ(DecisionsOfOneLayer(options).step(40, 1).exponent, comm::kNoExponent);
  options.communication.statistics_wire = DType::f16;
  DecisionsOfOneLayer layer(options);
  EXPECT_EQ(layer.step(40, 1).exponent, comm::exponent_of(40));
  EXPECT_EQ(layer.step(0.1, 1).exponent, comm::exponent_of(0.1));
}

}  // namespace
}  // namespace dkfac::testing
