#include "kfac/step.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "kfac/planned_table.h"
#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::Step;

/// Gradients without a reduction: they carry the flags, and note what Step asks of them.
class NotedGradients {
 public:
  NotedGradients(Context& ctx, const comm::WorkerGrid& grid)
      : flags_(ctx, grid, "flags", {},
               {.recipients = comm::Recipients::all,
                .dtype = DType::f64,
                .trailer = comm::kFlagElements}) {}
  void begin(std::vector<comm::BucketedReduce*>& active) {
    asked += "begin ";
    flags_.begin();
    active.push_back(&flags_);
  }
  void complete(bool allow_missing) { asked += allow_missing ? "complete(missing) " : "complete "; }
  void raise_flags(comm::FlagMessage& message) {
    asked += "flags ";
    message.nonfinite_gradient = nonfinite;
  }
  void request() { asked += "request "; }
  void collect(kfac::StepReport&) { asked += "collect "; }

  std::string asked;
  bool nonfinite = false;

 private:
  comm::BucketedReduce flags_;
};

class StepOfOneLayer {
 public:
  explicit StepOfOneLayer(std::shared_ptr<comm::Communicator> comm = comm::make_self(),
                          const kfac::CurvatureOptions& options = options_f64())
      : grid_(comm::make_worker_grid(comm, 1)),
        gradients(ctx_, grid_),
        step(ctx_, comm, options, {}) {
    step.curvature().add_layer("fc", kOneWeight);
    step.prepare(grid_, 0);
    step.begin(gradients);
    gradients.asked.clear();
  }
  void record(double x, double dy) {
    step.record(LayerId{0}, Stream::cpu(), kfac::input_record(view_of(&x, {1, 1}), {}));
    step.record(LayerId{0}, Stream::cpu(), kfac::grad_output_record(view_of(&dy, {1, 1}), {}));
  }
  /// Records and agrees; returns whether to update.
  bool agree(double x, double dy, const StepFlags& flags = {}) {
    record(x, dy);
    step.agree({.caller = flags}, gradients);
    return step.update_curvature();
  }
  double direction(double gradient) {
    const kfac::LayerDirection layer{.layer = 0, .weight = view_of(&gradient, {1})};
    (void)step.precondition({&layer, 1}, 1);
    return gradient;
  }

 private:
  Context ctx_;
  comm::WorkerGrid grid_;

 public:
  NotedGradients gradients;
  Step step;
};

TEST(Step, AsksTheGradientsInTheOrderOfTheAlgorithm) {
  StepOfOneLayer one;
  EXPECT_TRUE(one.agree(2, 2));
  EXPECT_EQ(one.gradients.asked, "complete flags request collect ");
  EXPECT_LT(one.direction(3), 1);
  const kfac::StepReport report = one.step.end(one.gradients);
  EXPECT_EQ(one.gradients.asked, "complete flags request collect begin ");
  EXPECT_TRUE(report.updated && report.statistics_refreshed && report.inverses_refreshed);
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(one.step.count(), 1);
}

TEST(Step, DoesNotUpdateWhereARankRejects) {
  comm::run_ranks(2, [](std::shared_ptr<comm::Communicator> comm) {
    StepOfOneLayer one(comm);
    const bool rejects = comm->rank() == 1;
    EXPECT_FALSE(one.agree(2, 2, {.loss_nonfinite = rejects}));
    EXPECT_TRUE(contains(one.gradients.asked, rejects ? "complete(missing) " : "complete "));
    EXPECT_EQ(one.step.report().agreement.nonfinite_loss, 1);
    EXPECT_FALSE(one.step.end(one.gradients).updated);
    one.gradients.nonfinite = rejects;
    EXPECT_FALSE(one.agree(2, 2));
    EXPECT_FALSE(one.step.end(one.gradients).updated);
    one.gradients.nonfinite = false;
    EXPECT_TRUE(one.agree(2, 2)) << "control";
    const kfac::StepReport report = one.step.end(one.gradients);
    EXPECT_TRUE(report.updated);
    EXPECT_EQ(report.step, 3) << "rejected steps count";
  });
}

TEST(Step, DoesNotUpdateWhileNoLayerHasAnInverse) {
  StepOfOneLayer one;
  // Finite, with a square that is not.
  EXPECT_FALSE(one.agree(2, std::numeric_limits<double>::max()));
  EXPECT_FALSE(one.step.end(one.gradients).updated);
  EXPECT_TRUE(one.agree(2, 2));
}

TEST(Step, GoesOnAfterAMissingRecord) {
  StepOfOneLayer one;
  EXPECT_TRUE(contains(message_of([&] { one.step.agree({}, one.gradients); }), "layer 'fc' has 0"));
  EXPECT_EQ(one.step.count(), 0) << "a call that was refused does not count";
  EXPECT_TRUE(one.agree(2, 2));
  EXPECT_EQ(one.step.end(one.gradients).step, 1);
}

TEST(Step, BeginsTheNextStepBeforeItThrowsAFailure) {
  const double empty = 0;
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    StepOfOneLayer two(comm);
    const ConstTensorView none = view_of(&empty, {0, 1});
    const RecordScale counted{.loss_scale = 1, .global_batch = 2};
    two.step.recorder().record(LayerId{0}, Stream::cpu(), kfac::input_record(none, counted));
    two.step.recorder().record(LayerId{0}, Stream::cpu(), kfac::grad_output_record(none, counted));
    EXPECT_TRUE(contains(message_of([&] { two.step.agree({}, two.gradients); }),
                         "none of the 2 ranks has recorded a sample"));
    EXPECT_EQ(two.gradients.asked, "complete flags request begin ");
    EXPECT_TRUE(two.agree(2, 2));
    EXPECT_TRUE(two.step.end(two.gradients).updated);
  });
}

TEST(Step, IsEqualOnAllRanks) {
  std::vector<double> directions(2);
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    StepOfOneLayer one(comm);
    const double mine = comm->rank() + 1.0;
    EXPECT_TRUE(one.agree(mine, mine));
    directions[static_cast<std::size_t>(comm->rank())] = one.direction(3);
  });
  StepOfOneLayer alone;
  EXPECT_TRUE(alone.agree(1, 1));
  EXPECT_EQ(directions[0], directions[1]);
  EXPECT_NE(directions[0], alone.direction(3)) << "control: the other rank has another record";
}

}  // namespace
}  // namespace dkfac::testing
