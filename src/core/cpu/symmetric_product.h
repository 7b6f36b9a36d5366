#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::cpu {

/// ops::syrk on all threads, each with rows of c of its own: one part of the triangle's area per
/// thread, whose rectangle and small triangles are products on that thread alone. Faster than
/// threads inside one product, and without a second matrix to sum into.
void symmetric_product(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);

/// The same on one thread, for parts of a sum that run at the same time.
void symmetric_product_alone(Context& ctx, double alpha, ConstTensorView x, double beta,
                             TensorView c);

}  // namespace dkfac::cpu
