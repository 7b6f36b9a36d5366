#include "kfac/curvature/curvature.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/saved_state.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::Curvature;

/// Layers of one weight each on one rank, whose step needs no reduction.
class CurvatureOfOneRank {
 public:
  explicit CurvatureOfOneRank(const kfac::CurvatureOptions& options = options_f64())
      : curvature(ctx, comm::make_self(), options, {}) {
    for (const char* name : {"first", "second"}) curvature.add_layer(name, kOneWeight);
    curvature.prepare(comm::make_worker_grid(comm::make_self(), 0), comm::kFlagElements);
    begin();
  }
  void begin() {
    std::vector<comm::BucketedReduce*> active;
    curvature.recorder().begin(active);
  }
  /// Records x and dy in each layer where they are due, and ends the step; returns whether to
  /// update.
  bool step(double x, double dy, const StepAgreement& agreement = {}) {
    report = {};
    for (const LayerId layer : {LayerId{0}, LayerId{1}}) {
      curvature.recorder().record(layer, Stream::cpu(),
                                  kfac::input_record(view_of(&x, {1, 1}), {}));
      curvature.recorder().record(layer, Stream::cpu(),
                                  kfac::grad_output_record(view_of(&dy, {1, 1}), {}));
    }
    comm::AgreedFlags agreed;
    agreed.flags = agreement;
    comm::FlagMessage flags;
    curvature.raise_flags(flags);
    agreed.lacks_inverse = flags.lacks_inverse;
    curvature.request();
    curvature.require_no_failure(agreed);
    curvature.collect(agreed, report);
    const bool updates = agreement.may_update() && curvature.update(report);
    curvature.finish(agreement, report);
    begin();
    return updates;
  }
  double direction(double gradient) {
    const kfac::LayerDirection layer{.layer = 0, .weight = view_of(&gradient, {1})};
    kfac::ProductBatch batch;
    curvature.precondition({&layer, 1}, batch);
    return gradient;
  }

  Context ctx;
  Curvature curvature;
  kfac::StepReport report;
};

/// (A + s)^-1 gradient (G + s)^-1 with s = sqrt(damping), for A = G.
double preconditioned(double gradient, double factor, double damping) {
  const double shifted = factor + std::sqrt(damping);
  return gradient / shifted / shifted;
}

TEST(Curvature, PreconditionsByTheAveragesOfAnAcceptedStep) {
  CurvatureOfOneRank one;
  const double damping = one.curvature.options().damping;
  EXPECT_EQ(one.direction(3), 3) << "there is no inverse";
  EXPECT_TRUE(one.step(2, 2));
  EXPECT_TRUE(one.report.statistics_refreshed && one.report.inverses_refreshed);
  EXPECT_EQ(one.report.inverses[0], 4);
  EXPECT_EQ(one.report.damping, damping);
  ASSERT_EQ(one.report.statistics.size(), 4U);
  EXPECT_TRUE(one.report.statistics[0].refreshed);
  EXPECT_TRUE(one.curvature.preconditions(0));
  EXPECT_TRUE(near(std::vector<double>{one.direction(3)},
                   std::vector<double>{preconditioned(3, 4, damping)}, 16 * eps<double>));
}

TEST(Curvature, ChangesNothingInARejectedStep) {
  CurvatureOfOneRank one;
  StepAgreement rejected;
  rejected.nonfinite_loss = 1;
  EXPECT_FALSE(one.step(2, 2, rejected));
  EXPECT_FALSE(one.report.statistics_refreshed || one.report.statistics[0].refreshed);
  EXPECT_EQ(one.report.flops, 0);
  EXPECT_EQ(one.direction(3), 3);
  EXPECT_EQ(one.curvature.read_factors(LayerId{0}).a.statistics, 0);
  EXPECT_TRUE(one.step(2, 2));
  EXPECT_EQ(one.curvature.read_factors(LayerId{0}).a.statistics, 1);
}

TEST(Curvature, DoesNotUpdateWhileNoLayerHasAnInverse) {
  CurvatureOfOneRank one;
  EXPECT_FALSE(one.step(std::numeric_limits<double>::infinity(), 1)) << "A is not finite";
  EXPECT_EQ(one.report.without_inverse, (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(one.report.failed_factors, 2);
  EXPECT_FALSE(one.curvature.preconditions(0));
}

TEST(Curvature, GoesOnAfterAStepThatFails) {
  kfac::CurvatureOptions options = options_f64();
  options.inverse.max_failed_refreshes = 0;
  CurvatureOfOneRank one(options);
  (void)one.step(std::numeric_limits<double>::infinity(), 1);
  comm::FlagMessage flags;
  one.curvature.raise_flags(flags);
  EXPECT_NE(flags.failed_statistic, kfac::kNoStatistic);
  StepAgreement failed;
  failed.numeric_failure = 1;
  EXPECT_THROW((void)one.step(2, 2, failed), NumericError);
  one.curvature.recorder().drop_records();
  one.begin();
  EXPECT_TRUE(one.step(2, 2)) << "each layer has no record yet";
}

TEST(Curvature, ChangesSettingsBetweenSteps) {
  CurvatureOfOneRank one;
  EXPECT_FALSE(one.curvature.set_curvature({}));
  EXPECT_FALSE(one.curvature.set_curvature({.damping = 0.25}));
  EXPECT_EQ(one.curvature.options().damping, 0.25);
  EXPECT_TRUE(one.step(2, 2));
  EXPECT_TRUE(near(std::vector<double>{one.direction(3)},
                   std::vector<double>{preconditioned(3, 4, 0.25)}, 16 * eps<double>));
  EXPECT_TRUE(one.curvature.set_curvature({.statistics_interval = 3})) << "begin the step again";
  EXPECT_FALSE(one.curvature.recorder().wants_statistics());
  EXPECT_TRUE(contains(message_of([&] { (void)one.curvature.set_curvature({.damping = -1}); }),
                       "damping is -1"));
  EXPECT_EQ(one.curvature.options().damping, 0.25);
}

/// (A + q A)^-1 gradient (G + q G)^-1 with q = sqrt(fraction), for A = x^2, G = dy^2.
double relatively_preconditioned(double gradient, double x, double dy, double fraction) {
  const double more = 1 + std::sqrt(fraction);
  return gradient / (x * x * more) / (dy * dy * more);
}

TEST(Curvature, DampsEachLayerByItsTracesAtEachRebuild) {
  kfac::CurvatureOptions options = options_f64();
  options.damping = 0;
  options.relative_damping = 0.25;
  options.statistics.new_weight = 1;
  CurvatureOfOneRank one(options);
  for (const auto& [x, dy] : {std::pair{2.0, 3.0}, {1e-3, 1e-5}, {7.0, 1e4}}) {
    EXPECT_TRUE(one.step(x, dy));
    EXPECT_EQ(one.report.damping, 0);
    EXPECT_NEAR(one.direction(5) / relatively_preconditioned(5, x, dy, 0.25), 1, 16 * eps<double>);
  }
  // Control: as far from what lambda = 0.25 gives as the traces are from 1.
  EXPECT_GT(std::abs(one.direction(5) / preconditioned(5, 49e4, 0.25) - 1), 0.1);
  options.inverse.method = kfac::InverseMethod::eigen;
  CurvatureOfOneRank eigen(options);
  EXPECT_TRUE(eigen.step(2, 3));
  EXPECT_NEAR(eigen.direction(5), 5 / (36 * 1.25), 16 * eps<double>);
}

TEST(Curvature, KeepsTheGradientWhereARelativeDampingHasNothingToRelateTo) {
  kfac::CurvatureOptions options = options_f64();
  options.damping = 0;
  for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::eigen})
    for (const auto& [x, dy] : {std::pair{0.0, 0.0}, {3.0, 0.0}, {0.0, 3.0}, {1e-3, 1e-9}}) {
      options.inverse.method = method;
      CurvatureOfOneRank one(options);
      EXPECT_TRUE(one.step(x, dy));
      // x dy and at most 2 x dy beside sqrt(lambda) = 1, from A and from G.
      EXPECT_NEAR(one.direction(5), 5, 5 * 4 * std::min(x * dy, 1e-12) + 16 * eps<double>) << x;
    }
}

TEST(Curvature, ReplacesOneKindOfDampingByTheOther) {
  CurvatureOfOneRank one;
  EXPECT_FALSE(one.curvature.set_curvature({.relative_damping = 0.25}));
  EXPECT_EQ(one.curvature.options().damping, 0);
  EXPECT_TRUE(one.step(2, 3));
  EXPECT_NEAR(one.direction(5), relatively_preconditioned(5, 2, 3, 0.25), 16 * eps<double>);
  EXPECT_FALSE(one.curvature.set_curvature({.relative_damping = 0.01}));
  EXPECT_TRUE(one.step(2, 3));
  EXPECT_NEAR(one.direction(5), relatively_preconditioned(5, 2, 3, 0.01), 16 * eps<double>);
  EXPECT_FALSE(one.curvature.set_curvature({.damping = 0.25}));
  EXPECT_EQ(one.curvature.options().relative_damping, kfac::CurvatureOptions{}.relative_damping);
  EXPECT_TRUE(one.step(2, 2));
  const auto refused = [&](const kfac::CurvatureSettings& settings) {
    return message_of([&] { (void)one.curvature.set_curvature(settings); });
  };
  EXPECT_TRUE(contains(refused({.damping = 0.1, .relative_damping = 0.1}), "both set"));
  EXPECT_TRUE(contains(refused({.damping = 0}), "damping is 0"));
  EXPECT_TRUE(contains(refused({.relative_damping = 0}), "relative_damping is 0"));
  EXPECT_EQ(one.curvature.options().damping, 0.25);
}

TEST(Curvature, ChangesTheWeightOfTheNewestStatisticBetweenSteps) {
  kfac::CurvatureOptions options = options_f64();
  options.statistics.average_start = kfac::AverageStart::identity;
  CurvatureOfOneRank one(options);
  double expected = 1;
  for (const double weight : {1.0, 0.5, 0.125, 0.25}) {
    const double x = 2 + weight;
    EXPECT_FALSE(one.curvature.set_curvature({.new_weight = weight})) << "the same statistics";
    EXPECT_TRUE(one.step(x, 1));
    expected = (1 - weight) * expected + weight * x * x;
    EXPECT_NEAR(one.curvature.read_factors(LayerId{0}).a.average.data<double>()[0], expected,
                8 * eps<double> * expected);
  }
  EXPECT_FALSE(one.curvature.set_curvature({.damping = 0.5}));
  EXPECT_EQ(one.curvature.options().statistics.new_weight, 0.25);
  EXPECT_TRUE(contains(message_of([&] { (void)one.curvature.set_curvature({.new_weight = 2}); }),
                       "new_weight"));
  options.statistics.new_weight = 1;
  EXPECT_TRUE(contains(message_of([&] { (void)CurvatureOfOneRank(options); }),
                       "average_start is set with statistics.new_weight 1"));
}

TEST(Curvature, KeepsTheWeightOfFactorsThatAreRows) {
  kfac::CurvatureOptions options = options_f64();
  options.statistics.new_weight = 1;
  Context ctx;
  Curvature curvature(ctx, comm::make_self(), options, {});
  curvature.add_layer("wide", LinearSpec{.in = 64, .out = 2, .max_rows = 2});
  curvature.prepare(comm::make_worker_grid(comm::make_self(), 0), comm::kFlagElements);
  EXPECT_TRUE(contains(message_of([&] { (void)curvature.set_curvature({.new_weight = 0.5}); }),
                       "'wide.a' is kept as the rows"));
  EXPECT_FALSE(curvature.set_curvature({.new_weight = 1}));
}

TEST(Curvature, ContinuesFromASavedState) {
  CurvatureOfOneRank one, other;
  EXPECT_TRUE(one.step(2, 2));
  Saver saver;
  one.curvature.visit_state(saver);
  const std::vector<SavedState> saved{saver.state};
  Loader loader(saved, 0);
  EXPECT_NE(other.direction(3), one.direction(3));
  other.curvature.visit_state(loader);
  EXPECT_EQ(other.direction(3), one.direction(3));
  one.begin();
  other.begin();
  EXPECT_TRUE(one.step(1, 5) && other.step(1, 5));
  EXPECT_EQ(other.direction(3), one.direction(3));
}

TEST(Curvature, DescribesLayersAndMemory) {
  const CurvatureOfOneRank one;
  const std::string text = one.curvature.describe({}, {{"memory of the caller", 12}});
  for (const char* part : {"first", "second", "staging of statistics", "memory of the caller"})
    EXPECT_TRUE(contains(text, part));
}

}  // namespace
}  // namespace dkfac::testing
