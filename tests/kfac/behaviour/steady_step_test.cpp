#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/heap_count.h"
#include "support/natural_gradient.h"

// Once every statistic, inverse and buffer has been used, steps allocate no more memory for
// tensors.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

constexpr std::int64_t kSamples = 12, kIn = 40, kOut = 30;

/// Memory allocated by the last 12 of 24 steps, which include every kind of step.
std::int64_t tensors_of_steady_steps(const CurvatureOptions& options) {
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto fc = preconditioner.add_layer(
      "fc", LinearSpec{.in = kIn, .out = kOut, .bias = false, .max_rows = kSamples});
  const auto bn = preconditioner.add_layer("bn", NormSpec{.channels = kOut});
  Random random(1);
  std::vector<float> x(kSamples * kIn), dy(kSamples * kOut), w(kOut * kIn), gamma(kOut), beta(kOut),
      mean(kOut, 0.0F), inv_std(kOut, 1.0F);
  for (std::vector<float>* values : {&x, &dy})
    for (float& value : *values) value = static_cast<float>(random.normal());
  const auto view = [](std::vector<float>& v, Shape shape) { return view_of(v.data(), shape); };
  const std::vector<kfac::LayerGrad> grads{{fc, view(w, {kOut, kIn}), {}},
                                           {bn, view(gamma, {kOut}), view(beta, {kOut})}};
  std::int64_t growths = 0;
  for (int step = 0; step < 24; ++step) {
    if (step == 12) heap::start_count();
    preconditioner.record_input(fc, view(x, {kSamples, kIn}));
    preconditioner.record_grad_output(fc, view(dy, {kSamples, kOut}));
    preconditioner.record_normalization(bn, view(dy, {kSamples, kOut}), view(mean, {kOut}),
                                        view(inv_std, {kOut}), view(dy, {kSamples, kOut}));
    const kfac::StepReport report = preconditioner.step(grads);
    if (step == 11) growths = report.scratch_growths;
    if (step == 23) {
      EXPECT_EQ(report.scratch_growths, growths);
    }
  }
  heap::stop_count();
  return heap::tensors;
}

TEST(SteadyKfacStep, TakesNoMemoryForTensorsUnderAnySchedule) {
  CurvatureOptions fixed = natural_gradient();
  fixed.refresh.statistics_interval = 2;
  fixed.refresh.inverse_interval = 3;
  CurvatureOptions spread = fixed, adaptive, low_rank = fixed, ekfac = fixed, full = fixed,
                   blocks = fixed;
  spread.refresh.stagger_inverses = true;
  adaptive.refresh.staleness = kfac::Staleness::adaptive;
  adaptive.refresh.max_interval = 3;
  low_rank.statistics.new_weight = 1;
  ekfac.inverse.method = kfac::InverseMethod::ekfac;
  full.statistics.norm_fisher = kfac::NormFisher::full;
  blocks.inverse.block_width = 3;
  int number = 0;
  for (const CurvatureOptions& options : {fixed, spread, adaptive, low_rank, ekfac, full, blocks})
    EXPECT_EQ(tensors_of_steady_steps(options), 0) << "options " << number++;
}

}  // namespace
}  // namespace dkfac::testing
