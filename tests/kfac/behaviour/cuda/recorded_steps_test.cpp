#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/device_faults.h"
#include "support/natural_gradient.h"
#include "support/on_device.h"

// Preconditioning as a recorded graph, against steps that are launched call by call.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

constexpr std::int64_t kCourseSamples = 12;
constexpr int kCourseSteps = 10;

/// Which of two sets of memory the gradients of a step are in.
using SetOf = std::function<int(int step)>;
int always_first(int) { return 0; }

std::vector<LayerSpec> every_kind() {
  return {LinearSpec{.in = 8, .out = 6}, LinearSpec{.in = 8, .out = 6},
          LinearSpec{.in = 7, .out = 5, .bias = false},
          Conv2dSpec{.in = 6, .out = 4, .window = Window::square(1), .groups = 2},
          NormSpec{.channels = 5}};
}

struct RecordedCourse {
  CurvatureOptions options = natural_gradient();
  SetOf set_of = always_first;
  bool graphs = true;
  std::vector<LayerSpec> specs = every_kind();
  std::function<void(int step, kfac::Preconditioner&)> before_step = {};
};

struct RecordedRun {
  std::vector<std::vector<double>> directions;  ///< Of each step.
  std::vector<LaunchCounts> launches;
  std::vector<std::int64_t> calls;  ///< Kernels and products in each step(), of this process.
};

/// Layers of every kind with random records and gradients, on a stream of the caller.
class RecordedLayers {
 public:
  RecordedLayers(std::shared_ptr<comm::Communicator> comm, const RecordedCourse& course)
      : rank_(comm->rank()),
        preconditioner_(std::move(comm), course.options, Device::cuda(),
                        {.graphs = course.graphs}) {
    for (const LayerSpec& spec : course.specs) {
      const std::string name = "l" + std::to_string(specs_.size());
      ids_.push_back(preconditioner_.add_layer(name, spec));
      specs_.push_back(spec);
      for (std::vector<Tensor>& set : sets_) {
        set.push_back(Tensor::zeros(caller_, {weight_numel(spec)}, DType::f64));
        set.push_back(Tensor::zeros(caller_, {bias_numel(spec)}, DType::f64));
      }
    }
  }

  RecordedRun run(const RecordedCourse& course) {
    RecordedRun out;
    for (int step = 0; step < kCourseSteps; ++step) {
      if (course.before_step) course.before_step(step, preconditioner_);
      std::vector<Tensor> records;  // Until they are read.
      Random random(static_cast<std::uint64_t>(100 * step + rank_));
      const auto there = [&](const Shape& shape) {
        Tensor x = Tensor::empty(host_, shape, DType::f64);
        fill_normal(x, 0, 1, random);
        records.push_back(to_device(caller_, x));
        return records.back().view();
      };
      if (preconditioner_.wants_statistics())
        for (std::size_t i = 0; i < specs_.size(); ++i) record(ids_[i], specs_[i], there);
      std::vector<Tensor>& set = sets_.at(static_cast<std::size_t>(course.set_of(step)));
      Random same(static_cast<std::uint64_t>(100 * step + 99));  // On all ranks.
      std::vector<kfac::LayerGrad> grads;
      for (Tensor& gradient : set) {
        Tensor x = Tensor::empty(host_, gradient.shape(), DType::f64);
        fill_normal(x, 0, 1, same);
        ops::copy(caller_, x, gradient);
        caller_.stream().synchronize();
      }
      for (std::size_t i = 0; i < specs_.size(); ++i)
        grads.push_back({ids_[i], set[2 * i],
                         bias_numel(specs_[i]) > 0 ? set[2 * i + 1].view() : TensorView{}});
      const std::int64_t before = kernel_launches() + products();
      const kfac::StepReport report =
          preconditioner_.step(grads, caller_.stream(), {.lr = 0.05 * (1 + step), .flags = {}});
      out.calls.push_back(kernel_launches() + products() - before);
      EXPECT_TRUE(report.updated) << step;
      out.launches.push_back(report.preconditioning);
      out.directions.emplace_back();
      for (const Tensor& x : set)
        for (const double value : device_values(caller_, x)) out.directions.back().push_back(value);
    }
    return out;
  }

 private:
  template <class There>
  void record(LayerId id, const LayerSpec& spec, There&& there) {
    const Stream stream = caller_.stream();
    if (const auto* norm = std::get_if<NormSpec>(&spec)) {
      const std::int64_t c = norm->channels;
      const TensorView x = there({kCourseSamples, c}), mean = there({c}), inv_std = there({c});
      return preconditioner_.record_normalization(id, x, mean, inv_std, there({kCourseSamples, c}),
                                                  stream);
    }
    if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) {
      preconditioner_.record_input(id, there({kCourseSamples, 1, 2, conv->in}), stream);
      return preconditioner_.record_grad_output(id, there({kCourseSamples, 1, 2, conv->out}),
                                                stream);
    }
    const auto& linear = std::get<LinearSpec>(spec);
    preconditioner_.record_input(id, there({kCourseSamples, linear.in}), stream);
    preconditioner_.record_grad_output(id, there({kCourseSamples, linear.out}), stream);
  }

  int rank_;
  Context caller_{Device::cuda()}, host_;
  kfac::Preconditioner preconditioner_;
  std::vector<LayerSpec> specs_;
  std::vector<LayerId> ids_;
  std::array<std::vector<Tensor>, 2> sets_;
};

RecordedRun run_course(const RecordedCourse& course, int ranks = 1) {
  RecordedRun out;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const int rank = comm->rank();
    RecordedRun mine = RecordedLayers(std::move(comm), course).run(course);
    if (rank == 0) out = std::move(mine);
  });
  return out;
}

CurvatureOptions sparse_options() {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.dtype = DType::f64;
  options.refresh.statistics_interval = options.refresh.inverse_interval = 5;
  return options;
}

struct RecordedForm {
  std::string name;
  CurvatureOptions options = natural_gradient();
  int ranks = 1;
};

std::vector<RecordedForm> recorded_forms() {
  std::vector<RecordedForm> all{{"Inverses", sparse_options()}};
  const auto add = [&all](std::string name, auto change, int ranks = 1) {
    CurvatureOptions options = sparse_options();
    change(options);
    all.push_back({std::move(name), options, ranks});
  };
  add("EachStep", [](auto& o) { o.refresh.statistics_interval = o.refresh.inverse_interval = 1; });
  add("InF32", [](auto& o) { o.dtype = DType::f32; });
  add("KlClip", [](auto& o) { o.kl_clip = 1e-4; });
  add("LengthOfTheGradient", [](auto& o) { o.step_length = kfac::StepLength::gradient; });
  add("Eigen", [](auto& o) { o.inverse.method = kfac::InverseMethod::eigen; });
  // Scales from step 5 on.
  add("Ekfac", [](auto& o) {
    o.inverse.method = kfac::InverseMethod::ekfac;
    o.refresh.inverse_interval = kCourseSteps;
  });
  for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::eigen})
    add(method == kfac::InverseMethod::eigen ? "RelativeEigen" : "Relative", [method](auto& o) {
      o.inverse.method = method;
      o.damping = 0;
    });
  add("Delayed", [](auto& o) { o.refresh.delay_inverses = true; });
  add("Staggered", [](auto& o) { o.refresh.stagger_inverses = true; });
  add("FullFisher", [](auto& o) { o.statistics.norm_fisher = kfac::NormFisher::full; });
  add(
      "TwoRanks", [](auto& o) { o.kl_clip = 1e-4; }, 2);
  add(
      "TwoWorkers",
      [](auto& o) {
        o.kl_clip = 1e-4;
        o.distribution.grad_worker_fraction = 1;
      },
      2);
  add(
      "TwoWorkersOfEkfac",
      [](auto& o) {
        o.inverse.method = kfac::InverseMethod::ekfac;
        o.refresh.inverse_interval = kCourseSteps;
        o.distribution.grad_worker_fraction = 1;
      },
      2);
  return all;
}

class RecordedPreconditioning : public ::testing::TestWithParam<RecordedForm> {};

TEST_P(RecordedPreconditioning, GivesTheBitsOfStepsThatAreNotRecorded) {
  const auto& [name, options, ranks] = GetParam();
  const RecordedRun recorded = run_course({.options = options}, ranks);
  const RecordedRun plain = run_course({.options = options, .graphs = false}, ranks);
  EXPECT_EQ(recorded.directions, plain.directions);
  const LaunchCounts& now = recorded.launches.back();
  EXPECT_GE(now.replayed, 4) << now.reason;
  EXPECT_EQ(now.eager + now.replayed, kCourseSteps);
  EXPECT_EQ(plain.launches.back().replayed, 0);
  EXPECT_EQ(now.refused, 0) << now.reason;
  if (ranks > 1 || !is_emulated()) return;
  EXPECT_EQ(recorded.launches[3].replayed, 3);
  // Step 3 has no statistics. Products of the two equal layers, of the other one and of the groups,
  // two each, again for the biases of two of them, and a kernel for the normalisation.
  const std::int64_t products_and_kernels = 2 + 2 + 2 + 2 + 2 + 1;
  EXPECT_LE(recorded.calls[3] + products_and_kernels, plain.calls[3]);
}

INSTANTIATE_TEST_SUITE_P(Forms, RecordedPreconditioning, ::testing::ValuesIn(recorded_forms()),
                         [](const auto& param) { return param.param.name; });

TEST(RecordedPreconditioningOnce, IsRecordedAnewForAnotherDamping) {
  CurvatureOptions options = sparse_options();
  options.inverse.method = kfac::InverseMethod::eigen;
  RecordedCourse course{.options = options};
  const RecordedRun same = run_course(course);
  course.before_step = [](int step, kfac::Preconditioner& p) {
    if (step == 6) p.set_damping(0.5);
  };
  const RecordedRun changed = run_course(course);
  course.graphs = false;
  EXPECT_EQ(changed.directions, run_course(course).directions);
  EXPECT_EQ(same.launches.back().captured, 1);
  EXPECT_EQ(changed.launches.back().captured, 2);
  // Control: what the first recording would give.
  EXPECT_EQ(changed.directions[5], same.directions[5]);
  EXPECT_NE(changed.directions[6], same.directions[6]);
}

TEST(RecordedPreconditioningOnce, IsRecordedAnewWhereGradientsHaveMoved) {
  RecordedCourse course{.options = sparse_options()};
  const RecordedRun same = run_course(course);
  course.set_of = [](int step) { return step < 5 ? 0 : 1; };
  const RecordedRun moved = run_course(course);
  EXPECT_EQ(moved.directions, same.directions);
  EXPECT_EQ(moved.launches.back().captured, 2);
  // And back, where tables of addresses are those of the second set.
  course.set_of = [](int step) { return step == 5 ? 1 : 0; };
  EXPECT_EQ(run_course(course).directions, same.directions);
  course.set_of = [](int step) { return step % 2; };
  const RecordedRun never = run_course(course);
  EXPECT_EQ(never.directions, same.directions);
  EXPECT_EQ(never.launches.back().eager, kCourseSteps);
}

TEST(RecordedPreconditioningOnce, IsRecordedAnewWhereScratchHasMoved) {
  RecordedCourse course{
      .options = sparse_options(),
      .specs = {LinearSpec{.in = 400, .out = 3, .bias = false, .max_rows = kCourseSamples}}};
  course.options.statistics.low_rank = true;
  course.options.statistics.new_weight = 1;
  const RecordedRun same = run_course(course);
  // The whole inverse of the rows takes more scratch than any step before.
  course.before_step = [](int step, kfac::Preconditioner& p) {
    if (step == 6) (void)p.read_factors(static_cast<LayerId>(0));
  };
  const RecordedRun moved = run_course(course);
  EXPECT_EQ(moved.directions, same.directions);
  EXPECT_EQ(moved.launches.back().captured, same.launches.back().captured + 1);
}

TEST(RecordedPreconditioningOnce, RunsCallByCallWhereARecordingFails) {
  if (!is_emulated()) GTEST_SKIP() << "a fault of the emulated device";
  const RecordedRun good = run_course({.options = sparse_options()});
  int first = 0;
  while (good.launches[static_cast<std::size_t>(first)].captured == 0) ++first;
  for (const int faults : {1, 3}) {
    RecordedCourse course{.options = sparse_options()};
    course.before_step = [&](int step, kfac::Preconditioner&) {
      fail_product(step >= first && step < first + faults ? 1 : 0);
    };
    const RecordedRun bad = run_course(course);
    fail_product(0);
    EXPECT_EQ(bad.directions, good.directions);
    const LaunchCounts& launches = bad.launches.back();
    EXPECT_EQ(launches.refused, faults);
    EXPECT_NE(launches.reason.find("cublas"), std::string::npos) << launches.reason;
    // After three it is not tried again.
    EXPECT_EQ(launches.captured, faults < 3 ? 1 : 0);
    EXPECT_EQ(launches.replayed,
              good.launches.back().replayed - (faults < 3 ? faults : kCourseSteps - first));
  }
}

}  // namespace
}  // namespace dkfac::testing
