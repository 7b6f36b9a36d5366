#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/ema.h"
#include "dkfac/nn/layers.h"

#include "nn/cuda/device_models.h"
#include "nn/fusion/state.h"
#include "nn/shared/memory.h"

namespace dkfac::testing {
namespace {

std::string name_of_model(const std::string& model) {
  std::string name = model;
  std::erase(name, '-');
  return name;
}

/// Tolerance of values of a pass whose sums were formed in another order; c = 4, n = 200 roundings
/// on the longest way through a network.
double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-10 : 4 * 200 * 0x1p-23; }

/// Gradients of f32 may also differ where the argument of a ReLU is within rounding of 0: it opens
/// on one side alone, and its gradient of a sum over at least 4 outputs comes or goes. In f64 no
/// argument is that small, and all has to agree.
double gradient_tolerance(DType dtype) { return dtype == DType::f64 ? 1e-10 : 0.25; }

/// Tolerance between two runs in one type that round in another order. Both differ from the run in
/// f64 by their roundings, on a device as on the host: c = 8 times the difference of the host's
/// run, and at least `least` where that is small by chance.
double tolerance(const std::vector<double>& rounded, const std::vector<double>& exact,
                 double least) {
  return std::max(8 * relative_error(rounded, exact), least);
}

/// Least tolerance of losses: c = 8 spacings of 16 bits; in f32 a ReLU that opens on one side
/// alone, one of some 200 outputs, times the rate of 0.02.
double least_tolerance(DType compute) {
  if (compute == DType::f32) return 0.02 / 200;
  return 8 * (compute == DType::f16 ? 0x1p-10 : 0x1p-7);
}

struct Passed {
  std::string model;
  DType dtype;
};
class PassesOnDevice : public ::testing::TestWithParam<Passed> {};

/// Positions of maxima take 8 bits on a device and 32 on the host.
std::size_t bytes_saved_by_places(const nn::Model& model, std::int64_t batch) {
  std::size_t bytes = 0;
  model.trace([&](const nn::Layer& layer, const Shape& output) {
    const auto* pool = dynamic_cast<const nn::Pool2d*>(&layer);
    if (pool == nullptr || pool->kind() != nn::PoolKind::max) return;
    const auto count = static_cast<std::size_t>(batch * output.numel());
    bytes += 4 * count - 4 * ((count + 3) / 4);
  });
  return bytes;
}

/// Bytes kept on a device only, for ReLUs behind an addend: a byte for each 16 of the output, in
/// whole words of 4.
std::size_t bytes_of_signs(nn::Model& model, std::int64_t batch) {
  std::set<const nn::Layer*> adding;
  model.visit([&](nn::Layer& layer) {
    const auto* block = dynamic_cast<const nn::Residual*>(&layer);
    if (block != nullptr && block->options().activation.kind == nn::ActivationKind::relu)
      adding.insert(fusion_of(*block));
  });
  std::size_t bytes = 0;
  model.trace([&](const nn::Layer& layer, const Shape& output) {
    if (!adding.contains(&layer)) return;
    const std::size_t outputs = static_cast<std::size_t>(batch * output.numel());
    bytes += (outputs * size_of(model.compute()) + 63) / 64 * 4;
  });
  return bytes;
}

/// Logits in training and evaluation, gradients and running statistics.
TEST_P(PassesOnDevice, GiveWhatTheHostGives) {
  const auto [name, dtype] = GetParam();
  const nn::ModelOptions options = small_model(name, dtype);
  const Shape& one = options.input;
  const Shape batch{4, one[0], one[1], one[2]};
  Context there(Device::cuda()), here(Device::cpu(), {.backend = Backend::reference});
  const auto model = nn::make_model(there, options), expected = nn::make_model(here, options);
  const Tensor x = random_tensor(here, batch, dtype, 3);
  const Tensor grad = random_tensor(here, {4, options.classes}, dtype, 4);
  const Tensor x_there = to_device(there, x), grad_there = to_device(there, grad);
  const double tol = tolerance(dtype);
  for (int pass = 0; pass < 2; ++pass) {
    const ConstTensorView logits = model->forward(there, x_there, nn::Mode::train);
    EXPECT_TRUE(near(device_values(there, logits),
                     values(here, expected->forward(here, x, nn::Mode::train)), tol));
    const auto before = host_waits();
    model->backward(there, grad_there);
    EXPECT_EQ(host_waits(), before);
    expected->backward(here, grad);
    std::vector<double> gradients = device_values(there, model->gradients());
    const std::vector<double> gradients_here = values(here, expected->gradients());
    EXPECT_TRUE(near(gradients, gradients_here, gradient_tolerance(dtype)));
    for (double& g : gradients) g *= 2;
    EXPECT_FALSE(near(gradients, gradients_here, gradient_tolerance(dtype))) << "control";
    EXPECT_TRUE(
        near(device_values(there, model->buffers()), values(here, expected->buffers()), tol));
    const auto waits = host_waits();
    const ConstTensorView in_evaluation = model->forward(there, x_there, nn::Mode::eval);
    EXPECT_EQ(host_waits(), waits);
    EXPECT_TRUE(near(device_values(there, in_evaluation),
                     values(here, expected->forward(here, x, nn::Mode::eval)), tol));
  }
  const std::size_t signs = bytes_of_signs(*model, batch[0]);
  EXPECT_EQ(signs > 0, name.starts_with("resnet") && !name.starts_with("resnet9"));
  EXPECT_EQ(model->allocated_bytes() + bytes_saved_by_places(*model, batch[0]),
            expected->allocated_bytes() + signs);
  EXPECT_EQ(nn::plan_memory(*model, 4, nn::Mode::train).held(),
            nn::plan_memory(*expected, 4, nn::Mode::train).held());
}

/// Two runs: no bit depends on the timing of work.
TEST_P(PassesOnDevice, GiveTheSameBitsTwice) {
  const auto [name, dtype] = GetParam();
  const nn::ModelOptions options = small_model(name, dtype);
  const Shape& one = options.input;
  std::vector<std::vector<double>> gradients;
  for (int run = 0; run < 2; ++run) {
    Context ctx(Device::cuda()), host;
    const auto model = nn::make_model(ctx, options);
    const Tensor x =
        to_device(ctx, random_tensor(host, Shape{4, one[0], one[1], one[2]}, dtype, 3));
    const Tensor grad = to_device(ctx, random_tensor(host, {4, options.classes}, dtype, 4));
    (void)model->forward(ctx, x, nn::Mode::train);
    model->backward(ctx, grad);
    gradients.push_back(device_values(ctx, model->gradients()));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

std::vector<Passed> all_passes() {
  std::vector<Passed> all;
  for (const char* model :
       {"mlp", "lenet-bn", "resnet20", "resnet18", "resnet50", "resnet9", "resnet9-plain",
        "switched-lenet-bn", "switched-resnet20", "switched-resnet50"})
    for (const DType dtype : {DType::f64, DType::f32}) all.push_back({model, dtype});
  return all;
}
std::string name_of_passed(const ::testing::TestParamInfo<Passed>& info) {
  return name_of_model(info.param.model) + "_" + std::string(name_of(info.param.dtype));
}
INSTANTIATE_TEST_SUITE_P(Models, PassesOnDevice, ::testing::ValuesIn(all_passes()), name_of_passed);

struct Golden {
  std::string model;
  Method method;
  DType compute;  ///< f64, or f32 with activations of this type.
};
class GoldenRunOnDevice : public ::testing::TestWithParam<Golden> {};

/// 10 losses, weights and running statistics against those of the host; 4 under AddressSanitizer.
TEST_P(GoldenRunOnDevice, FollowsTheHost) {
  const auto [name, method, compute] = GetParam();
  const DType dtype = compute == DType::f64 ? DType::f64 : DType::f32;
  Recipe recipe{.model = small_model(name, dtype, compute), .method = method};
  recipe.steps = steps_in_time(recipe.steps);
  if (method == Method::kfac) recipe.lr = 0.005;
  if (compute == DType::f16) recipe.loss_scale = [](int) { return 0x1p15; };
  const TrainedModel there = train_model(recipe, Device::cuda());
  const TrainedModel here = train_model(recipe, Device::cpu());
  double losses = 1e-10, weights = 1e-9, buffers = 1e-9;
  if (dtype != DType::f64) {
    recipe.model = small_model(name, DType::f64, DType::f64);
    const TrainedModel exact = train_model(recipe, Device::cpu());
    const double least = least_tolerance(compute);
    losses = tolerance(here.losses, exact.losses, least);
    weights = tolerance(here.weights, exact.weights, 10 * least);
    buffers = tolerance(here.buffers, exact.buffers, 10 * least);
  }
  EXPECT_TRUE(near(there.losses, here.losses, losses));
  EXPECT_TRUE(near(there.weights, here.weights, weights));
  EXPECT_TRUE(near(there.buffers, here.buffers, buffers));
  EXPECT_NE(there.losses.front(), there.losses.back());
}

std::vector<Golden> golden_runs() {
  std::vector<Golden> runs;
  for (const Method method : {Method::sgd, Method::lars, Method::kfac})
    for (const DType compute : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const char* model : {"lenet-bn", "resnet20", "resnet9"})
        if (method != Method::lars || std::string(model) == "lenet-bn")
          runs.push_back({model, method, compute});
  return runs;
}
std::string name_of_run(const ::testing::TestParamInfo<Golden>& info) {
  constexpr const char* kMethods[] = {"sgd", "lars", "kfac"};
  return name_of_model(info.param.model) + "_" + kMethods[static_cast<int>(info.param.method)] +
         "_" + std::string(name_of(info.param.compute));
}
INSTANTIATE_TEST_SUITE_P(Runs, GoldenRunOnDevice, ::testing::ValuesIn(golden_runs()), name_of_run);

/// Ranks of this process share the device; ghost groups over all of them.
TEST(RanksOnDevice, TwoEqualOne) {
  for (const Method method : {Method::sgd, Method::kfac}) {
    Recipe recipe{.model = small_model("lenet-bn", DType::f64), .method = method, .steps = 6};
    recipe.groups = 2;
    const TrainedModel one = train_model(recipe, Device::cuda());
    const TrainedModel two = train_model(recipe, Device::cuda(), 2);
    EXPECT_TRUE(near(two.losses, one.losses, 1e-10));
    EXPECT_TRUE(near(two.weights, one.weights, 1e-10));
    EXPECT_TRUE(near(two.buffers, one.buffers, 1e-10));
  }
}

TEST(StepOnDevice, WaitsOnce) {
  for (const Method method : {Method::sgd, Method::lars, Method::kfac}) {
    ModelTraining training({.model = small_model("resnet20", DType::f32), .method = method},
                           Device::cuda());
    for (int step = 0; step < 4; ++step) {
      EXPECT_TRUE(training.step(step).updated);
      const int waits = method == Method::kfac && step == 0 ? 2 : 1;  // The first: for inverses.
      EXPECT_EQ(training.waits(), is_emulated() ? waits : 0) << "step " << step;
    }
  }
}

/// A free synchronizes allocations on every stream with the work of all others, so steps must need
/// neither.
TEST(StepOnDevice, AllocatesAndFreesNothingOnceSteady) {
  if (!is_emulated()) GTEST_SKIP() << "a device does not count them";
  for (const Method method : {Method::sgd, Method::lars, Method::kfac}) {
    const Recipe recipe{.model = small_model("resnet20", DType::f32, DType::f16),
                        .method = method,
                        .statistics_every = 2};
    ModelTraining training(recipe, Device::cuda());
    for (int step = 0; step < 4; ++step) (void)training.step(step);
    std::int64_t before = 0;
    for (int step = 4; step < 8; ++step) {
      training.load(step);  // By pinned memory, which may still be busy.
      before = device_allocations();
      EXPECT_TRUE(training.update(recipe.loss_scale(step)).updated);
      EXPECT_EQ(device_allocations(), before);
    }
    { const Tensor control = Tensor::empty(training.ctx(), {10}); }
    EXPECT_EQ(device_allocations(), before + 2) << "control";
  }
}

TEST(EmaOnDevice, GivesTheBitsOfTheHost) {
  const Recipe recipe{.model = small_model("resnet20", DType::f32)};
  Context host;
  ModelTraining there(recipe, Device::cuda());
  const auto here = nn::make_model(host, recipe.model);
  nn::Ema ema(there.ctx(), there.model(), {.decay = 0.9}), expected(host, *here, {.decay = 0.9});
  for (int step = 1; step <= 4; ++step) {
    (void)there.step(step);
    ops::copy(host, to_host(there.ctx(), there.model().parameters()), here->parameters());
    ops::copy(host, to_host(there.ctx(), there.model().buffers()), here->buffers());
    ema.after_step(step);
    expected.after_step(step);
  }
  EXPECT_EQ(device_values(there.ctx(), ema.parameters()), values(host, expected.parameters()));
  EXPECT_EQ(device_values(there.ctx(), ema.buffers()), values(host, expected.buffers()));
  const std::vector<double> trained = there.weights(),
                            averages = values(host, expected.parameters());
  {
    const nn::WithEma averaged(&ema);
    EXPECT_EQ(there.weights(), averages);
    EXPECT_NE(averages, trained);
  }
  EXPECT_EQ(there.weights(), trained);
}

}  // namespace
}  // namespace dkfac::testing
