#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "dkfac/nn/layer.h"

#include "app/logging/device_activities.h"
#include "core/shared/profiler_range.h"

namespace dkfac::app {

/// Measures seconds since construction or the last lap().
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

/// Marks the consecutive activities of one rank as ranges for profilers.
class Profiled {
 public:
  Profiled() = default;
  ~Profiled() { leave(); }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;
  void enter(const char* activity) {
    leave();
    begin_range(activity);
    inside_ = true;
  }

 private:
  void leave() {
    if (inside_) end_range();
    inside_ = false;
  }
  bool inside_ = false;
};

/// Observer that forwards to another one and measures its time, which separates the time of the
/// optimizer from that of the network passes around it. On a device, where calls only enqueue work,
/// it places marks in the stream of the network around the recorded work.
class TimedObserver final : public nn::LayerObserver {
 public:
  explicit TimedObserver(nn::LayerObserver& inner, DeviceActivities* activities = nullptr,
                         Stream stream = Stream::cpu())
      : inner_(inner), activities_(activities), stream_(stream) {}

  void on_forward(nn::Layer& layer, ConstTensorView input) override {
    timed("forward", [&] { inner_.on_forward(layer, input); });
  }
  void on_backward(nn::Layer& layer, ConstTensorView grad_output) override {
    timed("backward", [&] { inner_.on_backward(layer, grad_output); });
  }
  void on_normalization(nn::Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView grad_output) override {
    timed("backward", [&] { inner_.on_normalization(layer, x, mean, inv_std, grad_output); });
  }
  [[nodiscard]] bool wants_normalization(const nn::Layer& layer) const override {
    return inner_.wants_normalization(layer);
  }
  [[nodiscard]] bool takes_sample_gradients(const nn::Layer& layer) const override {
    return inner_.takes_sample_gradients(layer);
  }
  void on_sample_gradients(nn::Layer& layer, ConstTensorView gradients) override {
    timed("backward", [&] { inner_.on_sample_gradients(layer, gradients); });
  }
  [[nodiscard]] bool wants_gradients() const override { return inner_.wants_gradients(); }
  void on_gradients(nn::Layer& layer) override {
    const Stopwatch watch;
    inner_.on_gradients(layer);
    seconds_ += watch.seconds();
  }
  void on_all_gradients(std::span<nn::Layer* const> layers) override {
    const Stopwatch watch;
    inner_.on_all_gradients(layers);
    seconds_ += watch.seconds();
  }
  [[nodiscard]] std::optional<PassState> pass_state() override { return inner_.pass_state(); }
  void resume(const PassState& state) override {
    const Stopwatch watch;
    inner_.resume(state);
    seconds_ += watch.seconds();
  }

  /// Sets whether the following passes record statistics between marks.
  void set_records(bool records) { records_ = records; }
  /// Returns the seconds since the last call.
  [[nodiscard]] double take() { return std::exchange(seconds_, 0.0); }

 private:
  template <class Call>
  void timed(const char* around, Call call) {
    const bool marks = records_ && activities_ != nullptr;
    const Stopwatch watch;
    if (marks) activities_->mark(stream_, around);
    call();
    if (marks) activities_->mark(stream_, "statistics");
    seconds_ += watch.seconds();
  }

  nn::LayerObserver& inner_;
  DeviceActivities* activities_;
  Stream stream_;
  bool records_ = false;
  double seconds_ = 0;
};

}  // namespace dkfac::app
