#include "nn/shared/graphed_passes.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "support/on_device.h"

namespace dkfac::testing {
namespace {

/// y = x + shift, with a parameter; may take new memory in every pass, as no layer should.
class Shift final : public nn::Layer {
 public:
  explicit Shift(std::int64_t width, const bool* wasteful = nullptr) : wasteful_(wasteful) {
    parameters_.push_back({"bias", nn::Role::bias, Shape{width}, {}, {}});
  }
  [[nodiscard]] std::string describe() const override { return "Shift"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, nn::Mode mode) override {
    if (observer_ != nullptr && mode == nn::Mode::train) observer_->on_forward(*this, x);
    if (wasteful_ != nullptr && *wasteful_) waste_ = Tensor::empty(ctx, {100});
    const TensorView y = output_memory(ctx, mode, output_, x.shape(), x.dtype());
    ops::copy(ctx, x, y);
    for (std::int64_t i = 0; i < x.dim(0); ++i)
      ops::axpby(ctx, 1, parameters_[0].value, 1, y.slice(0, i, 1).flat());
    return y;
  }
  ConstTensorView backward(Context& ctx, ConstTensorView dy, nn::InputGrad) override {
    if (observer_ != nullptr) observer_->on_backward(*this, dy);
    if (wants_gradients()) {
      ops::col_sum(ctx, 1, dy, 0, parameters_[0].grad);
      if (observer_ != nullptr) observer_->on_gradients(*this);
    }
    return dy;
  }

 private:
  const bool* wasteful_;
  Tensor output_, waste_;
};

/// Records for which layers gradients were announced; does nothing else.
class Listener : public nn::LayerObserver {
 public:
  explicit Listener(nn::Model& model) { model.set_observer(this); }
  void on_forward(nn::Layer&, ConstTensorView) override { ++seen; }
  void on_backward(nn::Layer&, ConstTensorView) override { ++seen; }
  void on_normalization(nn::Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {
    ++seen;
  }
  void on_gradients(nn::Layer& layer) override { order.push_back(layer.name()); }
  std::optional<PassState> pass_state() override { return PassState{}; }
  std::vector<std::string> order;
  int seen = 0;
};

class GraphedShifts : public ::testing::Test {
 protected:
  static constexpr std::int64_t kClasses = 4;
  std::unique_ptr<nn::Model> make() {
    auto net = std::make_unique<nn::Sequential>();
    net->add<Shift>("a", kClasses).add<nn::Relu>("relu").add<Shift>("b", kClasses, &wasteful_);
    return std::make_unique<nn::Model>(ctx, "shifts", std::move(net), Shape{kClasses}, DType::f32,
                                       1);
  }
  nn::PassInput input(std::int64_t n) {
    return {.images = images.view().slice(0, 0, n),
            .labels = labels.view().slice(0, 0, n),
            .scale = 1 / static_cast<double>(n),
            .sums = sums};
  }
  bool wasteful_ = false;
  Context ctx{Device::cuda()}, host;
  Tensor images = to_device(ctx, random_tensor(host, {64, kClasses}, DType::f32, 2));
  Tensor labels = Tensor::zeros(ctx, {64}, DType::i32), sums = Tensor::zeros(ctx, {2}, DType::f64);
  std::unique_ptr<nn::Model> model = make();
};

TEST_F(GraphedShifts, NotifyTheObserverOfGradientsAlone) {
  Listener listener(*model);
  nn::GraphedPasses passes(*model, &listener);
  for (int i = 0; i < 3; ++i) passes.run(ctx, input(8));
  EXPECT_EQ(passes.counts().replayed, 2);
  EXPECT_EQ(listener.order, (std::vector<std::string>{"b", "a", "b", "a", "b", "a"}));
}

/// Without a state to compare, its functions are called in every pass.
TEST_F(GraphedShifts, RunAsTheyAreForAnObserverWithoutAState) {
  class Logger final : public Listener {
   public:
    using Listener::Listener;
    std::optional<PassState> pass_state() override { return std::nullopt; }
  };
  Logger logger(*model);
  nn::GraphedPasses passes(*model, &logger);
  for (int i = 0; i < 3; ++i) passes.run(ctx, input(8));
  EXPECT_EQ(passes.counts().eager, 3);
  EXPECT_EQ(passes.counts().refused, 0);
}

/// Adds multiples of the input of layer 'a' and of the gradient of its output to a sum, on a stream
/// of its own. The factors are numbers of the host.
class Summing final : public nn::LayerObserver {
 public:
  Summing(Context& ctx, nn::Model& model) : caller(ctx) { model.set_observer(this); }
  void on_forward(nn::Layer& layer, ConstTensorView x) override { add(layer, x); }
  void on_backward(nn::Layer& layer, ConstTensorView dy) override { add(layer, dy); }
  void on_normalization(nn::Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {}
  void on_gradients(nn::Layer& layer) override { heard.push_back(layer.name()); }
  std::optional<PassState> pass_state() override {
    if (hides) return PassState{.words = {1, 0}, .moves = 0};
    return PassState{.words = {factor, count}, .moves = moves};
  }
  void resume(const PassState& state) override {
    join(caller, own);
    count = state.words[1];
    heard.push_back(std::to_string(count));
    join(own, caller);
  }
  std::vector<double> values() { return device_values(own, sum); }

  std::int64_t factor = 2, count = 0, moves = 0;
  bool hides = false;   ///< The state, of which the work depends.
  bool breaks = false;  ///< Waits for the device in the middle of a pass.
  std::vector<std::string> heard;

 private:
  static void join(Context& before, Context& after) {
    Event event(before.device());
    event.record(before.stream());
    after.stream().wait(event);
  }
  void add(nn::Layer& layer, ConstTensorView x) {
    if (layer.name() != "a") return;
    join(caller, own);
    ops::axpby(own, static_cast<double>(factor + count), x, 1, sum);
    join(own, caller);
    ++count;
    if (breaks) own.stream().synchronize();
  }
  Context& caller;
  Context own{Device::cuda()};
  Tensor sum = Tensor::zeros(own, {8, 4});
};

TEST_F(GraphedShifts, RecordTheWorkOfTheObserverAndItsState) {
  const auto run = [&](bool record, std::size_t part_bytes) {
    Summing observer(ctx, *model);
    nn::GraphedPasses passes(*model, &observer, {.capture = record, .part_bytes = part_bytes});
    std::vector<std::vector<double>> seen;
    for (const std::int64_t factor : {2, 2, 2, 3, 3, 2}) {
      observer.factor = factor;
      observer.count = 0;  // As a step ends.
      observer.heard.clear();
      passes.run(ctx, input(8));
      EXPECT_EQ(observer.count, 2);
      seen.push_back(observer.values());
    }
    using Heard = std::vector<std::string>;
    EXPECT_EQ(passes.counts().replayed, record ? 4 : 0) << passes.counts().reason;
    EXPECT_EQ(passes.counts().captured, record ? 2 : 0);
    // With parts, the forward pass is one, and so are the gradients of each layer.
    EXPECT_EQ(observer.heard, !record          ? Heard({"b", "a"})
                              : part_bytes > 0 ? Heard({"0", "1", "b", "1", "a", "2", "2"})
                                               : Heard({"0", "b", "a", "2"}));
    return seen;
  };
  const auto expected = run(false, 0);
  EXPECT_EQ(run(true, 0), expected);
  EXPECT_EQ(run(true, kClasses * sizeof(float)), expected);
}

/// What the state does not tell is not followed: the sums of the test above would show it.
TEST_F(GraphedShifts, ReplayWhatWasRecordedForAStateThatHidesAChange) {
  const auto run = [&](bool hides) {
    Summing observer(ctx, *model);
    observer.hides = hides;
    nn::GraphedPasses passes(*model, &observer);
    for (const std::int64_t factor : {2, 2, 3}) {
      observer.factor = factor;
      observer.count = 0;
      passes.run(ctx, input(8));
    }
    return observer.values();
  };
  EXPECT_NE(run(true), run(false));
}

TEST_F(GraphedShifts, FollowMemoryOfTheObserverThatMoves) {
  Summing observer(ctx, *model);
  nn::GraphedPasses passes(*model, &observer);
  for (const std::int64_t moves : {0, 0, 0, 1, 1}) {
    observer.moves = moves;
    observer.count = 0;
    passes.run(ctx, input(8));
  }
  EXPECT_EQ(passes.counts().captured, 2);
  EXPECT_EQ(passes.counts().replayed, 4);
}

/// The attempt has called the observer; it is put back before it is called again.
TEST_F(GraphedShifts, PutTheObserverBackWhereTheyCannotBeRecorded) {
  Summing observer(ctx, *model);
  nn::GraphedPasses passes(*model, &observer);
  std::vector<double> expected(8 * kClasses);
  for (int i = 0; i < 6; ++i) {
    observer.breaks = i > 0;
    observer.count = 0;
    passes.run(ctx, input(8));
    EXPECT_EQ(observer.count, 2);
    if (i == 0) expected = observer.values();
  }
  std::vector<double> six = expected;
  for (double& x : six) x *= 6;
  EXPECT_TRUE(near(observer.values(), six, 6 * eps<float>));
  EXPECT_EQ(passes.counts().refused, 3);
  EXPECT_EQ(passes.counts().eager, 6);
}

/// Records how much work had been submitted to the device when gradients were announced.
TEST_F(GraphedShifts, NotifyOfGradientsAfterThePartThatComputesThem) {
  class Early final : public nn::LayerObserver {
   public:
    explicit Early(Context& on, nn::Model& watched) : ctx(on), model(watched) {
      model.set_observer(this);
    }
    void on_forward(nn::Layer&, ConstTensorView) override {}
    void on_backward(nn::Layer&, ConstTensorView) override {}
    void on_normalization(nn::Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                          ConstTensorView) override {}
    void on_gradients(nn::Layer& layer) override {
      seen.push_back(layer.name());
      gradients.push_back(device_values(ctx, model.gradients()));
    }
    std::optional<PassState> pass_state() override { return PassState{}; }
    Context& ctx;
    nn::Model& model;
    std::vector<std::string> seen;
    std::vector<std::vector<double>> gradients;
  };
  Early early(ctx, *model);
  nn::GraphedPasses passes(*model, &early, {.part_bytes = kClasses * sizeof(float)});
  passes.run(ctx, input(8));
  passes.run(ctx, input(8));
  const auto whole = device_values(ctx, model->gradients());
  ops::fill(ctx, model->gradients(), -7);
  early.seen.clear();
  early.gradients.clear();
  passes.run(ctx, input(8));
  EXPECT_EQ(passes.counts().replayed, 2) << passes.counts().reason;
  ASSERT_EQ(early.seen, (std::vector<std::string>{"b", "a"}));
  const auto half = static_cast<std::ptrdiff_t>(kClasses);
  const std::vector<double> of_a(half, -7.0);
  EXPECT_TRUE(std::equal(of_a.begin(), of_a.end(), early.gradients[0].begin()))
      << "those of 'a' were not there yet";
  EXPECT_TRUE(std::equal(whole.begin() + half, whole.end(), early.gradients[0].begin() + half));
  EXPECT_EQ(early.gradients[1], whole);
}

/// A larger batch moves the model's memory: what was recorded for a smaller one is recorded anew.
TEST_F(GraphedShifts, FollowMemoryThatMoves) {
  nn::GraphedPasses passes(*model, nullptr);
  const auto gradients_of = [&](std::int64_t n) {
    ops::fill(ctx, model->gradients(), -7);
    passes.run(ctx, input(n));
    return device_values(ctx, model->gradients());
  };
  const auto expected = gradients_of(8);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(gradients_of(8), expected);
  EXPECT_EQ(passes.counts().captured, 1);
  const auto larger = gradients_of(64);
  EXPECT_EQ(gradients_of(64), larger);
  EXPECT_NE(larger, expected);
  EXPECT_EQ(passes.counts().captured, 2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(gradients_of(8), expected);
  EXPECT_EQ(passes.counts().captured, 3);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(gradients_of(64), larger);
  EXPECT_EQ(passes.counts().captured, 3) << "nothing has moved";
  // Scratch memory of the context counts as well.
  {
    Scratch scratch(ctx);
    (void)scratch.take({1 << 22});
  }
  EXPECT_EQ(gradients_of(8), expected);
  EXPECT_EQ(passes.counts().captured, 4);
}

TEST_F(GraphedShifts, RunAsTheyAreWhereTheyCannotBeRecorded) {
  nn::GraphedPasses passes(*model, nullptr);
  wasteful_ = true;
  passes.run(ctx, input(8));
  const auto expected = device_values(ctx, model->gradients());
  for (int i = 0; i < 6; ++i) {
    ops::fill(ctx, model->gradients(), -7);
    passes.run(ctx, input(8));
    EXPECT_EQ(device_values(ctx, model->gradients()), expected);
  }
  EXPECT_EQ(passes.counts().refused, 3) << "it is not tried for ever";
  EXPECT_EQ(passes.counts().replayed, 0);
  EXPECT_TRUE(contains(passes.counts().reason, "new memory"));
}

TEST_F(GraphedShifts, KeepAsManyAsAsked) {
  nn::GraphedPasses passes(*model, nullptr, {.most = 2});
  for (int i = 0; i < 2; ++i) passes.run(ctx, input(64));  // Allocates.
  for (const std::int64_t n : {8, 8, 64, 16, 16}) passes.run(ctx, input(n));
  EXPECT_EQ(passes.counts().captured, 3);
  passes.run(ctx, input(64));
  EXPECT_EQ(passes.counts().replayed, 5) << "of the two, 64 was used last";
  passes.run(ctx, input(8));
  EXPECT_EQ(passes.counts().eager, 4) << "8 had to go";
  passes.forget();
  passes.run(ctx, input(64));
  EXPECT_EQ(passes.counts().eager, 5);
}

TEST_F(GraphedShifts, CompareWithLabelsOrTargets) {
  nn::GraphedPasses passes(*model, nullptr);
  nn::PassInput soft = input(8);
  EXPECT_THROW(passes.run(ctx, {.images = images, .sums = sums}), InvalidArgument);
  Tensor targets = Tensor::empty(ctx, {8, kClasses});
  nn::soft_targets(ctx, soft.labels, 0, targets);
  passes.run(ctx, input(8));
  const auto expected = device_values(ctx, model->gradients());
  soft.targets = targets;
  EXPECT_THROW(passes.run(ctx, soft), InvalidArgument);
  soft.labels = {};
  for (int i = 0; i < 3; ++i) {
    passes.run(ctx, soft);
    EXPECT_TRUE(near(device_values(ctx, model->gradients()), expected, 8 * eps<float>));
  }
  EXPECT_EQ(passes.counts().replayed, 2);
}

}  // namespace
}  // namespace dkfac::testing
