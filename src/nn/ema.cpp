#include "dkfac/nn/ema.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

namespace dkfac::nn {
namespace {

/// Calls f(pointer of a, pointer of b, elements) with the views' type.
template <class F>
void with_pointers(TensorView a, TensorView b, F&& f) {
  if (a.numel() == 0) return;
  if (a.dtype() == DType::f64) {
    f(a.data<double>(), b.data<double>(), a.numel());
  } else {
    f(a.data<float>(), b.data<float>(), a.numel());
  }
}

void copy(TensorView from, TensorView to) {
  with_pointers(from, to, [](auto* x, auto* y, std::int64_t n) { std::copy_n(x, n, y); });
}

// In this form a constant stays what it is, bit for bit.
void mix(TensorView value, TensorView average, double new_weight) {
  with_pointers(value, average, [&](auto* w, auto* e, std::int64_t n) {
    const auto a = static_cast<std::remove_reference_t<decltype(*e)>>(new_weight);
    for (std::int64_t i = 0; i < n; ++i) e[i] += a * (w[i] - e[i]);
  });
}

void exchange(TensorView a, TensorView b) {
  with_pointers(a, b, [](auto* x, auto* y, std::int64_t n) { std::swap_ranges(x, x + n, y); });
}

}  // namespace

void EmaOptions::validate() const {
  DKFAC_CHECK(decay > 0 && decay < 1, "[ema] decay is ", decay, "; it must be in (0, 1)");
  DKFAC_CHECK(interval > 0, "[ema] interval is ", interval, "; it must be > 0");
}

Ema::Ema(Context& ctx, Model& model, EmaOptions options) : model_(model), options_(options) {
  options.validate();
  new_weight_ = 1 - std::pow(options.decay, static_cast<double>(options.interval));
  parameters_ = Tensor::zeros(ctx, model.parameters().shape(), model.dtype());
  buffers_ = Tensor::zeros(ctx, model.buffers().shape(), model.dtype());
}

void Ema::after_step(std::int64_t step) {
  if (step % options_.interval != 0) return;
  DKFAC_CHECK(!swapped_, "[ema] an update while the averages are in the model; swap them back");
  if (updates_ == 0) {
    copy(model_.parameters(), parameters_);
    copy(model_.buffers(), buffers_);
  } else {
    mix(model_.parameters(), parameters_, new_weight_);
    mix(model_.buffers(), buffers_, new_weight_);
  }
  ++updates_;
}

void Ema::swap() {
  if (updates_ == 0) return;
  exchange(model_.parameters(), parameters_);
  exchange(model_.buffers(), buffers_);
  swapped_ = !swapped_;
}

}  // namespace dkfac::nn
