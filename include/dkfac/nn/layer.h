#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

enum class Mode : std::uint8_t { train, eval };
/// Whether backward() has to compute the gradient of its input (the first layer need not).
enum class InputGrad : std::uint8_t { needed, skipped };
enum class Role : std::uint8_t { weight, bias, norm_scale, norm_shift };

/// A trained tensor of a layer. Value and gradient are views into the model's arenas.
struct Parameter {
  std::string name;  ///< Within the layer: "weight", "bias".
  Role role = Role::weight;
  Shape shape;
  TensorView value, grad;
};

/// State that is not trained, e.g. the running statistics of a BatchNorm; a view into an arena.
struct Buffer {
  std::string name;
  Shape shape;
  double initial = 0;
  TensorView value;
  bool constant = false;  ///< Never written in training, so equal on every rank.
};

/// What passes over an input of one shape, batch included, cost a leaf beside the memory of its
/// output and of the gradient of its input.
struct LayerCost {
  /// Floating-point operations of matrix products, two per multiply-add: for the output, for the
  /// gradients of the parameters, for that of the input. What is linear in the activations
  /// (normalisation, pooling, ...) is not counted.
  double forward_flops = 0, parameter_flops = 0, input_flops = 0;
  std::size_t kept = 0;        ///< Bytes that stay after a pass, in evaluation too.
  std::size_t statistics = 0;  ///< Bytes that stay after a pass in training alone.
  std::size_t scratch = 0;     ///< Bytes that are given back within the pass; an estimate.
  std::size_t reordered = 0;   ///< Bytes of weights as a library wants them; an estimate.
  bool is_view = false;        ///< Output and input gradient are the memory that it was given.
};

/// Memory and operations of passes over shapes alone, which layers tell in the order in which
/// forward() and backward() take memory and give it back.
struct PassPlan {
  Mode mode = Mode::train;
  DType compute = DType::f32;   ///< Of the activations.
  double flops = 0;             ///< As LayerCost counts them.
  std::size_t activations = 0;  ///< Bytes that stay: outputs in training, and LayerCost::kept.
  std::size_t lent = 0;         ///< Bytes taken from the workspace and not given back yet.
  std::size_t workspace = 0;    ///< The most that was lent at once.
  std::size_t statistics = 0;   ///< Sum over the layers, in training.
  std::size_t scratch = 0;      ///< Of the layer that takes most.
  std::size_t reordered = 0;    ///< Sum over the layers.

  /// Adds the forward pass of a leaf, but for its output.
  void add(const LayerCost& cost);
  /// Takes memory of a gradient from the workspace.
  void lend(const Shape& shape);
  /// Gives it back.
  void release(const Shape& shape);
  /// Takes memory of an output: in training the layer's own, which stays.
  void take_output(const Shape& shape);
  /// Gives it back, where it does not stay.
  void release_output(const Shape& shape);
};

class Layer;
class Workspace;  // nn/workspace.h: memory that the layers of a model share.

/// Sees what flows through the layers with parameters in training; K-FAC is one observer, a logger
/// another. Views are valid during the call.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// input: as the layer was given it, with all its positions.
  virtual void on_forward(Layer& layer, ConstTensorView input) = 0;
  /// Before the layer's own backward work.
  virtual void on_backward(Layer& layer, ConstTensorView grad_output) = 0;
  /// False: on_normalization() may be left out for this layer in this pass, which saves a fused
  /// BatchNorm memory.
  [[nodiscard]] virtual bool wants_normalization(const Layer& /*layer*/) const { return true; }
  /// A normalisation instead of the two above. x: input; mean, inv_std: f64 or f32, [groups,c],
  /// or [rows] where NormalizingLayer::normalizes_rows(); grad_output: before the activation that
  /// the normalisation may apply.
  virtual void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                                ConstTensorView inv_std, ConstTensorView grad_output) = 0;
  /// False: the backward pass is not for the gradients of parameters. They are not computed but
  /// stay as they are, and on_gradients() is left out.
  [[nodiscard]] virtual bool wants_gradients() const { return true; }
  /// The layer's parameter gradients of this pass are there; the observer may change them.
  virtual void on_gradients(Layer& layer) = 0;
};

/// One differentiable operation with its parameters and the memory of its outputs. Activations are
/// NHWC [n,h,w,c], [n,positions,features] or [n,features], contiguous, in memory of the device of
/// the context that every pass is given: f64, f32, bf16 or f16; indices of an Embedding are i32. On
/// a device passes are enqueued on its stream. Parameters and buffers are f64 for f64 and f32 for
/// all others.
///
/// Memory is kept and only grows, so a steady step allocates nothing. Outputs in training are the
/// layer's own and stay until it runs again. Gradients, and outputs in evaluation, are its own as
/// well when it stands alone; in a Model they come from the workspace, belong to the caller of
/// forward() or backward(), and end with its release() of them (or with the model's next pass). A
/// layer does not release what it was given; giving that itself back is allowed.
///
/// In training a leaf with parameters tells its observer on_forward() before it computes; its
/// backward() calls on_backward(), computes the parameter gradients and calls on_gradients() where
/// wants_gradients(), and only then computes the gradient of its input.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// Path within the model, e.g. "features.0"; set by Model.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string describe() const = 0;  ///< "Conv2d 1->6 5x5 p2"
  /// Shape of the output for an input shape. Throws InvalidArgument naming the layer and both
  /// shapes when the input does not fit.
  [[nodiscard]] virtual Shape output_shape(const Shape& input) const = 0;

  virtual ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) = 0;
  /// After forward in training mode on the same input, which must still be in place; any number of
  /// times, each as if it were the only one. Overwrites the parameter gradients, unless the
  /// observer does not want them. Returns d loss/d input, or an empty view when skipped.
  virtual ConstTensorView backward(Context& ctx, ConstTensorView grad_output,
                                   InputGrad input_grad) = 0;

  /// Calls f on this layer and then on its children, in forward order.
  virtual void visit(const std::function<void(Layer&)>& f) { f(*this); }
  /// Initial values: weights normal with variance 2 / fan-in (He et al. 2015), biases and shifts 0,
  /// scales 1, buffers their own. Host memory.
  virtual void initialize(Random& random);
  /// Calls f(layer, output shape) on the leaves in forward order; returns the last shape.
  virtual Shape trace(const Shape& input,
                      const std::function<void(const Layer&, const Shape&)>& f) const;
  /// Of a leaf, with activations of dtype `compute`; by default nothing.
  [[nodiscard]] virtual LayerCost cost(const Shape& input, DType compute) const;
  /// Tells what forward() does: by cost(); a container by its children, in their order. True: the
  /// output is left taken; false: it is the memory of the input.
  virtual bool plan_forward(PassPlan& plan, const Shape& input) const;
  /// Tells what backward() does. True: the gradient of the input is left taken, if it is needed;
  /// false: it is the memory of the output's gradient.
  virtual bool plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const;
  /// Names this layer `path` and its children below it.
  virtual void set_name(const std::string& path) { name_ = path; }

  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] std::vector<Buffer>& buffers() { return buffers_; }
  void set_observer(LayerObserver* observer) { observer_ = observer; }
  void set_workspace(Workspace* workspace) { workspace_ = workspace; }
  /// Bytes of the layer's own memory, without parameters, gradients, buffers and children. All that
  /// stays between passes on a device counts: GraphedPasses sees by it that memory has moved.
  [[nodiscard]] virtual std::size_t held_bytes() const { return held_bytes_; }

 protected:
  Layer() = default;
  /// A view of this shape over the memory of `tensor`, a member, which is allocated anew only when
  /// it is too small or of another dtype; so batches of several sizes may alternate.
  TensorView ensure(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);
  /// For gradients: from the workspace; from `own` when the layer stands alone.
  TensorView lend(Context& ctx, Tensor& own, const Shape& shape, DType dtype);
  /// For outputs: ensure() in training, lend() in evaluation.
  TensorView output_memory(Context& ctx, Mode mode, Tensor& own, const Shape& shape, DType dtype);
  /// The same memory for writing when `view` was lent; empty otherwise.
  TensorView lent(ConstTensorView view);
  /// Gives back what was lent; other views are ignored.
  void release(ConstTensorView view);
  /// Whether backward() has to compute the parameter gradients.
  [[nodiscard]] bool wants_gradients() const {
    return observer_ == nullptr || observer_->wants_gradients();
  }

  std::string name_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  LayerObserver* observer_ = nullptr;

 private:
  Workspace* workspace_ = nullptr;
  std::size_t held_bytes_ = 0;
};

/// The passes of a network over a batch of this shape; backward in training alone, and not to the
/// gradient of the input.
[[nodiscard]] PassPlan plan_passes(const Layer& root, const Shape& input, Mode mode, DType compute);

}  // namespace dkfac::nn
