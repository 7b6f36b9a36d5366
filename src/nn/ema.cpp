#include "dkfac/nn/ema.h"

#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn {

void EmaOptions::validate() const {
  DKFAC_CHECK(decay > 0 && decay < 1, "[ema] decay is ", decay, "; it must be in (0, 1)");
  DKFAC_CHECK(interval > 0, "[ema] interval is ", interval, "; it must be > 0");
}

Ema::Ema(Context& ctx, Model& model, EmaOptions options)
    : ctx_(ctx), model_(model), options_(options) {
  options.validate();
  new_weight_ = 1 - std::pow(options.decay, static_cast<double>(options.interval));
  parameters_ = Tensor::zeros(ctx, model.parameters().shape(), model.dtype());
  buffers_ = Tensor::zeros(ctx, model.buffers().shape(), model.dtype());
}

template <class F>
void Ema::for_both(const F& f) {
  f(model_.parameters(), parameters_);
  if (buffers_.numel() > 0) f(model_.buffers(), buffers_);
}

void Ema::after_step(std::int64_t step) {
  if (step % options_.interval != 0) return;
  DKFAC_CHECK(!swapped_, "[ema] an update while the averages are in the model; swap them back");
  if (updates_ == 0) {
    for_both([&](TensorView value, TensorView average) { ops::copy(ctx_, value, average); });
  } else {
    for_both([&](TensorView value, TensorView average) {
      kernels::mix(ctx_, new_weight_, value, average);
    });
  }
  ++updates_;
}

void Ema::swap() {
  if (updates_ == 0) return;
  for_both([&](TensorView value, TensorView average) { kernels::exchange(ctx_, value, average); });
  swapped_ = !swapped_;
}

}  // namespace dkfac::nn
