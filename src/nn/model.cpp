#include "dkfac/nn/model.h"

#include <set>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/norm_layers.h"

#include "core/shared/device_timer.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/dtype.h"
#include "nn/backends/workspace.h"
#include "nn/batch_shape.h"
#include "nn/binding.h"
#include "nn/fusion/plan.h"
#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

ConstTensorView cast_into(Context& ctx, ConstTensorView x, Tensor& memory, DType dtype) {
  const TensorView y = view_in(ctx, memory, x.shape(), dtype);
  ops::cast(ctx, x, y);
  return y;
}

}  // namespace

Model::Model(std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
             std::optional<DType> compute)
    : name_(std::move(name)),
      root_(std::move(root)),
      workspace_(std::make_unique<Workspace>()),
      input_(input),
      dtype_(dtype),
      compute_(compute.value_or(dtype)) {
  DKFAC_CHECK(root_ != nullptr, "[model] '", name_, "' has no layers; pass a root");
  DKFAC_CHECK(dtype == DType::f64 || dtype == DType::f32, "[model] '", name_, "' is ", dtype,
              "; it must be f64 or f32");
  DKFAC_CHECK(compute_ != DType::i32 && compute_dtype(compute_) == dtype, "[model] '", name_,
              "' of dtype ", dtype, " cannot compute in ", compute_,
              "; f64 goes with f64, f32 with f32, bf16 or f16");
  root_->set_name("");
  const Shape output = root_->output_shape(batch_shape(1, input_));
  DKFAC_CHECK(output.ndim() == 2, "[model] '", name_, "' gives ", output, " for a sample ", input_,
              "; the last layer must give [n, classes]");
  outputs_ = output[1];
  std::set<std::string> names;
  for (const NamedTensor& t : named_tensors())
    DKFAC_CHECK(names.insert(t.name).second, "[model] '", name_, "' has two tensors '", t.name,
                "'; give their layers different names, across the branches of a Residual too");
  const ArenaSizes sizes = arena_sizes(*root_);
  parameter_count_ = sizes.parameters;
  buffer_count_ = sizes.buffers;
}

Model::Model(Context& ctx, std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
             std::uint64_t seed, std::optional<DType> compute)
    : Model(std::move(name), std::move(root), input, dtype, compute) {
  values_ = Tensor::zeros(ctx, Shape{parameter_count_}, dtype);
  gradients_ = Tensor::zeros(ctx, Shape{parameter_count_}, dtype);
  buffers_ = Tensor::zeros(ctx, Shape{buffer_count_}, dtype);
  initialize(ctx, seed);
  visit([&](Layer& layer) { layer.set_workspace(workspace_.get()); });
}

void Model::initialize(Context& ctx, std::uint64_t seed) {
  bind_initialized(ctx, *root_, values_, gradients_, buffers_, seed);
  ctx.stream().synchronize();  // Optimizers may use them on streams of their own.
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

void Model::require_memory() const {
  DKFAC_CHECK(values_.is_set(), "[model] '", name_,
              "' is an outline without memory; make_model() makes one that runs");
}

void Model::check_samples(const Shape& batch) const {
  if (batch.ndim() >= 1 && batch == batch_shape(batch[0], input_)) return;
  const bool images = batch.ndim() == 4 && input_.ndim() == 3 && batch[3] == input_[2];
  DKFAC_CHECK(images, "[model] '", name_, "' takes samples of ", input_, " but the input is ",
              batch, "; make them equal behind the batch, but for height and width");
  const Shape output = root_->output_shape(batch);
  DKFAC_CHECK(output == Shape({batch[0], outputs_}), "[model] '", name_, "' gives ", output,
              " for a batch ", batch, " of another size than ", input_, "; resize the images");
}

void Model::set_input(const Shape& input) {
  check_samples(batch_shape(1, input));
  input_ = input;
}

ConstTensorView Model::forward(Context& ctx, ConstTensorView x, Mode mode) {
  require_memory();
  // Indices of an Embedding are not cast; they give activations of the model's own dtype.
  const bool indices = x.dtype() == DType::i32;
  DKFAC_CHECK(indices ? compute_ == dtype_ : x.dtype() == dtype_ || x.dtype() == compute_,
              "[model] '", name_, "' takes ", dtype_, " but the input is ", x.dtype(),
              indices ? "; a model of indices computes in its own dtype" : "; cast it first");
  check_samples(x.shape());
  workspace_->release_all();
  if (!indices && x.dtype() != compute_) x = cast_into(ctx, x, cast_input_, compute_);
  if (compute_ != dtype_ && ctx.device().is_cuda()) round_parameters(ctx);
  const ConstTensorView logits = root_->forward(ctx, x, mode);
  return compute_ == dtype_ ? logits : cast_into(ctx, logits, logits_, dtype_);
}

void Model::round_parameters(Context& ctx) {
  const bool is_new = !rounded_.is_set();
  const TensorView rounded = view_in(ctx, rounded_, values_.shape(), compute_);
  ops::cast(ctx, values_, rounded);
  if (!is_new) return;
  Cutter arena(rounded);
  visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) {
      const ConstTensorView own = arena.next(p.shape);
      constexpr std::uintptr_t kWhole = 16;
      if (p.role == Role::weight && reinterpret_cast<std::uintptr_t>(own.raw()) % kWhole == 0)
        p.rounded = own;
    }
  });
}

void Model::backward(Context& ctx, ConstTensorView grad_logits) {
  require_memory();
  DKFAC_CHECK(grad_logits.dtype() == dtype_, "[model] '", name_, "' takes ", dtype_,
              " but the gradient of the logits is ", grad_logits.dtype(), "; cast it first");
  workspace_->release_all();
  if (compute_ != dtype_) grad_logits = cast_into(ctx, grad_logits, cast_grad_, compute_);
  root_->backward(ctx, grad_logits, InputGrad::skipped);
}

ConstTensorView Model::linearize(Context& ctx, ConstTensorView x) {
  require_memory();
  const struct Watched {
    Model& model;
    LayerObserver* observer;
    ~Watched() { model.set_observer(observer); }
  } watched{*this, observer_};
  set_observer(nullptr);
  Scratch scratch(ctx);
  const TensorView before = scratch.take(buffers_.shape(), dtype_);
  ops::copy(ctx, buffers_, before);
  const ConstTensorView logits = forward(ctx, x, Mode::train);
  ops::copy(ctx, before, buffers_);
  return logits;
}

ConstTensorView Model::tangent(Context& ctx, ConstTensorView direction) {
  require_memory();
  DKFAC_CHECK(direction.shape() == values_.shape() && direction.dtype() == dtype_ &&
                  direction.is_contiguous(),
              "[model] '", name_, "': the direction is ", direction.dtype(), " ", direction.shape(),
              "; it must be ", dtype_, " ", values_.shape(), " without gaps");
  workspace_->release_all();
  Cutter arena(direction);
  visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) p.tangent = arena.next(p.shape);
  });
  const ConstTensorView logits = root_->tangent(ctx, {});
  return compute_ == dtype_ ? logits : cast_into(ctx, logits, logits_, dtype_);
}

std::size_t Model::allocated_bytes() const {
  std::size_t total = values_.bytes() + gradients_.bytes() + buffers_.bytes() +
                      workspace_->bytes() + cast_input_.bytes() + cast_grad_.bytes() +
                      logits_.bytes() + rounded_.bytes();
  root_->visit([&](Layer& layer) { total += layer.held_bytes(); });
  return total;
}

void Model::set_observer(LayerObserver* observer) {
  observer_ = observer;
  root_->visit([&](Layer& layer) { layer.set_observer(observer); });
}

void Model::set_batch_norm_ranks(const std::shared_ptr<comm::Communicator>& ranks) {
  batch_norm_ranks_ = 1;
  visit([&](Layer& layer) {
    auto* norm = dynamic_cast<BatchNorm2d*>(&layer);
    if (norm == nullptr) return;
    norm->set_ranks(ranks);
    batch_norm_ranks_ = norm->ranks();
  });
}

void Model::set_fused_moments(FusionUse use) { fuse(*root_, Fusion::moments, use); }

FusedPairs Model::fused_moments() const { return fused_pairs(*root_, Fusion::moments); }

void Model::set_fused_backward(FusionUse use) { fuse(*root_, Fusion::gradient, use); }

FusedPairs Model::fused_backward() const { return fused_pairs(*root_, Fusion::gradient); }

std::string Model::fusion_choices() const { return nn::fusion_choices(*root_); }

void Model::set_fusion_choices(std::string_view choices) {
  nn::set_fusion_choices(*root_, choices);
}

void Model::choose_fusions(Context& ctx, std::int64_t samples, const WorkTimer& timer) {
  if (!ctx.device().is_cuda() || size_of(compute_) != 2 || !has_measured_fusions(*root_)) return;
  LayerObserver* const observer = observer_;
  set_observer(nullptr);
  const Tensor before = Tensor::copy_of(ctx, buffers_);
  Tensor x = Tensor::empty(ctx, batch_shape(samples, input_), compute_);
  Tensor grad = Tensor::zeros(ctx, Shape{samples, outputs_}, dtype_);
  ops::fill(ctx, x, 1);
  {
    const WorkTimer used = timer ? timer : median_seconds;
    const MeasuredFusions measured(*root_, used);
    (void)forward(ctx, x, Mode::train);
    backward(ctx, grad);
  }
  ops::copy(ctx, before, buffers_);
  set_observer(observer);
}

void Model::trace(const std::function<void(const Layer&, const Shape&)>& f) const {
  root_->trace(batch_shape(1, input_), f);
}

std::unique_ptr<Model> outline_model(const ModelOptions& options) {
  return std::make_unique<Model>(options.name, make_layers(options), options.input, options.dtype,
                                 options.compute);
}

void average_buffers(Context& ctx, Model& model, comm::Communicator& comm) {
  const TensorView buffers = model.buffers();
  if (comm.size() == 1 || buffers.numel() == 0) return;
  Scratch scratch(ctx);
  const TensorView before = scratch.take(buffers.shape(), buffers.dtype());
  ops::copy(ctx, buffers, before);
  comm.all_reduce(buffers, comm::ReduceOp::sum, ctx.stream(), "model buffers");
  // On a device the stream orders the sum before later work.
  if (!ctx.device().is_cuda()) ctx.stream().synchronize();
  kernels::scale(ctx, buffers, 1.0 / comm.size(), buffers);
  // The mean of equal values may differ from them in its last bit.
  Cutter arena(before);
  model.visit([&](Layer& layer) {
    for (const Buffer& b : layer.buffers()) {
      const ConstTensorView own = arena.next(b.shape);
      if (b.constant) ops::copy(ctx, own, b.value);
    }
  });
}

}  // namespace dkfac::nn
