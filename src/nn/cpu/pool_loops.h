#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"

/// Loops of pooling over contiguous host memory: x[n,h,w,c], y[n,out_h,out_w,c], f64, f32, bf16 or
/// f16. Overlapping windows add their gradients in the dtype of dx.
namespace dkfac::nn::cpu {

struct PoolShape {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  std::int64_t out_h = 0, out_w = 0;
  std::int64_t kernel = 1, stride = 1, pad = 0;
};

/// place[n,out_h,out_w,c] (i32) becomes kh*kernel + kw of the maximum.
void max_pool(const PoolShape& shape, ConstTensorView x, TensorView y, TensorView place);
void max_pool_backward(const PoolShape& shape, ConstTensorView dy, ConstTensorView place,
                       TensorView dx);
void average_pool(const PoolShape& shape, ConstTensorView x, TensorView y);
void average_pool_backward(const PoolShape& shape, ConstTensorView dy, TensorView dx);

/// x[n,positions,c] -> y[n,c].
struct GlobalShape {
  std::int64_t n = 0, positions = 0, c = 0;
};

/// y = mean over the positions, summed in f64.
void global_average(const GlobalShape& shape, ConstTensorView x, TensorView y);
void global_average_backward(const GlobalShape& shape, ConstTensorView dy, TensorView dx);
/// place[n,c] (i32) becomes the position of the maximum.
void global_max(const GlobalShape& shape, ConstTensorView x, TensorView y, TensorView place);
void global_max_backward(const GlobalShape& shape, ConstTensorView dy, ConstTensorView place,
                         TensorView dx);

}  // namespace dkfac::nn::cpu
