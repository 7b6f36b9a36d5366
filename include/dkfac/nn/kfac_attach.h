#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/nn/curvature.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

namespace dkfac::nn {

/// Options of an OptimizerAttachment; the first two set biases and BatchNorm shifts apart from
/// weights (optim::LayerParams).
struct AttachOptions {
  double bias_lr = 1;     ///< Factor of their learning rate.
  double bias_decay = 0;  ///< Their weight decay in multiples of the optimizer's.
  /// Largest number of samples in one step over all ranks, sharded as batch_share() does; with
  /// other shares, the number of ranks times the largest share. Gives the layers their max_rows
  /// (LinearSpec). 0: not known.
  std::int64_t max_samples = 0;
  /// Stream of the contexts that the model runs with; on the model's device.
  Stream stream = Stream::cpu();
};

/// How the parameter gradients of a backward pass are used.
enum class GradientUse : std::uint8_t {
  none,  ///< They are not computed; Model::gradients() stays as it is.
  add,   ///< Accumulated, as part of a step of several passes.
  /// Announced to the optimizer, together with those accumulated since the last announcement.
  announce
};

/// Purpose of the following passes over a model. A step of one forward and backward pass uses the
/// default; of m micro-batches, the first m-1 use `add`. For the one-sample Monte-Carlo Fisher, the
/// forward pass and a first backward pass from labels drawn by sample_labels() record {true, none}.
/// A second backward pass from the true loss then gives the gradients {false, announce} or {false,
/// add}.
struct PassUse {
  bool statistics = true;  ///< Records the statistics that the optimizer wants, in forward and
                           ///< backward.
  GradientUse gradients = GradientUse::announce;
};

/// Returns what an OptimizerAttachment would register for a model that has not been made, for up to
/// AttachOptions::max_samples samples; allocates none of its tensors. Throws as
/// Optimizer::add_layer() does.
[[nodiscard]] std::vector<LayerSpec> layer_specs(const ModelOptions& options,
                                                 std::int64_t max_samples = 0);
/// Returns the names of these layers.
[[nodiscard]] std::vector<std::string> layer_names(const ModelOptions& options);

/// Registers every layer with parameters of `model` with the optimizer, in forward order, and feeds
/// the optimizer from the model's forward and backward passes until destroyed. This is the only
/// file of nn that depends on kfac, and an example of an adapter for another framework.
class OptimizerAttachment final : public LayerObserver {
 public:
  OptimizerAttachment(Model& model, optim::Optimizer& optimizer, AttachOptions options = {});
  ~OptimizerAttachment() override;
  OptimizerAttachment(const OptimizerAttachment&) = delete;
  OptimizerAttachment& operator=(const OptimizerAttachment&) = delete;

  /// Sets the number of samples over all ranks and the loss scale of the next batch.
  void set_scale(RecordScale scale) { scale_ = scale; }
  /// Sets the purpose of the passes that follow, until it is set anew.
  void set_pass(PassUse pass) { pass_ = pass; }
  /// Sets the samples and the loss by which the next step with StepLength::quadratic models the
  /// loss (Optimizer::set_curvature_along()). x: input of the model, valid until that step has
  /// returned; best not of the statistics' samples (StatisticsOptions::fraction). BatchNorms
  /// normalise it as a batch of its own.
  void set_model_batch(ConstTensorView x, OutputCurvature loss);

  /// Names of the layers, and the specifications that they were registered with, by LayerId.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<LayerSpec>& specs() const { return specs_; }

  void on_forward(Layer& layer, ConstTensorView input) override;
  void on_backward(Layer& layer, ConstTensorView grad_output) override;
  void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView grad_output) override;
  [[nodiscard]] bool wants_normalization(const Layer& layer) const override;
  [[nodiscard]] bool takes_sample_gradients(const Layer&) const override {
    return optimizer_.takes_sample_gradients();
  }
  void on_sample_gradients(Layer& layer, ConstTensorView gradients) override;
  [[nodiscard]] bool wants_gradients() const override {
    return pass_.gradients != GradientUse::none;
  }
  void on_gradients(Layer& layer) override;
  void on_all_gradients(std::span<Layer* const> layers) override;
  [[nodiscard]] std::optional<PassState> pass_state() override;
  void resume(const PassState& state) override { optimizer_.resume(state, stream_); }

 private:
  struct Entry {
    LayerId id;
    bool recorded;              ///< Whether it has statistics.
    std::int64_t begin, count;  ///< Position of its gradients in those of the model.
    bool kept = false;          ///< Whether the sums contain a part of them.
  };
  void keep(Entry& entry);
  void add_kept(Entry& entry);

  Model& model_;
  optim::Optimizer& optimizer_;
  Stream stream_;
  Context ctx_;  ///< Context of the sums.
  RecordScale scale_;
  PassUse pass_;
  Tensor sums_;  ///< Accumulated gradients of `add` passes; allocated by the first one.
  std::unordered_map<const Layer*, Entry> entries_;
  std::vector<std::string> names_;
  std::vector<LayerSpec> specs_;
  std::vector<LayerId> ready_;  ///< Those of one call.
};

}  // namespace dkfac::nn
