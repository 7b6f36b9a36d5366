#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"

/// A layer whose inverse can be made to fail.
namespace dkfac::testing {

/// Inputs whose two columns are equal make A = [[1,1],[1,1]]; next to a damping of 1e-60 its second
/// pivot is exactly zero.
inline kfac::CurvatureOptions hopeless() {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.damping = 1e-60;
  options.statistics.new_weight = 1;
  options.inverse.max_failed_refreshes = 2;
  return options;
}

/// A Preconditioner over one 2 -> 1 layer.
struct OneLayer {
  explicit OneLayer(std::shared_ptr<comm::Communicator> comm,
                    const kfac::CurvatureOptions& options = hopeless())
      : preconditioner(std::move(comm), options),
        fc(preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false})) {}

  kfac::StepReport step(bool good) {
    const std::vector<double> x =
        good ? std::vector<double>{2, 1, 1, -1} : std::vector<double>{1, 1, 1, 1};
    const std::vector<double> dy{0.5, 0.5};
    preconditioner.record_input(fc, view_of(x.data(), {2, 2}));
    preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 1}));
    gradient = {3, 4};
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(gradient.data(), {1, 2}), {}}};
    return preconditioner.step(grads);
  }

  kfac::Preconditioner preconditioner;
  LayerId fc;
  std::vector<double> gradient;
};

}  // namespace dkfac::testing
