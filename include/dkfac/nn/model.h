#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// A tensor of a network with its full name, such as "layer1.0.bn1.running_mean".
struct NamedTensor {
  std::string name;
  bool trained = false;  ///< A parameter; a buffer otherwise.
  TensorView view;       ///< View into the model's arenas; valid as long as the model.
};

/// Returns the seconds that work takes on the stream of the context. It calls the work, which
/// enqueues it, as often as it needs.
using WorkTimer = std::function<double(Context&, const std::function<void()>&)>;

/// Use of a fusion of neighbouring layers.
enum class FusionUse : std::uint8_t {
  off,
  on,
  measured  ///< Of the pairs for which it is faster, once Model::choose_fusions() has measured it.
};

/// Counts of neighbouring convolutions and BatchNorm2ds that can share a pass over memory
/// (Model::set_fused_moments(), set_fused_backward()).
struct FusedPairs {
  std::int64_t pairs = 0;
  std::int64_t fused = 0;  ///< Pairs that were fused in their last pass.
};

/// A network: a tree of layers with one arena each for parameters, gradients and buffers,
/// contiguous and in forward order. Its layers share the memory of activation gradients, and in
/// evaluation that of activations. All memory is on the device of the context of the constructor;
/// every pass is given a context of that device with the same stream.
class Model {
 public:
  /// `input` is the shape of one sample, [h,w,c] or [features]. Initial values depend only on the
  /// seed and the layer's position. `compute`: dtype of the activations and their gradients, dtype
  /// itself or for f32 also bf16 or f16 (mixed precision: parameters, their gradients, statistics
  /// and sums stay f32). Throws InvalidArgument when the shapes do not fit together, and when two
  /// tensors have one name.
  Model(Context& ctx, std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
        std::uint64_t seed, std::optional<DType> compute = {});
  /// Makes an outline: layers and shapes without memory, to count operations and bytes. Its tensors
  /// are empty and its passes throw InvalidArgument.
  Model(std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
        std::optional<DType> compute = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// Computes logits [n, classes] of dtype(), valid until the next pass. x: [n, input...] of
  /// dtype() or compute(), or i32 indices for an Embedding. Images may have another height and
  /// width than input() where every layer accepts them (convolutions, pooling over all of an
  /// image).
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode);
  /// Computes gradients(), which it overwrites. grad_logits: of dtype().
  void backward(Context& ctx, ConstTensorView grad_logits);
  /// Runs forward() in training mode for tangent(): no observer is called, and buffers() keep their
  /// values. x is often a part of a batch, which BatchNorm2ds normalise as a batch of its own.
  ConstTensorView linearize(Context& ctx, ConstTensorView x);
  /// Computes the derivative of the logits of the last linearize() along `direction`, of
  /// parameters(): [parameter_count] of dtype() (Layer::tangent()). Result [n, classes] of dtype(),
  /// valid until the next pass. It may be called any number of times; backward() then needs another
  /// forward(). Throws InvalidArgument naming a layer without a tangent.
  ConstTensorView tangent(Context& ctx, ConstTensorView direction);

  void visit(const std::function<void(Layer&)>& f) { root_->visit(f); }
  void set_observer(LayerObserver* observer);
  [[nodiscard]] LayerObserver* observer() const { return observer_; }
  /// BatchNorm2d::set_ranks() of every BatchNorm2d, with one communicator: its batches are
  /// normalised together with those of the other `ranks`. A GraphedPasses then captures nothing.
  /// Null: each rank for itself. Throws InvalidArgument as that does.
  void set_batch_norm_ranks(const std::shared_ptr<comm::Communicator>& ranks);
  /// Number of ranks that share their batches; 1 in a model without BatchNorm2d.
  [[nodiscard]] int batch_norm_ranks() const { return batch_norm_ranks_; }
  /// Lets convolutions compute the batch statistics of the BatchNorm2d behind them; off in a new
  /// Model, measured in one of make_model(). It applies to 16-bit activations on a device, for a
  /// BatchNorm2d of one group directly after a convolution without a bias in the same Sequential.
  /// It saves one read of the convolution's output at the price of accuracy: the error of the
  /// variance is about mean^2 times the relative error of f32 sums, and a negative variance becomes
  /// 0. Pairs for which cuDNN has no engine stay unfused, and are counted. Set it before passes are
  /// captured.
  void set_fused_moments(FusionUse use);
  [[nodiscard]] FusedPairs fused_moments() const;
  /// Lets convolutions compute gradient sums of the BatchNorm2d before them; the default is that of
  /// set_fused_moments(). It applies to f16 activations on a device. A convolution carries its
  /// gradient through the ReLU of a BatchNorm2d of one group directly before it, also across
  /// neighbouring Sequentials, and sums it for that layer. It saves one read of the gradient, at
  /// the accuracy of f32 sums. Pairs without an engine and the order of calls are as for
  /// set_fused_moments().
  void set_fused_backward(FusionUse use);
  [[nodiscard]] FusedPairs fused_backward() const;
  /// Chooses the measured fusions for batches of `samples` of input(): a forward and a backward
  /// pass over a constant batch time each form of a pair on the device, once for each shape, and
  /// keep the answer where measured plans of convolutions are (docs/cuda.md). Running statistics
  /// are restored, gradients() overwritten, and no observer is called. Call it before passes are
  /// captured; with BatchNorms over ranks, on all of them together. Until then, and on the host,
  /// measured pairs are not fused. Ranks may choose differently: give all of them
  /// fusion_choices() of one, and a resumed run those it had. Without a `timer`, times are medians
  /// of three by events of the device.
  void choose_fusions(Context& ctx, std::int64_t samples, const WorkTimer& timer = {});
  /// Text with a digit for each pair in forward order, moments before backward: "110/01".
  [[nodiscard]] std::string fusion_choices() const;
  /// Sets the choices of the measured pairs. Throws InvalidArgument for those of another model.
  void set_fusion_choices(std::string_view choices);
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] DType compute() const { return compute_; }
  [[nodiscard]] const Shape& input() const { return input_; }
  /// Sets another height and width of samples, which trace(), forward_flops() and an
  /// OptimizerAttachment use. Parameters stay. Throws InvalidArgument when a layer does not
  /// accept them.
  void set_input(const Shape& input);
  [[nodiscard]] std::int64_t outputs() const { return outputs_; }  ///< Number of classes.
  [[nodiscard]] std::int64_t parameter_count() const { return parameter_count_; }
  [[nodiscard]] std::int64_t buffer_count() const { return buffer_count_; }
  [[nodiscard]] TensorView parameters() { return values_; }  ///< [parameter_count]
  [[nodiscard]] TensorView gradients() { return gradients_; }
  [[nodiscard]] TensorView buffers() { return buffers_; }
  /// Every parameter and buffer, in forward order; a layer's parameters before its buffers.
  [[nodiscard]] std::vector<NamedTensor> named_tensors();
  /// Returns the parameter or buffer with this full name. Throws InvalidArgument naming it and the
  /// tensors that its layer has instead.
  [[nodiscard]] NamedTensor tensor(std::string_view name);
  /// Calls f(layer, output shape for one sample) on the layers without children, in forward order.
  void trace(const std::function<void(const Layer&, const Shape&)>& f) const;
  [[nodiscard]] const Layer& root() const { return *root_; }
  /// Returns the bytes allocated by the model: arenas, activations, gradients, and their copies for
  /// cuDNN. Not counted: memory internal to oneDNN and the scratch memory of the context.
  [[nodiscard]] std::size_t allocated_bytes() const;
  /// Returns one line per layer: name, description, output shape, parameters.
  [[nodiscard]] std::string summary() const;

 private:
  void initialize(Context& ctx, std::uint64_t seed);
  void require_memory() const;
  void check_samples(const Shape& batch) const;
  /// Rounds all parameters by one kernel, for layers whose weights begin at whole 16 bytes.
  void round_parameters(Context& ctx);

  std::string name_;
  std::unique_ptr<Layer> root_;
  std::unique_ptr<Workspace> workspace_;
  Shape input_;
  DType dtype_, compute_;
  std::int64_t outputs_ = 0;
  int batch_norm_ranks_ = 1;
  std::int64_t parameter_count_ = 0, buffer_count_ = 0;
  LayerObserver* observer_ = nullptr;
  Tensor values_, gradients_, buffers_;
  Tensor cast_input_, cast_grad_, logits_;  ///< When compute() is not dtype().
  Tensor rounded_;                          ///< The parameters in compute(), on a device.
};

/// Returns the floating-point operations of a forward pass over one sample, two per multiply-add
/// (LayerCost).
[[nodiscard]] double forward_flops(const Model& model);
/// Returns the floating-point operations of forward and backward over one sample, without the
/// gradient with respect to the sample.
[[nodiscard]] double training_flops(const Model& model);

/// Averages the buffers (running statistics) over ranks, so that all ranks evaluate the same
/// network. Constant ones are not changed.
void average_buffers(Context& ctx, Model& model, comm::Communicator& comm);

enum class WeightInit : std::uint8_t {
  he_normal,  ///< Variance 2 / fan_in (He et al. 2015).
  uniform,    ///< U(-1, 1) / sqrt(fan_in) (LeCun et al. 1998).
  glorot      ///< U(-1, 1) sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).
};

/// Activation of the networks of Linear layers.
enum class DenseActivation : std::uint8_t { relu, tanh, sigmoid, gelu, silu };

/// Where max pooling stands between a convolution and the next one. The first two give the same
/// values, since pooling commutes with an increasing activation; the third is another function.
enum class PoolOrder : std::uint8_t {
  norm_activation_pool,
  norm_pool_activation,
  pool_norm_activation
};

/// Changes of ResNet-9 (Page, "How to train your ResNet", 2018-2019), for every network that has
/// what they change. Unset ones have the preset's value; comments give first that of "resnet9",
/// then of "resnet9-plain", then of the other networks.
struct ModelSwitches {
  /// Fixed whitening filters (whitening.h) of the window of the first convolution, which becomes a
  /// 1x1 convolution of their outputs: together they compute what it did, of as many trained
  /// weights. The filters are random until set_whitening(). true, false, false.
  std::optional<bool> whitening{};
  /// pool_norm_activation, norm_activation_pool, norm_activation_pool.
  std::optional<PoolOrder> pool_order{};
  /// BatchNorm scales stay at ModelOptions::norm_scale. true, false, false.
  std::optional<bool> frozen_bn_scale{};
  std::optional<double> celu_alpha{};   ///< 0: ReLU. 0.3, 0, 0.
  std::optional<double> logit_scale{};  ///< Factor of the logits. 1/16, 1/8, 1.
};

/// Options of make_model(), with these names:
/// - "mlp": hidden layers of the given widths, 512 and 512 by default, no BatchNorm.
/// - "autoencoder": Linear layers of the given widths, of which the last is the code, by default
/// 400, 200, 100, 30; then the same back to the size of the input, whatever `classes` is. The code
/// and the output are linear, the others have the activation (Hinton and Salakhutdinov 2006).
/// - "lenet-bn": LeCun et al. 1998 with BatchNorm before each ReLU.
/// - "resnet20", "resnet32": He et al. 2016, section 4.2, with shortcuts without parameters (option
/// A: every second pixel, new channels zero, half of them before and half after the old ones).
/// - "resnet18": He et al. 2016, table 1, with a 3x3 stem of stride 1 and no pooling after it, for
/// images of 32 pixels; 1x1 convolutions where shapes change (option B).
/// - "resnet50": resnet18's scheme with bottlenecks, the stride in the 3x3 convolution (version
/// 1.5), a 7x7 stem and pooling; images of 32 pixels and more. Tensors of resnet18 and resnet50
/// have the names that torchvision gives them.
/// - "resnet34", "resnet101", "resnet152": He et al. 2016, table 1, with resnet50's stem.
/// - "vgg16-bn": Simonyan & Zisserman 2015, configuration D, with BatchNorm before each ReLU of a
/// convolution and without dropout; images of 32 pixels and more. Its names are torchvision's, too,
/// but the columns of classifier.0 are in the order of memory, [h,w,c].
/// - "resnet50-d": He et al. 2018, "Bag of tricks", section 4.1: resnet50 with three 3x3
/// convolutions as stem, and shortcuts that take the mean of 2x2 pixels in place of a stride;
/// images of a multiple of 32 pixels.
/// - "resnet9", "resnet9-plain": Page's network with all of its changes, and the one that they
/// began with; no biases outside BatchNorm.
struct ModelOptions {
  std::string name = "lenet-bn";
  Shape input{28, 28, 1};
  std::int64_t classes = 10;
  std::int64_t batch_norm_groups = 1;  ///< Ghost groups of every BatchNorm.
  DType dtype = DType::f32;
  std::optional<DType> compute{};  ///< Dtype of activations: bf16 or f16 for dtype f32; not set:
                                   ///< dtype.
  std::uint64_t seed = 1;
  std::int64_t width = 0;  ///< Channels of a ResNet's or VGG's first stage; 0: as published.
  std::vector<std::int64_t> widths{};  ///< Of the layers of an MLP or autoencoder; empty: default.
  /// Of an MLP or autoencoder; not set: ReLU and tanh, in both CELU where the switch is set.
  std::optional<DenseActivation> activation{};
  /// Not set: uniform for ResNet-9, glorot for an autoencoder, he_normal otherwise.
  std::optional<WeightInit> init{};
  /// Standard deviation of the last Linear's weights, 0.01 in Goyal et al. 2017; not set: as
  /// `init`.
  std::optional<double> classifier_stddev{};
  /// Starts the last BatchNorm scale of each residual block at 0 (Goyal et al. 2017, section 5.1);
  /// all ResNets but ResNet-9.
  bool zero_gamma = false;
  double norm_epsilon = 1e-5, norm_momentum = 0.1;  ///< As in BatchNormOptions.
  /// > 0; BatchNormOptions::initial_scale, except where zero_gamma holds.
  double norm_scale = 1;
  double norm_scale_stddev = 0;  ///< BatchNormOptions::scale_stddev, except where zero_gamma holds.
  FusionUse fused_moments = FusionUse::measured;   ///< Model::set_fused_moments().
  FusionUse fused_backward = FusionUse::measured;  ///< Model::set_fused_backward().
  ModelSwitches switches{};
};
/// Makes the model with these options. Throws InvalidArgument with the list of names for an unknown
/// one, and for an input or an option that does not fit it.
[[nodiscard]] std::unique_ptr<Model> make_model(Context& ctx, const ModelOptions& options);
/// Makes an outline of that model (see Model), in the memory of its description alone.
[[nodiscard]] std::unique_ptr<Model> outline_model(const ModelOptions& options);
[[nodiscard]] std::vector<std::string> model_names();

}  // namespace dkfac::nn
