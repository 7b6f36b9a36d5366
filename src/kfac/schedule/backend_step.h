#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"
#include "kfac/schedule/staleness.h"

/// Kernels on scalars of a step that stay on the device. Views are contiguous and not empty.
namespace dkfac::kfac {

/// out[0] (f64) = drift() of x from y (staleness.h), of equal shape and dtype.
DKFAC_KERNEL(void, measure_drift, SymmetricForm form, ConstTensorView x, ConstTensorView y,
             TensorView out);
/// out[i] (f64) = sum over the diagonals of the i-th of equal parts of consecutive packed triangles
/// of width dim; in f64.
DKFAC_KERNEL(void, packed_diagonals, ConstTensorView packed, std::int64_t dim, TensorView out);
/// As packed_diagonals(), sums over the squared elements of the full symmetric matrices.
DKFAC_KERNEL(void, packed_squares, ConstTensorView packed, std::int64_t dim, TensorView out);
/// out[0] (f64) = sum of x^2; in f64.
DKFAC_KERNEL(void, sum_of_squares, ConstTensorView x, TensorView out);

}  // namespace dkfac::kfac
