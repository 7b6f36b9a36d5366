#include "dkfac/core/error.h"

#include "nn/backends/backend_pool.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void max_pool(Context&, const PoolShape&, ConstTensorView, TensorView, TensorView) { absent(); }
void max_pool_backward(Context&, const PoolShape&, ConstTensorView, ConstTensorView, TensorView) {
  absent();
}
void average_pool(Context&, const PoolShape&, ConstTensorView, TensorView) { absent(); }
void average_pool_backward(Context&, const PoolShape&, ConstTensorView, TensorView) { absent(); }
void global_average(Context&, const GlobalShape&, ConstTensorView, TensorView) { absent(); }
void global_average_backward(Context&, const GlobalShape&, ConstTensorView, TensorView) {
  absent();
}
void global_max(Context&, const GlobalShape&, ConstTensorView, TensorView, TensorView) { absent(); }
void global_max_backward(Context&, const GlobalShape&, ConstTensorView, ConstTensorView,
                         TensorView) {
  absent();
}

}  // namespace dkfac::nn::cuda
