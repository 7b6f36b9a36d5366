#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/error.h"
#include "dkfac/optim/optimizer.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

CurvatureOptions exact() {
  CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.loss_reduction = LossReduction::sum;
  return options;
}

/// K-FAC of one linear layer.
class OneLinear {
 public:
  static constexpr std::int64_t kIn = 3, kOut = 2;
  explicit OneLinear(const CurvatureOptions& options = exact())
      : optimizer_(optim::make_kfac(comm::make_self(), {.curvature = options})),
        dtype_(options.dtype),
        weight_(random_tensor(host_, {kOut, kIn}, dtype_, 1)),
        gradient_(random_tensor(host_, {kOut, kIn}, dtype_, 2)) {
    id_ = optimizer_->add_layer("fc", LinearSpec{.in = kIn, .out = kOut, .bias = false},
                                {.weight = weight_, .weight_grad = gradient_});
    optimizer_->prepare();
  }
  optim::Optimizer* operator->() { return optimizer_.get(); }
  void record(std::int64_t n = 4, RecordScale scale = {.loss_scale = 1, .global_batch = 8}) {
    const Tensor x = random_tensor(host_, {n, kIn}, dtype_, 3);
    const Tensor dy = random_tensor(host_, {n, kOut}, dtype_, 4);
    optimizer_->record_input(id_, x, Stream::cpu(), scale);
    optimizer_->record_grad_output(id_, dy, Stream::cpu(), scale);
  }
  PassState state(RecordScale scale = {.loss_scale = 1, .global_batch = 8}) {
    return optimizer_->pass_state(scale).value();
  }
  kfac::StepReport step() {
    optimizer_->grads_ready(id_, Stream::cpu(), {.loss_scale = 1, .global_batch = 8});
    return optimizer_->step({.lr = 0.1});
  }
  kfac::StepReport whole_step() {
    record();
    return step();
  }
  std::vector<double> weight() { return values(host_, weight_); }

 private:
  Context host_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  DType dtype_;
  Tensor weight_, gradient_;
  LayerId id_{};
};

TEST(PassState, TakesTheRecordsBackAndMakesThem) {
  OneLinear once, again;
  once.record();
  const kfac::StepReport expected = once.step();
  const PassState before = again.state();
  again.record();
  const PassState after = again.state();
  EXPECT_THROW(again.record(), InvalidArgument) << "control: more than micro_batches";
  again->resume(before);
  EXPECT_EQ(again.state().words, before.words);
  again.record();  // Allowed: there are none.
  again->resume(before);
  EXPECT_THROW((void)again.step(), InvalidArgument) << "control: nothing is recorded";
  OneLinear third;
  third.record();
  third->resume(before);
  third->resume(after);  // Their work is what the record has left.
  const kfac::StepReport report = third.step();
  EXPECT_TRUE(report.updated);
  EXPECT_EQ(report.flops, expected.flops);
  EXPECT_GT(report.flops, 0);
  EXPECT_EQ(third.weight(), once.weight());
}

/// Steps that are alike have equal states; every change of what the work depends on shows.
TEST(PassState, DiffersWhereTheWorkDoes) {
  OneLinear layer;
  EXPECT_TRUE(layer.whole_step().updated);
  const std::vector<std::int64_t> usual = layer.state().words;
  EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_EQ(layer.state().words, usual);
  EXPECT_NE(layer.state({.loss_scale = 2, .global_batch = 8}).words, usual);
  EXPECT_NE(layer.state({.loss_scale = 1, .global_batch = 16}).words, usual);
  layer->set_curvature({.damping = 0.7});
  EXPECT_EQ(layer.state().words, usual) << "records do not depend on it";
  layer->set_curvature({.micro_batches = 2});
  const std::vector<std::int64_t> of_two = layer.state().words;
  EXPECT_NE(of_two, usual);
  layer.record();
  EXPECT_NE(layer.state().words, of_two) << "the second record adds to the first";
  layer.record();
  EXPECT_TRUE(layer.step().updated);
  layer->set_curvature({.statistics_interval = 2, .inverse_interval = 2, .micro_batches = 1});
  while (layer->wants_statistics()) EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_TRUE(layer.state().words.empty()) << "nothing is due";
}

TEST(PassState, HasTheScaleOfOperands) {
  CurvatureOptions options = exact();
  options.statistics.operand = DType::f16;
  OneLinear layer(options);
  const std::vector<std::int64_t> unknown = layer.state().words;
  EXPECT_TRUE(layer.whole_step().updated);
  const std::vector<std::int64_t> known = layer.state().words;
  EXPECT_NE(known, unknown);
  EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_EQ(layer.state().words, known);
}

TEST(PassState, HasWhichScalesOfEkfacAreDue) {
  CurvatureOptions options = exact();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 2;
  OneLinear layer(options);
  const std::vector<std::int64_t> first = layer.state().words;
  EXPECT_TRUE(layer.whole_step().updated);
  const std::vector<std::int64_t> later = layer.state().words;
  EXPECT_NE(later, first) << "there was no basis yet";
  EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_EQ(layer.state().words, later);
}

/// Memory that has grown for a larger record has moved.
TEST(PassState, CountsMovesOfMemory) {
  CurvatureOptions options = exact();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 2;
  OneLinear layer(options);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(layer.whole_step().updated);
  const std::int64_t moves = layer.state().moves;
  EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_EQ(layer.state().moves, moves);
  layer.record(400);
  EXPECT_TRUE(layer.step().updated);
  const std::int64_t grown = layer.state().moves;
  EXPECT_GT(grown, moves);
  EXPECT_TRUE(layer.whole_step().updated);
  EXPECT_EQ(layer.state().moves, grown) << "a smaller one fits";
}

TEST(PassState, OfAnotherStepIsRefused) {
  OneLinear layer;
  PassState state = layer.state();
  state.words.pop_back();
  try {
    layer->resume(state);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(contains(error.what(), "[resume]")) << error.what();
  }
}

TEST(PassState, OfFirstOrderMethodsIsNone) {
  EXPECT_FALSE(optim::make_sgd(comm::make_self(), {})->pass_state({}));
}

}  // namespace
}  // namespace dkfac::testing
