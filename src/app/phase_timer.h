#pragma once

#include <chrono>
#include <utility>

#include "dkfac/nn/layer.h"

namespace dkfac::app {

/// Seconds since construction or the last lap().
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  double lap() {
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return passed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Passes everything on to another observer and measures how long that takes, so that the time of
/// the optimizer can be told from the time of the network it works inside of.
class TimedObserver final : public nn::LayerObserver {
 public:
  explicit TimedObserver(nn::LayerObserver& inner) : inner_(inner) {}

  void on_forward(nn::Layer& layer, ConstTensorView input) override {
    const Stopwatch watch;
    inner_.on_forward(layer, input);
    seconds_ += watch.seconds();
  }
  void on_backward(nn::Layer& layer, ConstTensorView grad_output) override {
    const Stopwatch watch;
    inner_.on_backward(layer, grad_output);
    seconds_ += watch.seconds();
  }
  void on_batch_norm(nn::Layer& layer, ConstTensorView x, ConstTensorView mean,
                     ConstTensorView inv_std, ConstTensorView grad_output) override {
    const Stopwatch watch;
    inner_.on_batch_norm(layer, x, mean, inv_std, grad_output);
    seconds_ += watch.seconds();
  }
  [[nodiscard]] bool wants_batch_norm(const nn::Layer& layer) const override {
    return inner_.wants_batch_norm(layer);
  }
  [[nodiscard]] bool wants_gradients() const override { return inner_.wants_gradients(); }
  void on_gradients(nn::Layer& layer) override {
    const Stopwatch watch;
    inner_.on_gradients(layer);
    seconds_ += watch.seconds();
  }

  /// Seconds since the last call.
  [[nodiscard]] double take() { return std::exchange(seconds_, 0.0); }

 private:
  nn::LayerObserver& inner_;
  double seconds_ = 0;
};

}  // namespace dkfac::app
