// The layer of main.cpp by a program with Eigen, whose matrices are column-major: samples and
// weights are seen by strides.
#include "dkfac/eigen.h"

#include <array>
#include <cmath>

#include "dkfac/comm/communicator.h"
#include "dkfac/kfac/preconditioner.h"

int main() {
  namespace kfac = dkfac::kfac;
  const double root2 = std::sqrt(2.0);
  Eigen::MatrixXd x = root2 * Eigen::MatrixXd::Identity(2, 2);  // [features, samples]
  Eigen::Matrix<double, 2, 2, Eigen::RowMajor> dy = x / 2;      // [samples, features]
  Eigen::MatrixXd dw(2, 2);                                     // [out, in], column-major
  dw << 1, 2, 3, 4;
  kfac::CurvatureOptions options;
  options.damping = 0.25;
  options.dtype = dkfac::DType::f64;
  options.step_length = kfac::StepLength::none;
  kfac::Preconditioner preconditioner(dkfac::comm::make_self(), options);
  const auto layer =
      preconditioner.add_layer("fc", dkfac::LinearSpec{.in = 2, .out = 2, .bias = false});
  preconditioner.record_input(layer, dkfac::view_of(x).transposed());
  preconditioner.record_grad_output(layer, dkfac::view_of(dy));
  const std::array grads{kfac::LayerGrad{layer, dkfac::view_of(dw), {}}};
  (void)preconditioner.step(grads);
  Eigen::MatrixXd expected(2, 2);  // A = G = I: dW / (1 + sqrt(lambda))^2.
  expected << 1, 2, 3, 4;
  const Eigen::VectorXf vector(5);
  const bool shapes = dkfac::view_of(dw.block(0, 1, 2, 1)).shape() == dkfac::Shape{2, 1} &&
                      dkfac::view_of(vector).shape() == dkfac::Shape{5} &&
                      dkfac::view_of(Eigen::Map<Eigen::MatrixXd>(dw.data(), 1, 4)).dim(1) == 4;
  return shapes && (dw - expected / 2.25).norm() < 1e-12 ? 0 : 1;
}
