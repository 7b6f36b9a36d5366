#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/saved_state.h"

/// Layers whose factors are wide enough for different ranks, trained through a Preconditioner.
namespace dkfac::testing {

inline const LinearSpec kSplitLayers[] = {{.in = 95, .out = 70}, {.in = 60, .out = 96}};

inline kfac::CurvatureOptions split_options(bool split) {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = 0;
  options.statistics.new_weight = 0.3;
  options.distribution.split_factors = split;
  return options;
}

/// One rank's part of a training.
struct SplitRun {
  std::vector<double> weights = {};  ///< Of all layers.
  std::vector<kfac::StepReport> reports = {};
  std::string description = {};
  SavedState state = {};
};

/// Where a training begins and ends, and what else happens in it.
struct SplitCourse {
  int from = 0, to = 6;
  const std::vector<SavedState>* before = nullptr;
  std::vector<double> weights = {};  ///< With `before`: those after step `from`.
  std::vector<LinearSpec> layers{std::begin(kSplitLayers), std::end(kSplitLayers)};
  /// Changes a rank's records of a step.
  std::function<void(int step, int layer, std::vector<double>& x)> inputs = {};
  Device device = Device::cpu();
};

/// Each rank has two samples of each step of its own; weights follow the preconditioned gradients.
inline SplitRun run_split(const std::shared_ptr<comm::Communicator>& comm,
                          const kfac::CurvatureOptions& options, const SplitCourse& course = {}) {
  constexpr std::int64_t kSamples = 2;
  Context ctx(course.device);
  kfac::Preconditioner preconditioner(comm, options, course.device);
  std::vector<LayerId> ids;
  std::size_t numel = 0;
  for (const LinearSpec& spec : course.layers) {
    ids.push_back(preconditioner.add_layer("fc" + std::to_string(ids.size()), spec));
    numel += static_cast<std::size_t>(spec.out * (spec.in + 1));
  }
  preconditioner.prepare();
  SplitRun run;
  run.weights.assign(numel, 0.5);
  run.description = preconditioner.describe();
  if (course.before != nullptr) {
    Loader loader(*course.before, comm->rank());
    preconditioner.visit_state(loader);
    run.weights = course.weights;
  }
  for (int step = course.from; step < course.to; ++step) {
    Random random(static_cast<std::uint64_t>(1000 * step + comm->rank()));
    std::vector<double> gradient(numel);
    for (std::size_t i = 0; i < numel; ++i)
      gradient[i] = run.weights[i] + std::sin(static_cast<double>(i) + step);
    const TensorView all = view_of(gradient.data(), {std::ssize(gradient)});
    Tensor there = Tensor::copy_of(ctx, all);
    std::vector<Tensor> records;
    const auto upload = [&](std::vector<double>& values, std::int64_t width) {
      records.push_back(Tensor::copy_of(ctx, view_of(values.data(), {kSamples, width})));
      ctx.stream().synchronize();
      return records.back().view();
    };
    std::vector<kfac::LayerGrad> grads;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const LinearSpec& spec = course.layers[i];
      std::vector<double> x(static_cast<std::size_t>(kSamples * spec.in)),
          dy(static_cast<std::size_t>(kSamples * spec.out));
      for (double& value : x) value = random.normal();
      for (double& value : dy) value = random.normal();
      if (course.inputs) course.inputs(step, static_cast<int>(i), x);
      if (preconditioner.wants_input(ids[i]))
        preconditioner.record_input(ids[i], upload(x, spec.in), ctx.stream());
      if (preconditioner.wants_grad_output(ids[i]))
        preconditioner.record_grad_output(ids[i], upload(dy, spec.out), ctx.stream());
      const std::int64_t weights = spec.out * spec.in;
      grads.push_back({ids[i], there.view().slice(0, at, weights).reshape({spec.out, spec.in}),
                       there.view().slice(0, at + weights, spec.out)});
      at += weights + spec.out;
    }
    run.reports.push_back(preconditioner.step(grads, ctx.stream()));
    ops::copy(ctx, there, all);
    ctx.stream().synchronize();
    for (std::size_t i = 0; i < numel; ++i) run.weights[i] -= 0.1 * gradient[i];
  }
  Saver saver;
  preconditioner.visit_state(saver);
  run.state = std::move(saver.state);
  return run;
}

inline std::vector<SplitRun> run_split_over_threads(int ranks,
                                                    const kfac::CurvatureOptions& options,
                                                    const SplitCourse& course = {}) {
  std::vector<SplitRun> runs(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](auto comm) {
    runs[static_cast<std::size_t>(comm->rank())] = run_split(comm, options, course);
  });
  return runs;
}

/// The sum over ranks of what their inversions came to.
inline std::vector<int> outcomes(const std::vector<SplitRun>& runs) {
  std::vector<int> sums;
  for (std::size_t step = 0; step < runs[0].reports.size(); ++step) {
    for (std::size_t stage = 0; stage < kfac::kInverseStages; ++stage) {
      sums.push_back(0);
      for (const SplitRun& run : runs) sums.back() += run.reports[step].inverses[stage];
    }
    sums.push_back(0);
    for (const SplitRun& run : runs) sums.back() += run.reports[step].failed_factors;
  }
  return sums;
}

/// Whether a factor is inverted by another rank than its layer's owner.
inline bool is_divided(const SplitRun& run) {
  return run.description.find(", A: ") != std::string::npos ||
         run.description.find(", G: ") != std::string::npos;
}

}  // namespace dkfac::testing
