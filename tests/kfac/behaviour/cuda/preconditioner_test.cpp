#include "dkfac/kfac/preconditioner.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_device_training.h"
#include "support/saved_state.h"

// Whole steps on a device against those on the host: the same calls with the same numbers, on a
// stream of the caller.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

CurvatureOptions small_base() {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.dtype = DType::f64;
  return options;
}

struct Named {
  std::string name;
  CurvatureOptions options = natural_gradient();
};

std::vector<Named> all_options() {
  std::vector<Named> all{{"Defaults", small_base()}};
  const auto add = [&all](std::string name, auto change) {
    CurvatureOptions options = small_base();
    change(options);
    all.push_back({std::move(name), options});
  };
  add("Intervals",
      [](auto& o) { o.refresh.statistics_interval = 2, o.refresh.inverse_interval = 3; });
  add("Spread", [](auto& o) { o.refresh.inverse_interval = 3, o.refresh.stagger_inverses = true; });
  add("Delayed", [](auto& o) {
    o.refresh.statistics_interval = 2, o.refresh.inverse_interval = 4;
    o.refresh.delay_inverses = true;
  });
  add("DelayedEachStep", [](auto& o) { o.refresh.delay_inverses = true; });
  add("Eigen", [](auto& o) { o.inverse.method = kfac::InverseMethod::eigen; });
  add("Latest", [](auto& o) { o.statistics.new_weight = 1; });
  add("FullFisher", [](auto& o) { o.statistics.norm_fisher = kfac::NormFisher::full; });
  add("DiagonalFisher", [](auto& o) { o.statistics.norm_fisher = kfac::NormFisher::diagonal; });
  add("Reduced", [](auto& o) { o.statistics.sharing = kfac::WeightSharing::reduce; });
  add("Half", [](auto& o) { o.statistics.fraction = 0.5; });
  add("KlClip", [](auto& o) { o.kl_clip = 1e-4; });
  add("LengthOfTheGradient", [](auto& o) { o.step_length = kfac::StepLength::gradient; });
  add("GradualLength", [](auto& o) { o.step_length = kfac::StepLength::gradual; });
  add("LengthOfTheProjection", [](auto& o) { o.step_length = kfac::StepLength::projection; });
  add("RecordsStay", [](auto& o) { o.statistics.records_valid_until_step = true; });
  add("RecordsStayOnNarrowWires", [](auto& o) {
    o.statistics.records_valid_until_step = true;
    o.communication.statistics_wire = DType::bf16;
    o.communication.overlap = false;
  });
  add("NoOverlap", [](auto& o) { o.communication.overlap = false; });
  add("SmallBuckets", [](auto& o) { o.communication.bucket_bytes = 64; });
  add("NarrowWire", [](auto& o) { o.communication.statistics_wire = DType::bf16; });
  add("F16Wire", [](auto& o) { o.communication.statistics_wire = DType::f16; });
  add("Adaptive", [](auto& o) {
    o.refresh.staleness = kfac::Staleness::adaptive;
    o.refresh.similarity = 0.8;
  });
  return all;
}

class OnTheDevice : public ::testing::TestWithParam<Named> {};

TEST_P(OnTheDevice, TheStepsAreThoseOfTheHost) {
  const CurvatureOptions& options = GetParam().options;
  const DeviceRun host = train_on<double>(Device::cpu(), 1, options);
  const DeviceRun device = train_on<double>(Device::cuda(), 1, options);
  EXPECT_TRUE(near(device.parameters, host.parameters, 1e-10));
  // Control: the steps are not those of the gradient.
  CurvatureOptions damped = options;
  damped.damping = 10;
  EXPECT_FALSE(near(train_on<double>(Device::cuda(), 1, damped).parameters, host.parameters, 1e-4));
  for (std::size_t i = 0; i < host.reports.size(); ++i) {
    EXPECT_EQ(device.reports[i].updated, host.reports[i].updated);
    EXPECT_EQ(device.reports[i].statistics_refreshed, host.reports[i].statistics_refreshed);
    EXPECT_EQ(device.reports[i].inverses_refreshed, host.reports[i].inverses_refreshed);
    EXPECT_EQ(device.reports[i].bytes, host.reports[i].bytes);
    // What became of inverses is known a step later, but of the first ones at once.
    const auto none = decltype(host.reports[i].inverses){};
    const auto& known = i == 0 ? host.reports[0].inverses : host.reports[i - 1].inverses;
    EXPECT_EQ(device.reports[i].inverses, i == 1 ? none : known) << i;
    const auto step = static_cast<std::int64_t>(i + 1);
    const auto step_of = [&](const auto& inverses, std::int64_t rebuilt) {
      return inverses == none ? 0 : rebuilt;
    };
    EXPECT_EQ(host.reports[i].inverses_step, step_of(host.reports[i].inverses, step)) << i;
    EXPECT_EQ(device.reports[i].inverses_step,
              step_of(device.reports[i].inverses, i == 0 ? step : step - 1))
        << i;
    EXPECT_EQ(host.reports[i].update_step, step);
    EXPECT_EQ(device.reports[i].update_step, step - 1);
  }
}

TEST_P(OnTheDevice, TheHostWaitsOnceForEachStep) {
  const DeviceRun run = train_on<double>(Device::cuda(), 1, GetParam().options);
  if (host_waits() <= 0) GTEST_SKIP() << "this device does not count waits";
  // In the first step also for whether there is an inverse.
  for (std::size_t i = 0; i < run.waits.size(); ++i) EXPECT_EQ(run.waits[i], i == 0 ? 2 : 1) << i;
}

TEST_P(OnTheDevice, TwoRunsHaveTheSameBits) {
  EXPECT_EQ(train_on<double>(Device::cuda(), 1, GetParam().options).parameters,
            train_on<double>(Device::cuda(), 1, GetParam().options).parameters);
}

INSTANTIATE_TEST_SUITE_P(Options, OnTheDevice, ::testing::ValuesIn(all_options()),
                         [](const auto& param) { return param.param.name; });

struct EqualLayers {
  std::vector<double> directions;  ///< Of the second step, which refreshes nothing.
  std::int64_t products = 0;       ///< Of that step.
};

/// Steps of four layers, three of which have one shape.
EqualLayers train_equal_layers(Device device, double kl_clip) {
  CurvatureOptions options = small_base();
  options.refresh.statistics_interval = options.refresh.inverse_interval = 2;
  options.kl_clip = kl_clip;
  Context caller(device), host;
  kfac::Preconditioner preconditioner(comm::make_self(), options, device);
  const std::vector<LinearSpec> specs{{8, 6}, {8, 6}, {6, 8}, {8, 6}};
  std::vector<LayerId> ids;
  for (const LinearSpec& spec : specs)
    ids.push_back(preconditioner.add_layer("l" + std::to_string(ids.size()), spec));
  Random random(7);
  const auto random_there = [&](Shape shape) {
    Tensor x = Tensor::empty(host, shape, DType::f64);
    fill_normal(x, 0, 1, random);
    return Tensor::copy_of(caller, x);
  };
  EqualLayers out;
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> memory;
    std::vector<kfac::LayerGrad> grads;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const Tensor x = random_there({12, specs[i].in}), dy = random_there({12, specs[i].out});
      preconditioner.record_input(ids[i], x, caller.stream());
      preconditioner.record_grad_output(ids[i], dy, caller.stream());
      memory.push_back(random_there({specs[i].out, specs[i].in}));
      memory.push_back(random_there({specs[i].out}));
      grads.push_back({ids[i], memory[2 * i], memory[2 * i + 1]});
    }
    const std::int64_t before = products();
    const auto report = preconditioner.step(grads, caller.stream(), {.lr = 0.05, .flags = {}});
    out.products = products() - before;
    EXPECT_TRUE(report.updated);
    out.directions.clear();
    for (const Tensor& x : memory)
      for (const double value : device_values(caller, x)) out.directions.push_back(value);
  }
  return out;
}

TEST(EqualLayersOnTheDevice, ArePreconditionedInOneCall) {
  for (const double kl_clip : {0.0, 1e-6}) {
    const EqualLayers host = train_equal_layers(Device::cpu(), kl_clip);
    const EqualLayers device = train_equal_layers(Device::cuda(), kl_clip);
    EXPECT_TRUE(near(device.directions, host.directions, 1e-10));
    // Two products, of weights and of biases, for the three layers and for the other one.
    EXPECT_EQ(device.products, is_emulated() ? 2 * 2 * 2 : 0);
    EXPECT_EQ(host.products, 0);
  }
  // Control: the clip has an effect.
  EXPECT_FALSE(near(train_equal_layers(Device::cuda(), 1e-6).directions,
                    train_equal_layers(Device::cuda(), 0).directions, 1e-3));
}

TEST(OnTheDeviceInF32, TheStepsAreThoseOfTheHost) {
  CurvatureOptions options = small_base();
  options.dtype = DType::f32;
  EXPECT_TRUE(near(train_on<float>(Device::cuda(), 1, options).parameters,
                   train_on<float>(Device::cpu(), 1, options).parameters, 1e-4));
}

TEST(OnTheDeviceInF32, GradientsMayBeWiderThanInverses) {
  CurvatureOptions options = small_base();
  options.dtype = DType::f32;
  EXPECT_TRUE(near(train_on<double>(Device::cuda(), 1, options).parameters,
                   train_on<double>(Device::cpu(), 1, options).parameters, 1e-4));
}

class DeviceRanks : public ::testing::TestWithParam<std::pair<int, double>> {};

TEST_P(DeviceRanks, AreEqualToOne) {
  const auto [ranks, fraction] = GetParam();
  CurvatureOptions options = small_base();
  options.refresh.inverse_interval = 2;
  const DeviceRun one = train_on<double>(Device::cuda(), 1, options);
  options.distribution.grad_worker_fraction = fraction;
  for (const bool overlap : {true, false}) {
    options.communication.overlap = overlap;
    const DeviceRun many = train_on<double>(Device::cuda(), ranks, options);
    EXPECT_TRUE(near(many.parameters, one.parameters, 1e-10)) << overlap;
    EXPECT_GT(many.reports.back().bytes, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, DeviceRanks,
                         ::testing::Values(std::pair(2, 0.0), std::pair(2, 1.0), std::pair(4, 0.0),
                                           std::pair(4, 0.5), std::pair(4, 1.0)),
                         [](const auto& param) {
                           return std::to_string(param.param.first) + "Ranks" +
                                  std::to_string(static_cast<int>(4 * param.param.second)) +
                                  "Quarters";
                         });

/// Six steps, of which the fourth is rejected or omitted.
std::vector<double> with_bad_step(int layer, bool output, bool left_out) {
  DeviceTraining settings;
  DeviceRun run;
  DeviceLoop<double> loop(Device::cuda(), comm::make_self(), small_base());
  for (int step = 0; step < 6; ++step) {
    if (step == 3 && left_out) continue;
    if (step == 3)
      settings.spoil = [=](int, int at, bool out, std::vector<double>& values) {
        if (at == layer && out == output) values[1] = std::numeric_limits<double>::quiet_NaN();
      };
    const kfac::StepReport report = loop.step(step, settings, run);
    settings.spoil = {};
    EXPECT_EQ(report.updated, step != 3);
    EXPECT_EQ(report.agreement.nonfinite_statistic, step == 3 ? 1 : 0);
  }
  return loop.net().parameters();
}

TEST(SkippedStepOnTheDevice, LeavesNoTraceOfANanInOneStatistic) {
  using Net = PlainNet<double>;
  for (const auto& [layer, output] :
       {std::pair(Net::conv, false), {Net::fc1, true}, {Net::bn, true}}) {
    EXPECT_EQ(with_bad_step(layer, output, false), with_bad_step(layer, output, true)) << layer;
  }
}

TEST(StateOnTheDevice, ContinuesAsIfItHadNeverStopped) {
  CurvatureOptions options = small_base();
  options.refresh.inverse_interval = 3;
  const DeviceTraining settings;
  DeviceRun run;
  DeviceLoop<double> whole(Device::cuda(), comm::make_self(), options);
  for (int step = 0; step < 4; ++step) (void)whole.step(step, settings, run);
  // In the middle of an interval, while the outcome of the last rebuild has not been heard of.
  Saver saver;
  whole.preconditioner().visit_state(saver);
  const std::vector<SavedState> saved{saver.state};
  const auto resume = [&](Device device) {
    DeviceLoop<double> loop(device, comm::make_self(), options);
    loop.net().layers = whole.net().layers;
    Loader loader(saved, 0);
    loop.preconditioner().visit_state(loader);
    for (int step = 4; step < 8; ++step) (void)loop.step(step, settings, run);
    return loop.net().parameters();
  };
  const std::vector<double> device = resume(Device::cuda());
  for (int step = 4; step < 8; ++step) (void)whole.step(step, settings, run);
  EXPECT_EQ(device, whole.net().parameters());
  DeviceLoop<double> straight(Device::cuda(), comm::make_self(), options);
  for (int step = 0; step < 8; ++step) (void)straight.step(step, settings, run);
  EXPECT_EQ(device, straight.net().parameters());
  // Control: without the state it is another run.
  DeviceLoop<double> without(Device::cuda(), comm::make_self(), options);
  without.net().layers = whole.net().layers;
  for (int step = 4; step < 8; ++step) (void)without.step(step, settings, run);
  EXPECT_FALSE(near(device, without.net().parameters(), 1e-3));
}

TEST(PreconditionerOnTheDevice, SaysWhatItDoesNotTake) {
  const auto refused = [](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const LinearSpec spec{.in = 2, .out = 1, .bias = false};
  kfac::Preconditioner preconditioner(comm::make_self(), small_base(), Device::cuda());
  const auto fc = preconditioner.add_layer("fc", spec);
  Context ctx(Device::cuda());
  Tensor x = Tensor::zeros(ctx, {3, 2}, DType::f64), dy = Tensor::zeros(ctx, {3, 1}, DType::f64);
  // A stream of the host, and gradients there.
  EXPECT_NE(refused([&] { preconditioner.record_input(fc, x); }).find("stream is of cpu"),
            std::string::npos);
  preconditioner.record_input(fc, x, ctx.stream());
  preconditioner.record_grad_output(fc, dy, ctx.stream());
  std::vector<double> g{1, 2};
  const std::vector<kfac::LayerGrad> grads{{fc, view_of(g.data(), {2}), {}}};
  EXPECT_NE(refused([&] { (void)preconditioner.step(grads, ctx.stream()); }).find("is on cpu"),
            std::string::npos);
  Tensor narrow = Tensor::zeros(ctx, {2}, DType::f16);
  const std::vector<kfac::LayerGrad> halves{{fc, narrow, {}}};
  EXPECT_NE(
      refused([&] { (void)preconditioner.step(halves, ctx.stream()); }).find("must be f32 or f64"),
      std::string::npos);
}

}  // namespace
}  // namespace dkfac::testing
