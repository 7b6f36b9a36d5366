#pragma once

#include <cstdint>

#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

namespace dkfac::nn {

struct EmaOptions {
  double decay = 0.99;        ///< rho, per step; in (0, 1).
  std::int64_t interval = 1;  ///< k: steps between two updates, > 0.
  void validate() const;
};

/// Exponential moving average of a model's parameters and buffers (Polyak & Juditsky 1992; every k
/// steps as in Page 2019): the first update copies, later ones do
/// ema <- rho^k ema + (1 - rho^k) w. Borrows the model, whose memory it swaps with its own for an
/// evaluation, and the context, on whose device both are.
class Ema {
 public:
  Ema(Context& ctx, Model& model, EmaOptions options);

  /// Called after step `step`, counted from 1; updates when it is a multiple of the interval. Not
  /// allowed while swapped.
  void after_step(std::int64_t step);

  /// Exchanges the model's values and the averages; a second call restores every bit. Does nothing
  /// before the first update, when there are no averages.
  void swap();
  [[nodiscard]] bool swapped() const { return swapped_; }

  [[nodiscard]] const EmaOptions& options() const { return options_; }
  /// The state for a checkpoint: both tensors and the number of updates. Only while not swapped.
  [[nodiscard]] TensorView parameters() { return parameters_; }
  [[nodiscard]] TensorView buffers() { return buffers_; }
  [[nodiscard]] std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  /// Calls f(values of the model, their averages) for the parameters and for the buffers.
  template <class F>
  void for_both(const F& f);

  Context& ctx_;
  Model& model_;
  EmaOptions options_;
  double new_weight_;  ///< 1 - rho^k
  Tensor parameters_, buffers_;
  std::int64_t updates_ = 0;
  bool swapped_ = false;
};

/// Swaps the averages into the model for a scope; a null `ema` does nothing, nor does one without
/// averages when the scope begins.
class WithEma {
 public:
  explicit WithEma(Ema* ema) : ema_(ema != nullptr && ema->updates() > 0 ? ema : nullptr) {
    if (ema_ != nullptr) ema_->swap();
  }
  ~WithEma() {
    if (ema_ != nullptr) ema_->swap();
  }
  WithEma(const WithEma&) = delete;
  WithEma& operator=(const WithEma&) = delete;

 private:
  Ema* ema_;
};

}  // namespace dkfac::nn
