#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/nn/model.h"

#include "core/shared/captured.h"

namespace dkfac::nn {

/// What one pass over a batch is made of; all of it where the model is.
struct PassInput {
  ConstTensorView images;        ///< As Model::forward() takes them.
  ConstTensorView labels = {};   ///< i32 [n]
  ConstTensorView targets = {};  ///< [n,classes], f64 or f32: in place of the labels.
  double smoothing = 0;          ///< Of the labels.
  double scale = 1;              ///< Of the loss gradient: loss scale / samples of the batch.
  TensorView sums;               ///< f64 [2], += loss and correct samples (loss.h).
};

/// Whether the observer of the model looks at what flows through the layers in this pass, beside
/// the gradients of parameters.
enum class Observed : std::uint8_t { no, yes };

/// Forward pass, loss and backward pass of a training step. On a device they are recorded and
/// replayed by one launch (core/captured.h), or one for each part, with the same bits; after a part
/// the observer is told on_gradients() for the layers in it, in the order in which the backward
/// pass had them. An observed pass is never recorded, nor is anything on the host.
///
/// A recording belongs to the addresses and numbers that the pass was given: the first pass with
/// them runs as it is, the second is recorded. It is thrown away when memory of the model or the
/// context has moved since, and when others are used more. What cannot be recorded runs as it is.
///
/// One thread makes all calls, and while it records it may not use the device in other ways
/// (core/captured.h). Other threads may, with models and contexts of their own.
///
/// The model must have no other passes that depend on its last one: after a replay backward() alone
/// is not possible. Buffers, parameters and gradients are as after a pass.
class GraphedPasses {
 public:
  struct Options {
    bool record = true;     ///< False: every pass runs as it is.
    std::size_t most = 16;  ///< Recordings that are kept, > 0.
    /// So many bytes of gradients end a part, so that the observer can send them to other ranks
    /// while the backward pass goes on. 0: one part for the whole pass, the fewest launches.
    std::size_t part_bytes = 0;
  };
  /// How passes were made so far.
  struct Counts {
    std::int64_t as_it_is = 0, recorded = 0, replayed = 0;
    std::int64_t refused = 0;  ///< Could not be recorded.
    std::string reason;        ///< Of the last of them.
  };

  /// Borrows the model and its observer (null: none), which must be the one that is set.
  GraphedPasses(Model& model, LayerObserver* observer, Options options);
  GraphedPasses(Model& model, LayerObserver* observer)
      : GraphedPasses(model, observer, Options{}) {}

  /// Throws InvalidArgument for labels and targets both or neither, and what the passes throw.
  void run(Context& ctx, const PassInput& input, Observed observed);

  [[nodiscard]] const Counts& counts() const { return counts_; }
  void forget();  ///< Throws all recordings away, and with them the memory that they hold.

 private:
  /// All that is part of a recording.
  struct Key {
    const void *images, *wanted, *sums;
    std::vector<std::int64_t> shape;
    DType dtype;
    bool soft;
    double smoothing, scale;
    bool gradients;
    bool operator==(const Key&) const = default;
  };
  /// As long as it is the same, the model's memory is, and grad_.
  struct Memory {
    std::size_t bytes = 0;
    std::int64_t losses = 0;
    bool operator==(const Memory&) const = default;
  };
  struct Entry {
    Key key;
    std::vector<CapturedWork> parts;
    std::vector<std::vector<Layer*>> order;  ///< Of the gradients, by part.
    Memory memory{};                         ///< When it was recorded.
    int refused = 0;
    std::int64_t used = 0;
  };
  class Recorder;

  [[nodiscard]] Key key_of(const PassInput& input) const;
  /// The entry of this key; a new one takes the place of the one that was not used for longest.
  Entry& entry_of(const Key& key, bool& is_new);
  [[nodiscard]] Memory memory() const;
  void pass(Context& ctx, const PassInput& input);
  void record(Context& ctx, const PassInput& input, Entry& entry);

  Model& model_;
  LayerObserver* observer_;
  Options options_;
  Tensor grad_;  ///< Of the logits.
  std::vector<Entry> entries_;
  std::int64_t clock_ = 0;
  Counts counts_;
};

}  // namespace dkfac::nn
