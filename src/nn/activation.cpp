#include "dkfac/nn/layers.h"

#include "nn/checks.h"
#include "nn/cpu/parallel.h"
#include "nn/dtype.h"

namespace dkfac::nn {

ConstTensorView Relu::forward(Context& ctx, ConstTensorView x, Mode mode) {
  check_ready("relu", *this, ctx, x);
  const TensorView y = ensure(ctx, output_, x.shape(), x.dtype());
  trained_ = mode == Mode::train ? ConstTensorView(y) : ConstTensorView{};
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    cpu::parallel_for(x.numel(), cpu::kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = in[i] < T{0} ? T{0} : in[i];
    });
  });
  return y;
}

ConstTensorView Relu::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  check_grad("relu", *this, !trained_.empty(), grad_output, trained_.shape(), trained_.dtype());
  if (need == InputGrad::skipped) return {};
  const TensorView dx = ensure(ctx, input_grad_, trained_.shape(), trained_.dtype());
  for_dtype(trained_.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* y = trained_.data<T>();
    const T* dy = grad_output.data<T>();
    T* out = dx.data<T>();
    cpu::parallel_for(dx.numel(), cpu::kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = y[i] > T{0} ? dy[i] : T{0};
    });
  });
  return dx;
}

}  // namespace dkfac::nn
