#include "dkfac/nn/model.h"

#include <array>
#include <iomanip>
#include <sstream>
#include <utility>

#include "dkfac/core/error.h"

#include "nn/binding.h"
#include "nn/cpu/elementwise.h"

namespace dkfac::nn {
namespace {

Shape batch_shape(std::int64_t n, const Shape& sample) {
  DKFAC_CHECK(sample.ndim() >= 1 && sample.ndim() < kMaxDims, "[model] a sample of shape ", sample,
              " is not [features] or [h, w, c]");
  std::array<std::int64_t, kMaxDims> dims{n};
  for (int i = 0; i < sample.ndim(); ++i) {
    DKFAC_CHECK(sample[i] > 0, "[model] a sample of shape ", sample, " has no elements");
    dims[static_cast<std::size_t>(i) + 1] = sample[i];
  }
  return Shape(std::span(dims).first(static_cast<std::size_t>(sample.ndim()) + 1));
}

}  // namespace

Model::Model(Context& ctx, std::string name, std::unique_ptr<Layer> root, Shape input, DType dtype,
             std::uint64_t seed)
    : name_(std::move(name)), root_(std::move(root)), input_(input), dtype_(dtype) {
  DKFAC_CHECK(root_ != nullptr, "[model] '", name_, "' has no layers; pass a root");
  DKFAC_CHECK(dtype == DType::f64 || dtype == DType::f32, "[model] '", name_, "' is ", dtype,
              "; it must be f64 or f32");
  root_->set_name("");
  const Shape output = root_->output_shape(batch_shape(1, input_));
  DKFAC_CHECK(output.ndim() == 2, "[model] '", name_, "' gives ", output, " for a sample ", input_,
              "; the last layer must give [n, classes]");
  outputs_ = output[1];
  const ArenaSizes sizes = arena_sizes(*root_);
  values_ = Tensor::zeros(ctx, Shape{sizes.parameters}, dtype);
  gradients_ = Tensor::zeros(ctx, Shape{sizes.parameters}, dtype);
  buffers_ = Tensor::zeros(ctx, Shape{sizes.buffers}, dtype);
  bind(*root_, values_, gradients_, buffers_);
  initialize_all(*root_, seed);
}

ConstTensorView Model::forward(Context& ctx, ConstTensorView x, Mode mode) {
  DKFAC_CHECK(x.dtype() == dtype_, "[model] '", name_, "' computes in ", dtype_,
              " but the input is ", x.dtype(), "; cast it first");
  DKFAC_CHECK(x.ndim() >= 1 && x.shape() == batch_shape(x.dim(0), input_), "[model] '", name_,
              "' takes samples of ", input_, " but the input is ", x.shape(),
              "; make them equal behind the batch");
  return root_->forward(ctx, x, mode);
}

void Model::backward(Context& ctx, ConstTensorView grad_logits) {
  root_->backward(ctx, grad_logits, InputGrad::skipped);
}

void Model::set_observer(LayerObserver* observer) {
  root_->visit([&](Layer& layer) { layer.set_observer(observer); });
}

void Model::trace(const std::function<void(const Layer&, const Shape&)>& f) const {
  root_->trace(batch_shape(1, input_), f);
}

std::string Model::summary() const {
  std::ostringstream out;
  out << name_ << ": " << dtype_ << ", samples " << input_ << ", " << parameter_count()
      << " parameters\n";
  trace([&](const Layer& layer, const Shape& shape) {
    std::int64_t count = 0;
    for (const Parameter& p : layer.parameters()) count += p.shape.numel();
    out << "  " << std::left << std::setw(12) << layer.name() << ' ' << std::setw(36)
        << layer.describe() << ' ' << std::setw(18) << detail::concat(shape) << ' ' << std::right
        << std::setw(10) << count << '\n';
  });
  return std::move(out).str();
}

void average_buffers(Context& ctx, Model& model, comm::Communicator& comm) {
  const TensorView buffers = model.buffers();
  if (comm.size() == 1 || buffers.numel() == 0) return;
  comm.all_reduce(buffers, comm::ReduceOp::sum, ctx.stream(), "model buffers");
  ctx.stream().synchronize();
  cpu::scale(buffers, 1.0 / comm.size(), buffers);
}

}  // namespace dkfac::nn
