#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

namespace dkfac::nn {

/// How biases and BatchNorm shifts are treated beside weights (optim::LayerParams).
struct AttachOptions {
  double bias_lr = 1;     ///< Multiplies their learning rate.
  double bias_decay = 0;  ///< Their weight decay in multiples of the optimizer's.
  /// Most samples of one step over all ranks, shared as batch_share() does; else ranks times the
  /// largest share of one. Gives the layers their max_rows (LinearSpec). 0: not known.
  std::int64_t max_samples = 0;
  /// Of the contexts that the model runs with; on its device.
  Stream stream = Stream::cpu();
};

/// What becomes of the parameter gradients of a backward pass.
enum class GradientUse : std::uint8_t {
  none,  ///< They are not computed; Model::gradients() stays as it is.
  add,   ///< Kept, as part of a step of several passes (gradient accumulation).
  /// Announced to the optimizer, together with those that were kept since the last time.
  announce
};

/// What the passes over a model that follow are for. A step of one forward and backward pass is
/// both; of m micro-batches, the first m-1 add. For the one-sample Monte-Carlo Fisher, forward and
/// a first backward pass from labels drawn by sample_labels() record {true, none}, and a second
/// backward pass from the true loss gives the gradients {false, announce} or {false, add}.
struct PassUse {
  bool statistics = true;  ///< What the optimizer wants is recorded, in forward and backward.
  GradientUse gradients = GradientUse::announce;
};

/// What an OptimizerAttachment would register of a model that has not been made, for as many
/// samples as AttachOptions::max_samples; takes no memory. Throws as Optimizer::add_layer() does.
[[nodiscard]] std::vector<LayerSpec> layer_specs(const ModelOptions& options,
                                                 std::int64_t max_samples = 0);

/// Registers every layer with parameters under `model` with the optimizer, in forward order, and
/// feeds it from their forward and backward passes until destroyed. The only file of nn that knows
/// kfac, and the worked example of an adapter for another framework.
class OptimizerAttachment final : public LayerObserver {
 public:
  OptimizerAttachment(Model& model, optim::Optimizer& optimizer, AttachOptions options = {});
  ~OptimizerAttachment() override;
  OptimizerAttachment(const OptimizerAttachment&) = delete;
  OptimizerAttachment& operator=(const OptimizerAttachment&) = delete;

  /// Samples over all ranks and loss scale of the batch that follows.
  void set_scale(RecordScale scale) { scale_ = scale; }
  /// Holds until it is set anew.
  void set_pass(PassUse pass) { pass_ = pass; }

  /// Names of the layers and what they were registered as, by LayerId.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<LayerSpec>& specs() const { return specs_; }

  void on_forward(Layer& layer, ConstTensorView input) override;
  void on_backward(Layer& layer, ConstTensorView grad_output) override;
  void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView grad_output) override;
  [[nodiscard]] bool wants_normalization(const Layer& layer) const override;
  [[nodiscard]] bool wants_gradients() const override {
    return pass_.gradients != GradientUse::none;
  }
  void on_gradients(Layer& layer) override;

 private:
  struct Entry {
    LayerId id;
    bool recorded;              ///< Has statistics.
    std::int64_t begin, count;  ///< Where its gradients lie in those of the model.
    bool kept = false;          ///< The sums hold a part of them.
  };
  void keep(Entry& entry);
  void add_kept(Entry& entry);

  Model& model_;
  optim::Optimizer& optimizer_;
  Stream stream_;
  Context ctx_;  ///< Of the sums.
  RecordScale scale_;
  PassUse pass_;
  Tensor sums_;  ///< Gradients of the passes that add; made by the first of them.
  std::unordered_map<const Layer*, Entry> entries_;
  std::vector<std::string> names_;
  std::vector<LayerSpec> specs_;
};

}  // namespace dkfac::nn
