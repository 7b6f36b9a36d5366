// The average of weights: constants, closed form, interval, and a swap that leaves no trace.

#include "dkfac/nn/ema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

std::unique_ptr<Model> make(Context& ctx, DType dtype = DType::f64, const char* name = "lenet-bn") {
  return make_model(ctx, {.name = name, .input = Shape{12, 12, 1}, .dtype = dtype});
}

std::vector<double> host_values(TensorView view) {
  const double* p = view.data<double>();
  return {p, p + view.numel()};
}

/// Parameters, then buffers.
std::vector<double> all_values(TensorView parameters, TensorView buffers) {
  std::vector<double> all = host_values(parameters);
  const std::vector<double> rest = host_values(buffers);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

void set(Model& model, std::uint64_t seed) {
  for (TensorView view : {model.parameters(), model.buffers()}) {
    Random random(seed, 5);
    fill_uniform(view, -1, 1, random);
  }
}

TEST(Ema, OfAConstantIsTheConstant) {
  Context ctx;
  const auto model = make(ctx);
  set(*model, 3);
  const auto parameters = host_values(model->parameters()), buffers = host_values(model->buffers());
  ASSERT_FALSE(buffers.empty());
  Ema ema(ctx, *model, {.decay = 0.97, .interval = 1});
  for (int step = 1; step <= 50; ++step) ema.after_step(step);
  EXPECT_EQ(ema.updates(), 50);
  EXPECT_EQ(host_values(ema.parameters()), parameters);
  EXPECT_EQ(host_values(ema.buffers()), buffers);
}

TEST(Ema, HasItsClosedForm) {
  Context ctx;
  const auto model = make(ctx);
  constexpr double kDecay = 0.9;
  constexpr std::int64_t kInterval = 3;
  constexpr int kUpdates = 12;
  Ema ema(ctx, *model, {.decay = kDecay, .interval = kInterval});
  // r^(n-1) w_1 + sum_{j>1} (1-r) r^(n-j) w_j with r = decay^interval, over the steps 3, 6, ...
  const double r = std::pow(kDecay, kInterval);
  std::vector<double> expected(
      static_cast<std::size_t>(model->parameter_count() + model->buffer_count()), 0.0);
  for (int step = 1; step <= kUpdates * kInterval; ++step) {
    set(*model, static_cast<std::uint64_t>(step));
    ema.after_step(step);
    if (step % kInterval != 0) continue;
    const int j = static_cast<int>(step / kInterval);
    const double weight = (j == 1 ? 1 : 1 - r) * std::pow(r, kUpdates - j);
    const auto w = all_values(model->parameters(), model->buffers());
    for (std::size_t i = 0; i < w.size(); ++i) expected[i] += weight * w[i];
  }
  const auto got = all_values(ema.parameters(), ema.buffers());
  const auto last = all_values(model->parameters(), model->buffers());
  ASSERT_EQ(got.size(), expected.size());
  // c*n*eps: 12 terms below 1, three roundings each in both forms.
  const double tolerance = 2 * 3 * kUpdates * std::numeric_limits<double>::epsilon();
  double parameters_moved = 0, buffers_moved = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance);
    const bool trained = static_cast<std::int64_t>(i) < model->parameter_count();
    double& moved = trained ? parameters_moved : buffers_moved;
    moved = std::max(moved, std::abs(got[i] - last[i]));
  }
  EXPECT_GT(parameters_moved, 0.1) << "the average is not just the newest value";
  EXPECT_GT(buffers_moved, 0.1);
}

TEST(Ema, SwapsThereAndBackWithoutATrace) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const char* name : {"lenet-bn", "mlp"}) {
      Context ctx;
      const auto model = make(ctx, dtype, name);
      Ema ema(ctx, *model, {.decay = 0.9});
      const auto bytes = [](TensorView view) {
        const auto* p = static_cast<const unsigned char*>(view.raw());
        return std::vector<unsigned char>(p, p + view.bytes());
      };
      set(*model, 1);
      ema.after_step(1);
      set(*model, 2);
      const auto weights = bytes(model->parameters()), state = bytes(model->buffers());
      const auto average = bytes(ema.parameters()), average_state = bytes(ema.buffers());
      {
        const WithEma scope(&ema);
        EXPECT_TRUE(ema.swapped());
        EXPECT_EQ(bytes(model->parameters()), average);
        EXPECT_NE(bytes(model->parameters()), weights);
        EXPECT_EQ(bytes(model->buffers()), average_state);
        EXPECT_TRUE(state.empty() || bytes(model->buffers()) != state);
        EXPECT_THROW(ema.after_step(2), InvalidArgument);
      }
      EXPECT_FALSE(ema.swapped());
      EXPECT_EQ(bytes(model->parameters()), weights);
      EXPECT_EQ(bytes(model->buffers()), state);
      EXPECT_EQ(bytes(ema.parameters()), average);
      EXPECT_EQ(bytes(ema.buffers()), average_state);
    }
  }
}

TEST(Ema, BeforeItsFirstUpdateLeavesTheModelAlone) {
  Context ctx;
  const auto model = make(ctx);
  const auto before = host_values(model->parameters());
  Ema ema(ctx, *model, {.decay = 0.9, .interval = 5});
  ema.after_step(4);
  {
    const WithEma scope(&ema);
    EXPECT_FALSE(ema.swapped());
    EXPECT_EQ(host_values(model->parameters()), before);
    ema.after_step(5);
    set(*model, 2);
  }
  EXPECT_FALSE(ema.swapped()) << "a scope that did not swap must not swap back";
  EXPECT_EQ(host_values(ema.parameters()), before);
}

TEST(Ema, RefusesBadOptions) {
  EXPECT_THROW(EmaOptions{.decay = 0}.validate(), InvalidArgument);
  EXPECT_THROW(EmaOptions{.decay = 1}.validate(), InvalidArgument);
  EXPECT_THROW(EmaOptions{.interval = 0}.validate(), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
