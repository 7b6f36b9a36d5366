#pragma once

#include <unordered_map>

#include "dkfac/core/context.h"
#include "dkfac/kfac/optimizer.h"
#include "dkfac/nn/model.h"

namespace dkfac::nn {

/// How biases and BatchNorm shifts are treated beside weights (kfac::LayerParams).
struct AttachOptions {
  double bias_lr = 1;     ///< Multiplies their learning rate.
  double bias_decay = 0;  ///< Their weight decay in multiples of the optimizer's.
};

/// Registers every layer with parameters under `model` with the optimizer, in forward order, and
/// feeds it from their forward and backward passes until destroyed. The only file of nn that knows
/// kfac, and the worked example of an adapter for another framework.
class OptimizerAttachment final : public LayerObserver {
 public:
  OptimizerAttachment(Model& model, kfac::Optimizer& optimizer, AttachOptions options = {});
  ~OptimizerAttachment() override;
  OptimizerAttachment(const OptimizerAttachment&) = delete;
  OptimizerAttachment& operator=(const OptimizerAttachment&) = delete;

  /// Samples over all ranks and loss scale of the batch that follows.
  void set_scale(kfac::RecordScale scale) { scale_ = scale; }

  void on_forward(Layer& layer, ConstTensorView input) override;
  void on_backward(Layer& layer, ConstTensorView grad_output) override;
  void on_batch_norm(Layer& layer, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                     ConstTensorView grad_output) override;
  [[nodiscard]] bool wants_batch_norm() const override { return optimizer_.wants_statistics(); }
  void on_gradients(Layer& layer) override;

 private:
  /// x itself, or for 16-bit activations their values in f32.
  ConstTensorView widened(Scratch& scratch, ConstTensorView x);

  Model& model_;
  kfac::Optimizer& optimizer_;
  Context ctx_;  ///< Of the casts.
  kfac::RecordScale scale_;
  struct Entry {
    kfac::LayerId id;
    bool recorded;  ///< Has statistics.
  };
  std::unordered_map<const Layer*, Entry> entries_;
};

}  // namespace dkfac::nn
