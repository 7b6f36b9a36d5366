#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"

/// PReLU (He et al. 2015): y = x where x > 0, else slope[c] x, with a learned slope per channel.
class PRelu final : public dkfac::nn::Layer {
 public:
  explicit PRelu(std::int64_t channels) {
    parameters_.push_back({"weight", dkfac::nn::Role::weight, dkfac::Shape{channels}, {}, {}});
  }
  std::string describe() const override { return "PReLU"; }
  dkfac::Shape output_shape(const dkfac::Shape& input) const override {
    DKFAC_CHECK(input[input.ndim() - 1] == channels(), "[prelu] '", name(), "' has ", channels(),
                " slopes and the input is ", input, "; make their channels equal");
    return input;
  }
  void initialize(dkfac::Random&) override {
    dispatch([&](auto t) {
      std::fill_n(parameters_[0].value.template data<decltype(t)>(), channels(), decltype(t)(0.25));
    });
  }

  dkfac::ConstTensorView forward(dkfac::Context& ctx, dkfac::ConstTensorView x,
                                 dkfac::nn::Mode mode) override {
    const bool trains = mode == dkfac::nn::Mode::train;
    if (trains && observer_ != nullptr) observer_->on_forward(*this, x);
    input_ = trains ? x : dkfac::ConstTensorView{};
    const dkfac::TensorView y =
        output_memory(ctx, mode, output_, output_shape(x.shape()), x.dtype());
    dispatch([&](auto t) {
      using T = decltype(t);
      const T *in = x.template data<T>(), *slope = parameters_[0].value.template data<T>();
      T* out = y.template data<T>();
      for (std::int64_t i = 0; i < x.numel(); ++i)
        out[i] = in[i] > 0 ? in[i] : slope[i % channels()] * in[i];
    });
    return y;
  }

  dkfac::ConstTensorView backward(dkfac::Context& ctx, dkfac::ConstTensorView dy,
                                  dkfac::nn::InputGrad need) override {
    if (observer_ != nullptr) observer_->on_backward(*this, dy);
    if (wants_gradients()) {
      dispatch([&](auto t) { slope_gradients(t, dy); });
      if (observer_ != nullptr) observer_->on_gradients(*this);
    }
    if (need == dkfac::nn::InputGrad::skipped) return {};
    const dkfac::TensorView dx = lend(ctx, input_grad_, dy.shape(), dy.dtype());
    dispatch([&](auto t) {
      using T = decltype(t);
      const T *in = input_.template data<T>(), *slope = parameters_[0].value.template data<T>();
      for (std::int64_t i = 0; i < dy.numel(); ++i)
        dx.template data<T>()[i] =
            dy.template data<T>()[i] * (in[i] > 0 ? T(1) : slope[i % channels()]);
    });
    return dx;
  }

 private:
  std::int64_t channels() const { return parameters_[0].shape[0]; }
  template <class T>
  void slope_gradients(T, dkfac::ConstTensorView dy) {
    T* sums = parameters_[0].grad.template data<T>();
    std::fill_n(sums, channels(), T(0));
    for (std::int64_t i = 0; i < dy.numel(); ++i)
      sums[i % channels()] += dy.data<T>()[i] * std::min(input_.data<T>()[i], T(0));
  }
  /// Calls f with a number of the type of the parameters; activations have the same on the host
  /// without mixed precision.
  template <class F>
  void dispatch(const F& f) {
    if (parameters_[0].value.dtype() == dkfac::DType::f64) return f(double{});
    f(float{});
  }

  dkfac::ConstTensorView input_;
  dkfac::Tensor output_, input_grad_;
};
