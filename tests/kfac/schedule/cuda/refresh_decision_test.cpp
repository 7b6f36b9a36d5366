#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_device_training.h"
#include "support/saved_state.h"

// Decisions about statistics within the step, sent by their owners to all ranks: adaptive
// intervals, and the magnitudes of an f16 wire. The schedule on a device equals that of the host.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

CurvatureOptions adaptive(double alpha) {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.dtype = DType::f64;
  options.refresh.staleness = kfac::Staleness::adaptive;
  options.refresh.similarity = alpha;
  return options;
}

/// One line per step: the refreshed statistics, and when they will be refreshed next.
std::string schedule_of(const kfac::StepReport& report) {
  std::string text = report.updated ? "" : "skipped";
  for (const kfac::StatisticReport& s : report.statistics)
    text += detail::concat(' ', s.refreshed ? '*' : '.', s.interval, '/', s.age);
  return text + '\n';
}

struct Course {
  std::string schedule;
  std::vector<double> drifts, parameters;
};

/// Thirty steps, two of them bad; every rank must have the same schedule.
Course course_on(Device device, int ranks, const CurvatureOptions& options) {
  Course found;
  DeviceTraining settings;
  settings.spoil = [](int step, int layer, bool output, std::vector<double>& values) {
    if ((step == 4 || step == 17) && layer == 0 && !output)
      values[0] = std::numeric_limits<double>::quiet_NaN();
  };
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    DeviceLoop<double> loop(device, comm, options);
    DeviceRun steps;
    for (int step = 0; step < 30; ++step) {
      const kfac::StepReport report = loop.step(step, settings, steps);
      const std::string line = schedule_of(report);
      comm::require_equal(*comm, line, "the schedule");
      if (comm->rank() != 0) continue;
      if (device.is_cuda() && ranks == 1 && host_waits() > 0) {
        EXPECT_EQ(steps.waits.back(), step == 0 ? 2 : 1) << step;  // The first: for inverses.
      }
      found.schedule += line;
      for (const kfac::StatisticReport& s : report.statistics) found.drifts.push_back(s.drift);
    }
    if (comm->rank() == 0) found.parameters = loop.net().parameters();
  });
  return found;
}

TEST(AdaptiveOnTheDevice, HasTheScheduleOfTheHost) {
  for (const auto form : {kfac::NormFisher::unit_wise, kfac::NormFisher::full}) {
    CurvatureOptions options = adaptive(0.8);
    options.statistics.norm_fisher = form;
    const Course host = course_on(Device::cpu(), 1, options);
    for (const int ranks : {1, 2}) {
      const Course device = course_on(Device::cuda(), ranks, options);
      EXPECT_EQ(device.schedule, host.schedule) << ranks;
      EXPECT_TRUE(near(device.drifts, host.drifts, 1e-10));
      EXPECT_TRUE(near(device.parameters, host.parameters, 1e-10));
    }
    EXPECT_NE(host.schedule.find("skipped"), std::string::npos);
    EXPECT_NE(host.schedule.find(" .3/"), std::string::npos) << host.schedule;
    // Control: the schedule is that of the drifts.
    EXPECT_NE(course_on(Device::cuda(), 1, adaptive(0.3)).schedule, host.schedule);
  }
}

TEST(AdaptiveOnTheDevice, ContinuesWhereItWasSaved) {
  const DeviceTraining settings;
  DeviceRun steps;
  DeviceLoop<double> straight(Device::cuda(), comm::make_self(), adaptive(0.8));
  for (int step = 0; step < 7; ++step) (void)straight.step(step, settings, steps);
  Saver saver;
  straight.preconditioner().visit_state(saver);
  const std::vector<SavedState> saved{saver.state};
  std::vector<std::string> lines;
  for (int step = 7; step < 16; ++step)
    lines.push_back(schedule_of(straight.step(step, settings, steps)));
  // The host can also continue from the state of the device.
  for (const Device device : {Device::cuda(), Device::cpu()}) {
    DeviceLoop<double> resumed(device, comm::make_self(), adaptive(0.8));
    DeviceLoop<double> weights(Device::cuda(), comm::make_self(), adaptive(0.8));
    for (int step = 0; step < 7; ++step) (void)weights.step(step, settings, steps);
    resumed.net().layers = weights.net().layers;
    Loader loader(saved, 0);
    resumed.preconditioner().visit_state(loader);
    for (int step = 7; step < 16; ++step)
      EXPECT_EQ(schedule_of(resumed.step(step, settings, steps)),
                lines[static_cast<std::size_t>(step - 7)])
          << device << ' ' << step;
  }
}

/// One statistic whose sum over two ranks is infinite while each part is not, in f32: it is similar
/// to nothing, on all ranks.
TEST(AdaptiveOnTheDevice, ARefusedStatisticIsSimilarToNothing) {
  comm::run_ranks(2, [](auto comm) {
    CurvatureOptions options = adaptive(0.25);
    options.dtype = DType::f32;
    std::vector<std::string> schedules;
    for (const Device device : {Device::cpu(), Device::cuda()}) {
      Context ctx(device);
      kfac::Preconditioner preconditioner(comm, options, device);
      const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
      std::string schedule;
      for (int step = 0; step < 20; ++step) {
        const float x = step == 7 ? 1.7e19F : 1, one = 1;
        Tensor in = to_device(ctx, view_of(&x, {1, 1})),
               out = to_device(ctx, view_of(&one, {1, 1}));
        Tensor g = to_device(ctx, view_of(&one, {1, 1}));
        if (preconditioner.wants_input(fc))
          preconditioner.record_input(fc, in, ctx.stream(), {1, 1});
        if (preconditioner.wants_grad_output(fc))
          preconditioner.record_grad_output(fc, out, ctx.stream(), {1, 1});
        const std::vector<kfac::LayerGrad> grads{{fc, g, {}}};
        const kfac::StepReport report = preconditioner.step(grads, ctx.stream());
        EXPECT_EQ(report.failed_factors, step == 7 && comm->rank() == 0 ? 1 : 0) << step;
        schedule += schedule_of(report);
      }
      comm::require_equal(*comm, schedule, "the schedule");
      schedules.push_back(schedule);
    }
    EXPECT_EQ(schedules[1], schedules[0]);
  });
}

// Values differ in the last places, so that few of them may round to the other neighbour in f16: an
// error of 2^-11 in one element of a statistic, whose inverse has a condition of 1e2 at most.
TEST(F16WireOnTheDevice, TravelsAsOnTheHost) {
  for (const bool overlap : {true, false}) {
    CurvatureOptions options = adaptive(0.8);
    options.refresh.staleness = kfac::Staleness::fixed;
    options.communication.statistics_wire = DType::f16;
    options.communication.overlap = overlap;
    CurvatureOptions exact = options;
    exact.communication.statistics_wire.reset();
    for (const int ranks : {1, 2}) {
      const DeviceRun host = train_on<double>(Device::cpu(), ranks, options);
      const DeviceRun device = train_on<double>(Device::cuda(), ranks, options);
      EXPECT_TRUE(near(device.parameters, host.parameters, 1e-3));
      for (std::size_t i = 0; i < host.reports.size(); ++i)
        EXPECT_EQ(device.reports[i].bytes, host.reports[i].bytes) << ranks << ' ' << i;
      // From the second step on magnitudes are known, and half of the bytes or less are sent.
      const DeviceRun wide = train_on<double>(Device::cuda(), ranks, exact);
      EXPECT_GT(device.reports[0].bytes, wide.reports[0].bytes);
      EXPECT_LT(device.reports[1].bytes, wide.reports[1].bytes);
      EXPECT_FALSE(near(device.parameters, wide.parameters, 1e-8));
    }
  }
}

/// A statistic that grows past its wire: the step is skipped by all, and the next one is sent
/// whole.
TEST(F16WireOnTheDevice, SkipsAStepThatIsPastItAndContinues) {
  CurvatureOptions options = adaptive(0.8);
  options.refresh.staleness = kfac::Staleness::fixed;
  options.communication.statistics_wire = DType::f16;
  std::vector<std::string> updates;
  for (const Device device : {Device::cpu(), Device::cuda()})
    for (const int ranks : {1, 2}) {
      DeviceTraining settings;
      settings.spoil = [](int step, int, bool output, std::vector<double>& values) {
        if (!output && step >= 3)
          for (double& v : values) v *= 1e6;
      };
      const DeviceRun run = train_on<double>(device, ranks, options, settings);
      std::string line;
      for (const kfac::StepReport& report : run.reports)
        line += detail::concat(report.updated, ' ', report.agreement.nonfinite_statistic, ", ");
      updates.push_back(line);
      EXPECT_FALSE(run.reports[3].updated);
      EXPECT_TRUE(run.reports[4].updated);
    }
  EXPECT_EQ(updates[2], updates[0]);
  EXPECT_EQ(updates[3], updates[1]);
}

}  // namespace
}  // namespace dkfac::testing
