// K-FAC on a regression: a network of the library's own layers fits a curve, with the Fisher of a
// Gaussian of unit variance, from targets drawn around its outputs. Ranks are two threads, or the
// processes started by mpirun, srun or torchrun. Fails unless the squared error falls to a
// hundredth.

#include <atomic>
#include <cmath>
#include <cstdio>

#include "dkfac/comm/in_process.h"
#include "dkfac/comm/launch.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/loss.h"

using namespace dkfac;
constexpr std::int64_t kShare = 64, kSteps = 60;  // Samples of a rank, of which it has its own.

/// t = sin(2 x0) + x1^2, x uniform in [-1, 1].
void sample(Random& random, TensorView x, TensorView t) {
  fill_uniform(x, -1, 1, random);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const float* point = x.data<float>() + 2 * i;
    t.data<float>()[i] = std::sin(2 * point[0]) + point[1] * point[1];
  }
}

bool fit(const std::shared_ptr<comm::Communicator>& comm) {
  Context ctx;
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Linear>("fc1", 2, 32).add<nn::Relu>("relu").add<nn::Linear>("fc2", 32, 1);
  nn::Model model(ctx, "curve", std::move(net), {2}, DType::f32, 1);
  const auto kfac = optim::make_kfac(
      comm, {.curvature = {.damping = 1e-2,
                           .refresh = {.statistics_interval = 1, .inverse_interval = 1},
                           .step_length = kfac::StepLength::none}});
  nn::OptimizerAttachment attachment(model, *kfac);
  kfac->prepare();

  Random random(2, static_cast<std::uint64_t>(comm->rank()));
  Tensor x = Tensor::empty(ctx, {kShare, 2}), t = Tensor::empty(ctx, {kShare, 1});
  Tensor drawn = Tensor::empty(ctx, {kShare, 1}), dy = Tensor::empty(ctx, {kShare, 1});
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    sample(random, x, t);
    // The statistics come from drawn targets, the gradients from the given ones.
    attachment.set_pass({.gradients = nn::GradientUse::none});
    const ConstTensorView y = model.forward(ctx, x, nn::Mode::train);
    double loss = 0, of_drawn = 0;
    nn::sample_targets(ctx, y, {.step = step, .first = comm->rank() * kShare}, drawn);
    nn::squared_error(ctx, y, drawn, 1.0 / kShare, dy, view_of(&of_drawn, {1}));
    model.backward(ctx, dy);
    attachment.set_pass({.statistics = false});
    nn::squared_error(ctx, y, t, 1.0 / kShare, dy, view_of(&loss, {1}));
    model.backward(ctx, dy);
    (void)kfac->step({.lr = 0.1});
    last = loss / kShare;
    if (step == 0) first = last;
  }
  if (comm->rank() == 0) std::printf("squared error %.4f, at the end %.4f\n", first, last);
  return last < first / 100;
}

int main() {
  if (comm::detect_launch().size > 1) return fit(comm::World().comm()) ? 0 : 1;
  std::atomic<bool> good = true;
  comm::run_ranks(2, [&](const std::shared_ptr<comm::Communicator>& comm) {
    if (!fit(comm)) good = false;
  });
  return good ? 0 : 1;
}
