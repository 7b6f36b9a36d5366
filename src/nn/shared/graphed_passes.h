#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/report.h"
#include "dkfac/nn/model.h"

#include "core/shared/captured.h"

namespace dkfac::nn {

/// Input of one pass over a batch; all tensors are on the model's device.
struct PassInput {
  ConstTensorView images;        ///< As for Model::forward().
  ConstTensorView labels = {};   ///< i32 [n]
  ConstTensorView targets = {};  ///< [n,classes], f64 or f32: replaces the labels.
  double smoothing = 0;          ///< Label smoothing.
  double scale = 1;              ///< Factor of the loss gradient: loss scale / samples of the
                                 ///< batch.
  TensorView sums;               ///< f64 [2], += loss and correct samples (loss.h).
  TensorView top5 = {};          ///< f64 [1], += samples in the top five; empty: not counted.
  ConstTensorView counted = {};  ///< i32 [n]: labels for top5; empty: `labels`.
};

/// Runs forward pass, loss and backward pass of a training step. On a device they are captured,
/// then replayed by one launch (core/captured.h), or one for each part, with bitwise identical
/// results. The work of the observer on activations and their gradients is part of the capture;
/// a replay puts the observer in the state that it left. After a part, on_all_gradients() of the
/// observer is called for its layers, in the order of the backward pass. Not captured are passes on
/// the host, of a model whose BatchNorm2ds wait for other ranks (Model::set_batch_norm_ranks()),
/// and with an observer that has no pass_state().
///
/// A capture is valid for the addresses and numbers of its pass and the state of the observer
/// before it: the first pass with them runs eagerly, the second is captured. It is discarded
/// when memory of the model, the context or the observer has moved since, and when others are used
/// more. A pass that cannot be captured runs eagerly.
///
/// One thread makes all calls, and while it captures it may not use the device in other ways
/// (core/captured.h). Other threads may use it, with models and contexts of their own.
///
/// The model must have no other passes that depend on its last one: after a replay, backward()
/// alone is not possible. Buffers, parameters and gradients are as after an eager pass.
class GraphedPasses {
 public:
  struct Options {
    bool capture = true;    ///< False: no pass is captured.
    std::size_t most = 16;  ///< Number of captures kept, > 0.
    /// Bytes of gradients that end a part, so that the observer can send them to other ranks while
    /// the backward pass continues. So does the forward pass, where the observer has seen it. 0:
    /// one part for the whole pass, the fewest launches.
    std::size_t part_bytes = 0;
  };

  /// Borrows the model and its observer (null: none), which must be the one that is set.
  GraphedPasses(Model& model, LayerObserver* observer, Options options);
  GraphedPasses(Model& model, LayerObserver* observer)
      : GraphedPasses(model, observer, Options{}) {}

  /// Runs one pass. Throws InvalidArgument unless exactly one of labels and targets is given, and
  /// the errors of the pass.
  void run(Context& ctx, const PassInput& input);

  [[nodiscard]] const LaunchCounts& counts() const { return counts_; }  ///< Of passes.
  void forget();  ///< Discards all captures and their memory.

 private:
  /// The arguments that a capture depends on.
  struct Key {
    const void *images, *wanted, *sums, *top5, *counted;
    std::vector<std::int64_t> shape;
    DType dtype;
    bool soft;
    double smoothing, scale;
    bool gradients;
    std::vector<std::int64_t> observer;  ///< PassState::words before the pass.
    bool operator==(const Key&) const = default;
  };
  /// State of the memory: while it is equal, the memory of the model, of grad_ and of the observer
  /// has not moved.
  struct Memory {
    std::size_t bytes = 0;
    std::int64_t losses = 0;
    std::int64_t observer = 0;
    bool operator==(const Memory&) const = default;
  };
  /// What the host does after a part.
  struct Ending {
    std::vector<Layer*> gradients;  ///< Layers whose gradients it computes.
    PassState observer;
  };
  struct Entry {
    Key key;
    std::vector<CapturedWork> parts;
    std::vector<Ending> endings;  ///< Of the parts.
    Memory memory{};              ///< State when it was captured.
    int refused = 0;
    std::int64_t used = 0;
  };
  class CaptureObserver;

  [[nodiscard]] Key key_of(const PassInput& input, const PassState& before) const;
  /// Returns the entry of this key; a new one replaces the least recently used.
  Entry& entry_of(const Key& key, bool& is_new);
  [[nodiscard]] Memory memory(const PassState& before) const;
  void pass(Context& ctx, const PassInput& input);
  void capture(Context& ctx, const PassInput& input, const PassState& before, Entry& entry);
  void replay(Context& ctx, const PassState& before, const Entry& entry);
  void resume(const PassState& state);

  Model& model_;
  LayerObserver* observer_;
  Options options_;
  Tensor grad_;  ///< Gradient of the logits.
  std::vector<Entry> entries_;
  std::int64_t clock_ = 0;
  LaunchCounts counts_;
};

}  // namespace dkfac::nn
