#pragma once

#include <functional>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/model.h"

namespace dkfac::nn {

/// Product hv = H v with the Hessian of each sample's loss in its outputs, such as
/// softmax_curvature() (loss.h).
using OutputCurvature =
    std::function<void(Context&, ConstTensorView outputs, ConstTensorView v, TensorView hv)>;

/// Products of the Gauss-Newton matrix of a batch along directions of the parameters (docs/math.md,
/// "Quadratic model"): sums[i(i+1)/2 + j] = sum over the samples of x of (J d_i)' H (J d_j), j <=
/// i, by one linearize() and one tangent() for each direction. directions: as Model::tangent();
/// sums: f64 [count (count+1)/2] on the device of ctx. Zeros for no samples. No host
/// synchronization.
void curvature_along(Context& ctx, Model& model, ConstTensorView x, const OutputCurvature& loss,
                     std::span<const ConstTensorView> directions, TensorView sums);

}  // namespace dkfac::nn
