#pragma once

#include <array>

/// Coefficients of a step along a few directions, from a quadratic model of the loss (Martens and
/// Grosse 2015, sections 6.4 and 7; docs/math.md, "Quadratic model"). All in f64.
namespace dkfac::optim {

/// Directions of a step: the preconditioned gradient, minus the gradient of the parameters without
/// curvature if there are any, and the last step, which a failed solution drops first.
inline constexpr int kMaxDirections = 3;
using Vector3 = std::array<double, kMaxDirections>;
using Matrix3 = std::array<Vector3, kMaxDirections>;  ///< Symmetric.

/// Products of `count` directions d_i, from 1 to kMaxDirections, in the order above. Unused rows
/// and columns are not read.
struct DirectionProducts {
  int count = 1;
  Vector3 slope{};      ///< <g, d_i>, g the gradient of the loss with its L2 term.
  Matrix3 curvature{};  ///< Mean over the samples of (J d_i)' H (J d_j).
  Matrix3 inner{};      ///< <d_i, d_j>
  Matrix3 decay{};      ///< The same, each parameter weighted by the coefficient of its L2 term.
};

struct ModelStep {
  Vector3 x{};        ///< The step is sum x_i d_i.
  int used = 0;       ///< Leading directions that it uses; 0: none, the step is 0.
  double change = 0;  ///< M, the change of the loss that the model expects, <= 0.
};

/// Least eigenvalue of Q, scaled to a diagonal of 1, for which directions are independent enough.
inline constexpr double kIndependent = 1e-10;

/// Minimises b'x + x'Qx/2, the change of the loss by the step, with b = slope and Q = curvature +
/// decay + damping * inner. If Q is not positive definite by kIndependent, or the rate of the first
/// direction is not positive, the last direction is dropped and the rates of the others are
/// computed anew, down to x_0 = -b_0/q_00. That drops a last step of length 0, too.
[[nodiscard]] ModelStep solve(const DirectionProducts& products, double damping);

}  // namespace dkfac::optim
