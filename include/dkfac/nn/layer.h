#pragma once

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
};

class Layer;

/// Sees what flows through a layer in training; K-FAC is one observer, a logger another. Views are
/// valid during the call.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  virtual void on_forward(Layer& layer, ConstTensorView input) = 0;
  /// Before the layer's own backward work.
  virtual void on_backward(Layer& layer, ConstTensorView grad_output) = 0;
  /// BatchNorm instead of the two above. x: input; mean, inv_std: [groups, c].
  virtual void on_batch_norm(Layer& layer, ConstTensorView x, ConstTensorView mean,
                             ConstTensorView inv_std, ConstTensorView grad_output) = 0;
  /// The gradients of the layer's parameters are final for this step.
  virtual void on_gradients(Layer& layer) = 0;
};

/// One differentiable operation with its parameters and the memory of its outputs. Activations are
/// NHWC [n,h,w,c], or [n,features]. Output buffers are kept while the batch keeps its shape, so a
/// steady step allocates nothing; a returned view is valid until the layer runs again.
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
  /// After forward in training mode on the same input, which must still be in place. Overwrites the
  /// parameter gradients. Returns d loss/d input, or an empty view when skipped.
  virtual ConstTensorView backward(Context& ctx, ConstTensorView grad_output,
                                   InputGrad input_grad) = 0;

  /// Calls f on this layer and then on its children, in forward order.
  virtual void visit(const std::function<void(Layer&)>& f) { f(*this); }
  /// Random initial values of the parameters (He et al. 2015 for weights).
  virtual void initialize(Random& random);
  /// Names this layer `path` and its children below it.
  virtual void set_name(const std::string& path) { name_ = path; }

  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  [[nodiscard]] std::vector<Buffer>& buffers() { return buffers_; }
  void set_observer(LayerObserver* observer) { observer_ = observer; }

 protected:
  Layer() = default;
  /// Reuses `tensor` when it has this shape and dtype, else allocates it anew.
  static TensorView ensure(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);

  std::string name_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  LayerObserver* observer_ = nullptr;
};

}  // namespace dkfac::nn
