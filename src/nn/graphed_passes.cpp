#include "nn/shared/graphed_passes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/nn/loss.h"

#include "nn/backends/workspace.h"

namespace dkfac::nn {

/// Replaces the observer while a pass is captured: what it does with activations and their
/// gradients becomes part of the capture, what it does with gradients of parameters does not.
class GraphedPasses::CaptureObserver final : public LayerObserver {
 public:
  CaptureObserver(GraphedPasses& passes, Entry& entry, const CapturedWork::Cut& cut)
      : passes_(passes), seen_(!entry.key.observer.empty()), entry_(entry), cut_(cut) {
    entry_.endings.assign(1, {});
    passes_.model_.set_observer(this);
  }
  ~CaptureObserver() override { passes_.model_.set_observer(passes_.observer_); }
  CaptureObserver(const CaptureObserver&) = delete;
  CaptureObserver& operator=(const CaptureObserver&) = delete;

  void on_forward(Layer& layer, ConstTensorView input) override {
    if (seen_) passes_.observer_->on_forward(layer, input);
  }
  void on_backward(Layer& layer, ConstTensorView grad_output) override {
    if (!seen_) return;
    begin_backward();
    passes_.observer_->on_backward(layer, grad_output);
  }
  void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView grad_output) override {
    if (!seen_) return;
    begin_backward();
    passes_.observer_->on_normalization(layer, x, mean, inv_std, grad_output);
  }
  [[nodiscard]] bool wants_normalization(const Layer& layer) const override {
    return seen_ && passes_.observer_->wants_normalization(layer);
  }
  [[nodiscard]] bool takes_sample_gradients(const Layer& layer) const override {
    return seen_ && passes_.observer_->takes_sample_gradients(layer);
  }
  void on_sample_gradients(Layer& layer, ConstTensorView gradients) override {
    if (!seen_) return;
    begin_backward();
    passes_.observer_->on_sample_gradients(layer, gradients);
  }
  [[nodiscard]] bool wants_gradients() const override {
    return passes_.observer_ == nullptr || passes_.observer_->wants_gradients();
  }
  void on_gradients(Layer& layer) override {
    entry_.endings.back().gradients.push_back(&layer);
    for (const Parameter& p : layer.parameters()) bytes_ += p.grad.bytes();
    if (passes_.options_.part_bytes > 0 && bytes_ >= passes_.options_.part_bytes) end_part();
  }

  /// Notes the state in which the pass leaves the observer; called at its end.
  void finish() {
    if (seen_) entry_.endings.back().observer = passes_.observer_->pass_state().value();
  }

 private:
  void begin_backward() {
    if (!std::exchange(backward_, true) && passes_.options_.part_bytes > 0) end_part();
  }
  void end_part() {
    finish();
    cut_();
    entry_.endings.emplace_back();
    bytes_ = 0;
  }

  GraphedPasses& passes_;
  bool seen_;  ///< Whether the observer does anything in this pass.
  Entry& entry_;
  const CapturedWork::Cut& cut_;
  bool backward_ = false;
  std::size_t bytes_ = 0;  ///< Bytes of gradients in this part.
};

GraphedPasses::GraphedPasses(Model& model, LayerObserver* observer, Options options)
    : model_(model), observer_(observer), options_(options) {
  DKFAC_CHECK(options.most > 0, "[graphed_passes] most is 0; it must be > 0");
}

void GraphedPasses::run(Context& ctx, const PassInput& input) {
  DKFAC_CHECK(input.labels.empty() != input.targets.empty(), "[graphed_passes] there are ",
              input.labels.empty() ? "neither labels nor targets" : "labels and targets",
              "; give one of the two");
  DKFAC_CHECK(input.top5.empty() || !input.labels.empty() || !input.counted.empty(),
              "[graphed_passes] top5 is set without labels to count; set `counted`");
  const auto eager = [&] {
    pass(ctx, input);
    ++counts_.eager;
  };
  // Collectives over ranks may block the host, which a capture would not repeat.
  const bool waits = model_.batch_norm_ranks() > 1;
  if (!options_.capture || !ctx.graphs() || waits || !ctx.device().is_cuda()) return eager();
  const std::optional<PassState> before =
      observer_ == nullptr ? PassState{} : observer_->pass_state();
  if (!before) return eager();
  constexpr int kAttempts = 3;
  bool is_new = false;
  Entry& entry = entry_of(key_of(input, *before), is_new);
  // The first pass allocates all memory.
  if (is_new || entry.refused >= kAttempts) return eager();
  if (entry.parts.empty() || !entry.parts.front().fits(ctx) || entry.memory != memory(*before)) {
    try {
      capture(ctx, input, *before, entry);
    } catch (const DeviceError& error) {
      // The cause is most likely memory that only this pass allocates. Errors of the device itself
      // recur in the eager pass.
      ++counts_.refused;
      ++entry.refused;
      counts_.reason = error.what();
      resume(*before);
      return eager();
    } catch (...) {
      resume(*before);
      throw;
    }
    ++counts_.captured;
  }
  replay(ctx, *before, entry);
  ++counts_.replayed;
}

void GraphedPasses::forget() { entries_.clear(); }

GraphedPasses::Key GraphedPasses::key_of(const PassInput& input, const PassState& before) const {
  const bool soft = input.labels.empty();
  Key key{.images = input.images.raw(),
          .wanted = (soft ? input.targets : input.labels).raw(),
          .sums = input.sums.raw(),
          .top5 = input.top5.empty() ? nullptr : input.top5.raw(),
          .counted = input.counted.empty() ? nullptr : input.counted.raw(),
          .shape = {},
          .dtype = input.images.dtype(),
          .soft = soft,
          .smoothing = soft ? 0 : input.smoothing,
          .scale = input.scale,
          .gradients = observer_ == nullptr || observer_->wants_gradients(),
          .observer = before.words};
  for (int i = 0; i < input.images.ndim(); ++i) key.shape.push_back(input.images.dim(i));
  return key;
}

GraphedPasses::Entry& GraphedPasses::entry_of(const Key& key, bool& is_new) {
  auto found = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& entry) { return entry.key == key; });
  is_new = found == entries_.end();
  if (is_new) {
    if (entries_.size() >= options_.most)
      entries_.erase(
          std::min_element(entries_.begin(), entries_.end(),
                           [](const Entry& a, const Entry& b) { return a.used < b.used; }));
    entries_.emplace_back().key = key;
    found = entries_.end() - 1;
  }
  found->used = ++clock_;
  return *found;
}

GraphedPasses::Memory GraphedPasses::memory(const PassState& before) const {
  return {model_.allocated_bytes() + grad_.bytes(), memory_losses(), before.moves};
}

void GraphedPasses::pass(Context& ctx, const PassInput& input) {
  const ConstTensorView logits = model_.forward(ctx, input.images, Mode::train);
  const TensorView grad = view_in(ctx, grad_, logits.shape(), logits.dtype());
  if (input.targets.empty()) {
    softmax_cross_entropy(ctx, logits, input.labels, input.smoothing, input.scale, grad,
                          input.sums);
  } else {
    soft_cross_entropy(ctx, logits, input.targets, input.scale, grad, input.sums);
  }
  const ConstTensorView counted = input.counted.empty() ? input.labels : input.counted;
  if (!input.top5.empty()) count_in_top(ctx, logits, counted, 5, input.top5);
  model_.backward(ctx, grad);
}

void GraphedPasses::capture(Context& ctx, const PassInput& input, const PassState& before,
                            Entry& entry) {
  entry.parts.clear();  // No part is left if this fails.
  entry.parts = CapturedWork::capture_parts(ctx, [&](const CapturedWork::Cut& cut) {
    CaptureObserver observer(*this, entry, cut);
    pass(ctx, input);
    observer.finish();
  });
  entry.memory = memory(before);
}

void GraphedPasses::replay(Context& ctx, const PassState& before, const Entry& entry) {
  resume(before);
  for (std::size_t i = 0; i < entry.parts.size(); ++i) {
    entry.parts[i].replay(ctx);
    if (observer_ == nullptr) continue;
    observer_->on_all_gradients(entry.endings[i].gradients);
    resume(entry.endings[i].observer);
  }
}

void GraphedPasses::resume(const PassState& state) {
  if (!state.words.empty()) observer_->resume(state);
}

}  // namespace dkfac::nn
