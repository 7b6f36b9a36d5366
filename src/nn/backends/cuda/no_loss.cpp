#include "dkfac/core/error.h"

#include "nn/backends/backend_loss.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent_loss() {
  throw DeviceError("[loss] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void label_loss(Context&, ConstTensorView, ConstTensorView, double, double, TensorView,
                TensorView) {
  absent_loss();
}
void target_loss(Context&, ConstTensorView, ConstTensorView, double, TensorView, TensorView) {
  absent_loss();
}
void count_in_top(Context&, ConstTensorView, ConstTensorView, std::int64_t, TensorView) {
  absent_loss();
}
void soften_labels(Context&, ConstTensorView, double, TensorView) { absent_loss(); }
void draw_labels(Context&, ConstTensorView, const SampleKey&, TensorView) { absent_loss(); }

}  // namespace dkfac::nn::cuda
