#include "kfac/curvature/recorder.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::Recorder;

class RecorderOfOneRank : public ::testing::Test {
 protected:
  RecorderOfOneRank() { recorder_.prepare(comm::kFlagElements); }
  void begin() {
    std::vector<comm::BucketedReduce*> active;
    recorder_.begin(active);
  }
  void record_a(std::vector<double> x) {
    const auto n = static_cast<std::int64_t>(x.size());
    recorder_.record(LayerId{0}, Stream::cpu(), kfac::input_record(view_of(x.data(), {n, 1}), {}));
  }
  void record_g(std::vector<double> dy) {
    const auto n = static_cast<std::int64_t>(dy.size());
    recorder_.record(LayerId{0}, Stream::cpu(),
                     kfac::grad_output_record(view_of(dy.data(), {n, 1}), {}));
  }
  double sum(int id) { return values(planned_.ctx, recorder_.sums().of(id))[0]; }
  comm::FlagMessage flags() const {
    comm::FlagMessage message;
    recorder_.raise_flags(message);
    return message;
  }

  static kfac::CurvatureOptions every_second_step() {
    kfac::CurvatureOptions options = options_f64();
    options.refresh.statistics_interval = 2;
    return options;
  }
  PlannedTable planned_{{{"fc", kOneWeight}, {"scale", PlainSpec{.weight = 1}}},
                        every_second_step()};
  Recorder recorder_{planned_.table, {}};
};

TEST_F(RecorderOfOneRank, ComputesBothFactorsOfALayer) {
  begin();
  record_a({1, 2, 3});
  record_g({2, 0, -4});
  EXPECT_TRUE(near(std::vector<double>{sum(0)}, std::vector<double>{14.0 / 3}, 4 * eps<double>));
  // LossReduction::sum: the gradients are those of single samples.
  EXPECT_TRUE(near(std::vector<double>{sum(1)}, std::vector<double>{20.0 / 3}, 4 * eps<double>));
  EXPECT_EQ(values(planned_.ctx, flags().statistic_count), std::vector<double>{0});
  EXPECT_FALSE(flags().no_samples);
  recorder_.request();
  EXPECT_TRUE(std::isfinite(recorder_.finite(0)) && std::isfinite(recorder_.finite(1)));
}

TEST_F(RecorderOfOneRank, RaisesAFlagForAStatisticThatIsNotFinite) {
  begin();
  record_a({1, std::numeric_limits<double>::infinity()});
  record_g({1, 1});
  EXPECT_GT(values(planned_.ctx, flags().statistic_count)[0], 0);
  recorder_.request();
  EXPECT_FALSE(std::isfinite(recorder_.finite(0)));
  EXPECT_TRUE(std::isfinite(recorder_.finite(1)));
}

TEST_F(RecorderOfOneRank, WantsWhatIsDue) {
  EXPECT_TRUE(recorder_.wants_statistics() && recorder_.wants_input(LayerId{0}) &&
              recorder_.wants_grad_output(LayerId{0}));
  EXPECT_FALSE(recorder_.wants_input(LayerId{1}) || recorder_.wants_grad_output(LayerId{1}));
  planned_.end_step();
  EXPECT_FALSE(recorder_.wants_statistics() || recorder_.wants_input(LayerId{0}));
  begin();
  record_a({5});
  EXPECT_EQ(planned_.table.statistic(0).records, 0) << "ignored where it is not due";
}

TEST_F(RecorderOfOneRank, NamesTheLayerThatLacksARecord) {
  begin();
  record_a({1});
  EXPECT_TRUE(contains(message_of([&] { recorder_.complete(false); }),
                       "[step] layer 'fc' has 0 of 1 record_grad_output"));
  record_g({3});
  EXPECT_EQ(message_of([&] { recorder_.complete(false); }), "");
}

TEST_F(RecorderOfOneRank, SetsAMissingStatisticToZeroInARejectedStep) {
  begin();
  ops::fill(planned_.ctx, recorder_.sums().of(1), 7);
  record_a({2});
  recorder_.complete(true);
  EXPECT_EQ(sum(0), 4);
  EXPECT_EQ(sum(1), 0);
}

TEST_F(RecorderOfOneRank, RefusesAStepWithoutSamples) {
  begin();
  EXPECT_TRUE(flags().no_samples);
  comm::AgreedFlags agreed;
  recorder_.require_samples(agreed);
  agreed.without_samples = 1;
  EXPECT_TRUE(contains(message_of([&] { recorder_.require_samples(agreed); }),
                       "[step] none of the 1 ranks has recorded a sample"));
  agreed.flags.data_error = 1;
  EXPECT_EQ(message_of([&] { recorder_.require_samples(agreed); }), "") << "rejected anyway";
}

TEST_F(RecorderOfOneRank, ForgetsTheRecordsOfAStep) {
  begin();
  record_a({1});
  EXPECT_NE(message_of([&] { record_a({1}); }), "") << "control: one record in a step";
  recorder_.drop_records();
  begin();
  record_a({3});
  EXPECT_EQ(sum(0), 9);
  record_g({1});
  kfac::StepReport report;
  recorder_.finish(false, report);
  EXPECT_EQ(planned_.table.statistic(0).flops, 0) << "the step was rejected";
  begin();
  record_a({3});
  record_g({1});
  recorder_.finish(true, report);
  EXPECT_GT(planned_.table.statistic(0).flops, 0);
  EXPECT_EQ(planned_.table.statistic(0).records, 0);
}

}  // namespace
}  // namespace dkfac::testing
