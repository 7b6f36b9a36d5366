#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/gradients.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

enum class Mode : std::uint8_t { train, eval };
/// Whether backward() computes the gradient of its input, which the first layer can skip.
enum class InputGrad : std::uint8_t { needed, skipped };
enum class Role : std::uint8_t { weight, bias, norm_scale, norm_shift };

enum class ActivationKind : std::uint8_t {
  none,
  relu,  ///< max(x, 0); NaN stays NaN.
  celu   ///< x for x >= 0, else alpha (exp(x/alpha) - 1) (Barron 2017).
};
struct Activation {
  ActivationKind kind = ActivationKind::none;
  double alpha = 1;  ///< Parameter of celu, > 0.
};

/// A trained tensor of a layer. Value and gradient are views into the model's arenas.
struct Parameter {
  std::string name;  ///< Name within the layer: "weight", "bias".
  Role role = Role::weight;
  Shape shape;
  TensorView value, grad;
  /// The value rounded to the 16-bit type of the activations by the last forward pass, of a weight
  /// in a Model on a device; else empty.
  ConstTensorView rounded = {};
  /// Direction in which tangent() differentiates, of the shape and dtype of the value. Set for all
  /// parameters of a layer, or empty for all: then they do not move.
  ConstTensorView tangent = {};
  /// What products take.
  [[nodiscard]] ConstTensorView operand() const { return rounded.empty() ? value : rounded; }
};

/// State that is not trained, such as the running statistics of a BatchNorm; a view into an arena.
struct Buffer {
  std::string name;
  Shape shape;
  double initial = 0;
  TensorView value;
  bool constant = false;  ///< Never written in training, so equal on every rank.
};

/// Cost of the passes of a layer without children over an input of one shape (batch included). The
/// memory of its output and of the gradient of its input is not part of it.
struct LayerCost {
  /// Floating-point operations of matrix products, two per multiply-add: for the output, for the
  /// parameter gradients, and for the gradient of the input. Work that is linear in the activations
  /// (normalisation, pooling, ...) is not counted.
  double forward_flops = 0, parameter_flops = 0, input_flops = 0;
  std::size_t kept = 0;        ///< Bytes kept after a pass, also in evaluation.
  std::size_t statistics = 0;  ///< Bytes kept after a pass in training only.
  std::size_t scratch = 0;     ///< Bytes released within the pass; an estimate.
  std::size_t reordered = 0;   ///< Bytes of weights in the format of a library; an estimate.
  bool is_view = false;        ///< Output and input gradient are views of the arguments.
};

/// Memory and operations of a network's passes, computed from shapes alone. Layers add theirs in
/// the order in which forward() and backward() allocate and release memory.
struct PassPlan {
  Mode mode = Mode::train;
  DType compute = DType::f32;   ///< Data type of the activations.
  double flops = 0;             ///< Counted as in LayerCost.
  std::size_t activations = 0;  ///< Bytes kept: outputs in training, and LayerCost::kept.
  std::size_t lent = 0;         ///< Bytes currently lent by the workspace.
  std::size_t workspace = 0;    ///< Largest value of `lent`.
  std::size_t statistics = 0;   ///< Sum over the layers, in training.
  std::size_t scratch = 0;      ///< Largest value of a layer.
  std::size_t reordered = 0;    ///< Sum over the layers.

  /// Adds the cost of a layer's forward pass, without its output.
  void add(const LayerCost& cost);
  /// Plans the allocation of a gradient in the workspace.
  void lend(const Shape& shape);
  /// Plans the release of a gradient to the workspace.
  void release(const Shape& shape);
  /// Plans the allocation of an output: in training in the layer's own memory, which is kept.
  void take_output(const Shape& shape);
  /// Plans the release of an output that is not kept.
  void release_output(const Shape& shape);
};

class Layer;
class Workspace;  // nn/workspace.h: memory that the layers of a model share.

/// Observer of the inputs and gradients of layers with parameters in training, such as the
/// attachment of an optimizer or a logger. Views are valid during the call.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Called with the layer's input, in the shape in which the layer received it.
  virtual void on_forward(Layer& layer, ConstTensorView input) = 0;
  /// Called before the layer computes its gradients.
  virtual void on_backward(Layer& layer, ConstTensorView grad_output) = 0;
  /// Returns whether on_normalization() is called for this layer in this pass. False saves memory
  /// in a fused BatchNorm.
  [[nodiscard]] virtual bool wants_normalization(const Layer& /*layer*/) const { return true; }
  /// Called for a normalisation in place of the two functions above. x: the input. mean, inv_std:
  /// f64 or f32, [groups,c], or [rows] where NormalizingLayer::normalizes_rows(). grad_output:
  /// before the activation that the normalisation may apply.
  virtual void on_normalization(Layer& layer, ConstTensorView x, ConstTensorView mean,
                                ConstTensorView inv_std, ConstTensorView grad_output) = 0;
  /// Returns whether on_sample_gradients() may be called in place of on_normalization(). A layer
  /// that sums for its own gradients then sums sample by sample, and the observer need not.
  [[nodiscard]] virtual bool takes_sample_gradients(const Layer& /*layer*/) const { return false; }
  /// gradients: of scale and shift for each sample, f64 or f32, contiguous [n,2,c], or
  /// [groups,n/groups,2,c] with several groups. A scale that is not trained has its gradient too.
  virtual void on_sample_gradients(Layer& /*layer*/, ConstTensorView /*gradients*/) {}
  /// Returns whether the backward pass computes parameter gradients. If not, they keep their values
  /// and on_gradients() is not called.
  [[nodiscard]] virtual bool wants_gradients() const { return true; }
  /// Called when the layer's parameter gradients of this pass are available; the observer may
  /// change them.
  virtual void on_gradients(Layer& layer) = 0;
  /// Called in place of on_gradients() for several layers whose gradients became available at once,
  /// in the order of the backward pass.
  virtual void on_all_gradients(std::span<Layer* const> layers) {
    for (Layer* layer : layers) on_gradients(*layer);
  }
  /// For passes whose device work is captured once and replayed (GraphedPasses): the state in which
  /// the functions above, up to on_sample_gradients(), find the observer. Without words, they do
  /// nothing in this pass. None (default): they have to be called in every pass.
  [[nodiscard]] virtual std::optional<PassState> pass_state() { return std::nullopt; }
  /// Called before and after a replay, and between its parts, with the state that those functions
  /// left when they were captured.
  virtual void resume(const PassState&) {}
};

/// One differentiable operation with its parameters and the memory of its outputs. Activations are
/// NHWC [n,h,w,c], [n,positions,features] or [n,features], contiguous, in memory of the device of
/// the context that is passed to every call: f64, f32, bf16 or f16; indices of an Embedding are
/// i32. On a device, passes are enqueued on the context's stream. Parameters and buffers are f64
/// for f64 and f32 for all others.
///
/// Memory is kept and only grows, so steps of one shape allocate nothing after the first. A layer
/// owns its outputs in training; they are valid until its next pass. Without a Model it also owns
/// gradients, and outputs in evaluation. In a Model these come from the workspace and belong to the
/// caller of forward() or backward(), until the caller release()s them or the model's next pass
/// begins. A layer does not release its arguments, but may return one of them.
///
/// In training a layer with parameters calls on_forward() of its observer before it computes. Its
/// backward() calls on_backward(), computes the parameter gradients, calls on_gradients() where
/// wants_gradients(), and only then computes the gradient of its input.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// Path within the model, such as "features.0"; set by Model.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] virtual std::string describe() const = 0;  ///< Short description, such as "Conv2d
                                                           ///< 1->6 5x5 p2".
  /// Specification that optimizers get; by default one without a curvature block. A layer with a
  /// LinearSpec, Conv2dSpec or EmbeddingSpec calls on_forward() and on_backward() of its observer;
  /// one with a NormSpec derives from NormalizingLayer. OptimizerAttachment sets what depends on
  /// parameters and batches: the numbers of a PlainSpec, NormSpec::scale, max_rows and sample_rows.
  /// Other layers without a trained weight get a PlainSpec.
  [[nodiscard]] virtual LayerSpec spec() const { return PlainSpec{}; }
  /// Shape of the output for an input shape. Throws InvalidArgument naming the layer and both
  /// shapes when the input does not fit.
  [[nodiscard]] virtual Shape output_shape(const Shape& input) const = 0;

  virtual ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) = 0;
  /// Computes the gradients after forward() in training mode on the same input, which must still be
  /// valid. It may be called any number of times; calls are independent. Overwrites the parameter
  /// gradients, unless the observer does not want them. Returns d loss/d input, or an empty view
  /// when skipped.
  virtual ConstTensorView backward(Context& ctx, ConstTensorView grad_output,
                                   InputGrad input_grad) = 0;

  /// Computes the derivative of the output along `dx`, a direction of the input, and
  /// Parameter::tangent (forward mode), after forward() in training mode on the same input, which
  /// must still be valid: J v, where backward() computes J' u. Statistics of the batch move with
  /// their input. dx: of the shape and dtype of the input, or empty where that does not move; the
  /// result is empty where the output does not. Its memory is as that of a gradient. It may be
  /// called any number of times; backward() then needs another forward(). By default throws
  /// InvalidArgument that names the layer.
  virtual ConstTensorView tangent(Context& ctx, ConstTensorView dx);

  /// Calls f on this layer and then on its children, in forward order.
  virtual void visit(const std::function<void(Layer&)>& f) { f(*this); }
  /// Sets initial values in host memory: weights normal with variance 2 / fan-in (He et al. 2015),
  /// biases and shifts 0, scales 1, buffers their own.
  virtual void initialize(Random& random);
  /// Calls f(layer, output shape) on the layers without children in forward order. Returns the last
  /// shape.
  virtual Shape trace(const Shape& input,
                      const std::function<void(const Layer&, const Shape&)>& f) const;
  /// Returns the cost of a layer without children, with activations of dtype `compute`; zero by
  /// default.
  [[nodiscard]] virtual LayerCost cost(const Shape& input, DType compute) const;
  /// Plans forward(): from cost(), or in a container from its children in order. Returns true if
  /// the output is still allocated afterwards, false if it is the memory of the input.
  virtual bool plan_forward(PassPlan& plan, const Shape& input) const;
  /// Plans backward(). Returns true if the gradient of the input, where needed, is still allocated
  /// afterwards, false if it is the memory of the output's gradient.
  virtual bool plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const;
  /// Sets this layer's name to `path` and those of its children below it.
  virtual void set_name(const std::string& path) { name_ = path; }

  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] std::vector<Buffer>& buffers() { return buffers_; }
  void set_observer(LayerObserver* observer) { observer_ = observer; }
  void set_workspace(Workspace* workspace) { workspace_ = workspace; }
  /// Returns the bytes of the layer's own memory, without parameters, gradients, buffers and
  /// children. It counts all memory kept between passes on a device: GraphedPasses compares it to
  /// detect a reallocation.
  [[nodiscard]] virtual std::size_t held_bytes() const { return held_bytes_; }

 protected:
  Layer() = default;
  /// Returns a view of this shape over the memory of `tensor`, a member, which is reallocated only
  /// when it is too small or of another dtype; so batches of several sizes may alternate.
  TensorView ensure(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);
  /// Returns memory for gradients: from the workspace, or from `own` for a layer without a Model.
  TensorView lend(Context& ctx, Tensor& own, const Shape& shape, DType dtype);
  /// Returns memory for the result of tangent(), as lend() does.
  TensorView lend_tangent(Context& ctx, const Shape& shape, DType dtype);
  /// Returns memory for outputs: by ensure() in training, by lend() in evaluation.
  TensorView output_memory(Context& ctx, Mode mode, Tensor& own, const Shape& shape, DType dtype);
  /// Returns a writable view of the memory of `view` if the workspace lent it, else an empty one.
  TensorView lent(ConstTensorView view);
  /// Fills a weight [out,...] with normal values of variance 2 / fan-in (He et al. 2015).
  static void fill_he_normal(TensorView weight, Random& random);
  /// Returns lent memory to the workspace; other views are ignored.
  void release(ConstTensorView view);
  /// Returns whether backward() computes the parameter gradients.
  [[nodiscard]] bool wants_gradients() const {
    return observer_ == nullptr || observer_->wants_gradients();
  }

  std::string name_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  LayerObserver* observer_ = nullptr;

 private:
  Workspace* workspace_ = nullptr;
  Tensor tangent_;  ///< Without a Model.
  std::size_t held_bytes_ = 0;
};

/// A layer without parameters, which computes its output from its input alone.
class MapLayer : public Layer {
 public:
  /// By default that of the input.
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) final;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) final;

 protected:
  explicit MapLayer(std::string_view kind) : kind_(kind) {}  ///< Kind of the layer in messages.
  virtual void compute(Context& ctx, ConstTensorView x, TensorView y) = 0;
  /// dx = J' dy, with the Jacobian J of the last forward pass in training.
  virtual void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) = 0;
  /// dy = J dx, by default that of a symmetric J.
  virtual void compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) {
    compute_gradient(ctx, dx, dy);
  }
  ConstTensorView input_, trained_;  ///< Input and output of the last forward pass in training.

 private:
  std::string_view kind_;
  Tensor output_, input_grad_;
};

/// Plans the passes of a network over a batch of this shape: forward, and in training backward
/// without the gradient of the input.
[[nodiscard]] PassPlan plan_passes(const Layer& root, const Shape& input, Mode mode, DType compute);

}  // namespace dkfac::nn
