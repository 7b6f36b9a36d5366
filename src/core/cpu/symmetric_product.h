#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::cpu {

/// ops::syrk on all threads, each with its own rows of c and an equal part of the triangle's area,
/// as single-threaded products of a rectangle and small triangles. This is faster than threads
/// inside one product and needs no second matrix to sum into.
void symmetric_product(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);

/// symmetric_product() on one thread, for parts of a sum that run concurrently.
void symmetric_product_alone(Context& ctx, double alpha, ConstTensorView x, double beta,
                             TensorView c);

}  // namespace dkfac::cpu
