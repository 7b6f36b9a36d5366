#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"

// Inverses that are used from the step after their rebuild on.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

constexpr int kSteps = 9;
constexpr std::int64_t kSamples = 12, kWidths[] = {7, 6, 5};

struct StepData {
  std::vector<double> x, dy, dw;
};

/// Of a step and a layer.
StepData data_of_step(int step, std::size_t layer) {
  Random random(static_cast<std::uint64_t>(100 * step) + layer);
  const auto numbers = [&](std::int64_t count) {
    std::vector<double> out(static_cast<std::size_t>(count));
    for (double& value : out) value = random.normal();
    return out;
  };
  const std::int64_t in = kWidths[layer], out = kWidths[layer + 1];
  return {numbers(kSamples * in), numbers(kSamples * out), numbers(in * out)};
}

/// Directions of each step for the records of that step and the gradients of the step `ahead` of
/// it; those of the first rank, which holds the share of every rank.
std::vector<std::vector<double>> directions(const CurvatureOptions& options, int ranks, int ahead) {
  std::vector<std::vector<double>> out(kSteps);
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    kfac::Preconditioner preconditioner(comm, options);
    std::vector<LayerId> ids;
    for (const std::size_t i : {0U, 1U})
      ids.push_back(preconditioner.add_layer(
          "fc" + std::to_string(i),
          LinearSpec{.in = kWidths[i], .out = kWidths[i + 1], .bias = false}));
    const std::int64_t n = kSamples / comm->size(), first = comm->rank() * n;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::vector<double>> memory;
      std::vector<kfac::LayerGrad> grads;
      for (const std::size_t i : {0U, 1U}) {
        StepData batch = data_of_step(step, i);
        const auto mine = [&](std::vector<double>& all, std::int64_t width) {
          return view_of(all.data() + first * width, {n, width});
        };
        if (preconditioner.wants_statistics()) {
          preconditioner.record_input(ids[i], mine(batch.x, kWidths[i]));
          preconditioner.record_grad_output(ids[i], mine(batch.dy, kWidths[i + 1]));
        }
        memory.push_back(data_of_step(step + ahead, i).dw);
      }
      for (const std::size_t i : {0U, 1U})
        grads.push_back({ids[i], view_of(memory[i].data(), {kWidths[i + 1], kWidths[i]}), {}});
      EXPECT_TRUE(preconditioner.step(grads).updated);
      if (comm->rank() != 0) continue;
      for (const std::vector<double>& dw : memory)
        out[static_cast<std::size_t>(step)].insert(out[static_cast<std::size_t>(step)].end(),
                                                   dw.begin(), dw.end());
    }
  });
  return out;
}

CurvatureOptions options_of(int statistics_interval, int inverse_interval, double fraction) {
  CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.refresh.statistics_interval = statistics_interval;
  options.refresh.inverse_interval = inverse_interval;
  options.distribution.grad_worker_fraction = fraction;
  return options;
}

/// Step t + 1 has the inverses that step t of a run without delay has for the gradient of step
/// t + 1: exactly, since the same operations are done.
TEST(DelayInverses, UsesThoseOfTheStepBefore) {
  for (const auto& [ranks, fraction] : {std::pair{1, 0.0}, {2, 0.0}, {2, 1.0}}) {
    for (const auto& [statistics, inverses] : {std::pair{1, 1}, {1, 3}, {2, 4}}) {
      CurvatureOptions options = options_of(statistics, inverses, fraction);
      const auto by_hand = directions(options, ranks, 1), at_once = directions(options, ranks, 0);
      options.refresh.delay_inverses = true;
      const auto delayed = directions(options, ranks, 0);
      EXPECT_EQ(delayed[0], at_once[0]) << "the first inverses are used at once";
      for (std::size_t step = 1; step < kSteps; ++step) {
        EXPECT_EQ(delayed[step], by_hand[step - 1]) << step;
        // Control: it matters in steps that rebuild, and in no other.
        const bool rebuilds = step % static_cast<std::size_t>(inverses) == 0;
        EXPECT_EQ(delayed[step] == at_once[step], !rebuilds) << step;
      }
    }
  }
}

TEST(DelayInverses, WorksWithEigenvectorsAndStaggeredInverses) {
  for (const bool stagger : {false, true}) {
    CurvatureOptions options = options_of(1, 3, 0);
    options.inverse.method = kfac::InverseMethod::eigen;
    options.refresh.stagger_inverses = stagger;
    const auto by_hand = directions(options, 2, 1), at_once = directions(options, 2, 0);
    options.refresh.delay_inverses = true;
    const auto delayed = directions(options, 2, 0);
    for (std::size_t step = 1; step < kSteps; ++step) EXPECT_EQ(delayed[step], by_hand[step - 1]);
    EXPECT_NE(delayed[3], at_once[3]);
  }
}

}  // namespace
}  // namespace dkfac::testing
