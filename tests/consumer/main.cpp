// One linear layer of a separate program, preconditioned through the installed package.
#include <array>
#include <cmath>
#include <cstdio>

#include "dkfac/comm/communicator.h"
#include "dkfac/kfac/preconditioner.h"

#include "options.h"

int main() {
  namespace kfac = dkfac::kfac;
  // Identity statistics: inputs and output gradients are scaled unit vectors, so that
  // A = I and G = I, and the preconditioned gradient is dW / (1 + sqrt(lambda))^2.
  const double lambda = 0.25;
  const double root2 = std::sqrt(2.0);
  std::array<double, 4> x{root2, 0, 0, root2};
  std::array<double, 4> dy{root2 / 2, 0, 0, root2 / 2};  // mean loss: divided by the batch of 2
  std::array<double, 4> dw{1, 2, 3, 4};

  kfac::CurvatureOptions options;
  options.step_length = kfac::StepLength::none;
  options.damping = lambda;
  options.dtype = dkfac::DType::f64;
  kfac::Preconditioner preconditioner(dkfac::comm::make_self(), options);
  const auto layer =
      preconditioner.add_layer("fc", dkfac::LinearSpec{.in = 2, .out = 2, .bias = false});
  preconditioner.record_input(layer, dkfac::view_of(x.data(), {2, 2}));
  preconditioner.record_grad_output(layer, dkfac::view_of(dy.data(), {2, 2}));
  const std::array grads{kfac::LayerGrad{layer, dkfac::view_of(dw.data(), {2, 2}), {}}};
  const kfac::StepReport report = preconditioner.step(grads);

  const double expected = 4 / ((1 + std::sqrt(lambda)) * (1 + std::sqrt(lambda)));
  std::printf("dkfac consumer: dW[1][1] = %.12f, expected %.12f\n", dw[3], expected);
  return report.updated && std::abs(dw[3] - expected) < 1e-12 && sum_of_options(0.5) == 2 ? 0 : 1;
}
