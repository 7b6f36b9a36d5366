#include "dkfac/core/error.h"

#include "nn/backends/backend_pool.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent_pool() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void max_pool(Context&, const PoolShape&, ConstTensorView, TensorView, TensorView) {
  absent_pool();
}
void max_pool_backward(Context&, const PoolShape&, ConstTensorView, ConstTensorView, TensorView) {
  absent_pool();
}
void average_pool(Context&, const PoolShape&, ConstTensorView, TensorView) { absent_pool(); }
void average_pool_backward(Context&, const PoolShape&, ConstTensorView, TensorView) {
  absent_pool();
}
void global_average(Context&, const GlobalShape&, ConstTensorView, TensorView) { absent_pool(); }
void global_average_backward(Context&, const GlobalShape&, ConstTensorView, TensorView) {
  absent_pool();
}
void global_max(Context&, const GlobalShape&, ConstTensorView, TensorView, TensorView) {
  absent_pool();
}
void global_max_backward(Context&, const GlobalShape&, ConstTensorView, ConstTensorView,
                         TensorView) {
  absent_pool();
}

}  // namespace dkfac::nn::cuda
