#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// A network: a tree of layers whose parameters live in one arena, whose gradients live in a second
/// and whose buffers live in a third, each contiguous and in forward order.
class Model {
 public:
  /// `input` is the shape of one sample, [h,w,c] or [features]. Initial values depend on the seed
  /// and the layer's place only. Throws InvalidArgument when the shapes do not fit together.
  Model(Context& ctx, std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
        std::uint64_t seed);

  /// x: [n, input...] of dtype(). Returns logits [n, classes].
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode);
  void backward(Context& ctx, ConstTensorView grad_logits);

  void visit(const std::function<void(Layer&)>& f) { root_->visit(f); }
  void set_observer(LayerObserver* observer);
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& input() const { return input_; }
  [[nodiscard]] std::int64_t outputs() const { return outputs_; }  ///< Classes.
  [[nodiscard]] std::int64_t parameter_count() const { return values_.numel(); }
  [[nodiscard]] TensorView parameters() { return values_; }  ///< [parameter_count]
  [[nodiscard]] TensorView gradients() { return gradients_; }
  [[nodiscard]] TensorView buffers() { return buffers_; }
  /// One line per layer: name, description, output shape, parameters.
  [[nodiscard]] std::string summary() const;

 private:
  std::string name_;
  std::unique_ptr<Layer> root_;
  Shape input_;
  DType dtype_;
  std::int64_t outputs_ = 0;
  Tensor values_, gradients_, buffers_;
};

/// Averages the buffers (running statistics) over ranks, so that all evaluate the same network.
void average_buffers(Context& ctx, Model& model, comm::Communicator& comm);

/// Models by name: "mlp" (two hidden ReLU layers of 512 and BatchNorm-free) and "lenet-bn" (LeCun
/// et al. 1998 with BatchNorm before each ReLU). `groups`: ghost groups of every BatchNorm.
struct ModelOptions {
  std::string name = "lenet-bn";
  Shape input{28, 28, 1};
  std::int64_t classes = 10;
  std::int64_t batch_norm_groups = 1;
  DType dtype = DType::f32;
  std::uint64_t seed = 1;
};
/// Throws InvalidArgument with the list of names for an unknown one.
[[nodiscard]] std::unique_ptr<Model> make_model(Context& ctx, const ModelOptions& options);
[[nodiscard]] std::vector<std::string> model_names();

}  // namespace dkfac::nn
