#include "probe/trainee.h"

#include <algorithm>
#include <limits>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

namespace dkfac::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<ProbeLayer> layers_of_probe(std::int64_t n) {
  Conv2dSpec conv{.in = 2, .out = 3, .window = Window::square(3)};
  conv.window.pad_h = conv.window.pad_w = 1;
  conv.bias = false;
  Conv2dSpec grouped{.in = 4, .out = 6, .window = Window::square(3)};
  grouped.window.stride_h = grouped.window.stride_w = 2;
  grouped.window.pad_h = grouped.window.pad_w = 1;
  grouped.layout = Layout::nchw;
  grouped.groups = 2;
  const NormSpec norm{.channels = 3};
  const NormSpec shift{.channels = 6, .layout = Layout::nchw, .scale = false};
  // Rows are bounded where they may be fewer than the width.
  const LinearSpec wide{.in = 70, .out = 5, .max_rows = 12}, head{.in = 5, .out = 3, .bias = false};
  const LinearSpec tokens{.in = 6, .out = 40, .max_rows = 36, .sample_rows = 3};
  return {{"conv", conv, {n, 4, 4, 2}, {n, 4, 4, 3}},
          {"norm", norm, {n, 4, 4, 3}, {n, 4, 4, 3}},
          {"grouped", grouped, {n, 4, 4, 4}, {n, 6, 2, 2}},
          {"shift", shift, {n, 6, 2, 2}, {n, 6, 2, 2}},
          {"tokens", tokens, {n, 3, 6}, {n, 3, 40}},
          {"wide", wide, {n, 70}, {n, 5}},
          {"gain", PlainSpec{.weight = 5, .bias = 2}, {n, 5}, {n, 5}},
          {"head", head, {n, 5}, {n, 3}}};
}

/// Of the gradient of one sample.
double factor_of(LossReduction reduction, double batch, int ranks) {
  if (reduction == LossReduction::local_mean) return ranks / batch;
  return reduction == LossReduction::global_mean ? 1 / batch : 1;
}

}  // namespace

std::vector<double> get(Context& ctx, ConstTensorView x) {
  Context host;
  Tensor here = Tensor::empty(host, x.shape(), x.dtype());
  std::vector<double> values(static_cast<std::size_t>(x.numel()));
  ops::copy(ctx, x, here);
  ctx.stream().synchronize();
  ops::cast(host, here, view_of(values.data(), x.shape()));
  return values;
}

void put(Context& ctx, const std::vector<double>& values, TensorView x) {
  Context host;
  Tensor here = Tensor::empty(host, x.shape(), x.dtype());
  ops::cast(host, view_of(values.data(), x.shape()), here);
  ops::copy(ctx, here, x);
}

Trainee::Trainee(const Configuration& configuration, std::shared_ptr<comm::Communicator> comm)
    : c_(configuration), comm_(std::move(comm)), ctx_(c_.device), layers_(layers_of_probe(1)) {
  c_.sgd.loss_reduction = c_.lars.loss_reduction = c_.curvature.loss_reduction = c_.reduction;
  // The wires of gradients and weights are those of an optimizer alone.
  const auto own = c_.kfac.curvature.communication;
  c_.kfac.curvature = c_.curvature;
  c_.kfac.curvature.communication.gradient_wire = own.gradient_wire;
  c_.kfac.curvature.communication.weight_wire = own.weight_wire;
  switch (c_.method) {
    case Method::sgd:
      optimizer_ = optim::make_sgd(comm_, c_.sgd, c_.device, c_.context);
      break;
    case Method::lars:
      optimizer_ = optim::make_lars(comm_, c_.lars, c_.device, c_.context);
      break;
    case Method::kfac:
      optimizer_ = optim::make_kfac(comm_, c_.kfac, c_.device, c_.context);
      break;
    case Method::foreign:
      preconditioner_.emplace(comm_, c_.curvature, c_.device, c_.context);
  }
  loss_ = Tensor::empty(ctx_, {1}, DType::f64);
  for (std::size_t i = 0; i < layers_.size(); ++i) add_parameters(i);
  ctx_.stream().synchronize();
  with_optimizer([](auto& o) { o.prepare(); });
}

Tensor Trainee::make(Shape shape, DType dtype, const std::vector<double>& values) {
  Tensor x = Tensor::empty(ctx_, shape, dtype);
  put(ctx_, values, x);
  return x;
}

void Trainee::add_parameters(std::size_t i) {
  const ProbeLayer& layer = layers_[i];
  // Ranks start apart where the optimizer brings them together.
  const auto rank = static_cast<std::uint64_t>(optimizer_ ? comm_->rank() : 0);
  const auto add = [&](const char* name, std::int64_t n, TensorView& value, TensorView& gradient) {
    if (n == 0) return;
    Random random(100 * i + static_cast<std::uint64_t>(n), rank);
    std::vector<double> start(static_cast<std::size_t>(n));
    for (double& x : start) x = c_.weight_size * (random.uniform() - 0.5);
    Parameter& p = parameters_.emplace_back();
    p = {layer.name + name, i, make({n}, c_.dtype, start), make({n}, c_.dtype, start)};
    value = p.value, gradient = p.gradient;
  };
  optim::LayerParams params;
  add("/weight/value", dkfac::weight_numel(layer.spec), params.weight, params.weight_grad);
  add("/bias/value", dkfac::bias_numel(layer.spec), params.bias, params.bias_grad);
  if (!optimizer_) {
    ids_.push_back(preconditioner_->add_layer(layer.name, layer.spec));
    grads_.push_back({ids_.back(), params.weight_grad, params.bias_grad});
    return;
  }
  if (layer.name == "tokens") params.bias_lr = 2;
  if (layer.name == "wide") params.bias_decay = 0.5;
  if (layer.name == "head") params.weight_lr = 0.5;
  ids_.push_back(optimizer_->add_layer(layer.name, layer.spec, params));
}

void Trainee::make_data(const StepPlan& plan, int step) {
  if (plan.curvature) with_optimizer([&](auto& o) { o.set_curvature(*plan.curvature); });
  scale_ = {plan.loss_scale, plan.batch};
  const Fault fault = comm_->rank() + 1 == comm_->size() ? plan.fault : Fault::none;
  records_.clear();
  for (int part = 0; part < plan.micro_batches; ++part)
    records_.push_back(make_records(plan, step, part, fault));
  for (Parameter& p : parameters_) make_gradient(plan, step, p);
  if (fault == Fault::gradient) ops::fill(ctx_, parameters_.back().gradient, kNan);
  ops::fill(ctx_, loss_, fault == Fault::loss_value ? kNan : 1.5);
  flags_.loss_nonfinite = fault == Fault::loss;
  flags_.data_error = fault == Fault::no_batch;
  flags_.loss = loss_;
  ctx_.stream().synchronize();
}

std::vector<Trainee::Record> Trainee::make_records(const StepPlan& plan, int step, int part,
                                                   Fault fault) {
  const std::int64_t n = plan.batch / comm_->size() / plan.micro_batches;
  const std::int64_t first = (comm_->rank() * plan.micro_batches + part) * n;
  const double output = plan.gradient_size * plan.loss_scale *
                        factor_of(c_.reduction, static_cast<double>(plan.batch), comm_->size());
  // Every sample has numbers of its own, whatever rank has it, around means that stay.
  const auto draw = [&](Shape shape, std::size_t stream, double size, bool equal) {
    std::vector<double> values;
    for (std::int64_t s = first; s < first + n; ++s) {
      Random random(stream + 1000 * static_cast<std::uint64_t>(step),
                    static_cast<std::uint64_t>(s));
      const double of_sample = 0.5 + random.uniform();
      for (std::int64_t i = 0; i < shape.numel() / n; ++i) {
        const double mean = static_cast<double>((i + 1) * (i + 3) % 7) / 7 - 0.4;
        values.push_back(size * (equal ? of_sample : mean + 1.4 * random.uniform() - 0.7));
      }
    }
    return values;
  };
  std::vector<Record> records;
  const std::vector<ProbeLayer> layers = layers_of_probe(n);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ProbeLayer& layer = layers[i];
    auto x = draw(layer.input, 2 * i, plan.input_size, plan.equal_columns);
    auto dy = draw(layer.output, 2 * i + 1, output, false);
    if (fault == Fault::input && i == 0) x[7] = kInf;
    if (fault == Fault::grad_output && i == 1) dy[5] = kNan;
    Record& r = records.emplace_back();
    r.input = make(layer.input, c_.data, x);
    r.grad_output = make(layer.output, c_.data, dy);
    if (const auto* norm = std::get_if<NormSpec>(&layer.spec)) {
      const auto channels = static_cast<std::size_t>(norm->channels);
      r.mean = make({norm->channels}, c_.dtype, std::vector(channels, 0.1));
      r.inv_std = make({norm->channels}, c_.dtype, std::vector(channels, 1.5));
    }
  }
  return records;
}

void Trainee::make_gradient(const StepPlan& plan, int step, Parameter& p) {
  const double ranks = comm_->size(), batch = static_cast<double>(plan.batch);
  // A Preconditioner is given what the caller has averaged.
  const double reduced = plan.loss_scale * factor_of(c_.reduction, batch, comm_->size()) * batch;
  Random random(100 + p.layer + 1000 * static_cast<std::uint64_t>(step),
                static_cast<std::uint64_t>(comm_->rank() + p.value.numel() * 16));
  const double factor = plan.gradient_size * (optimizer_ ? reduced : 1) / ranks;
  std::vector<double> values(static_cast<std::size_t>(p.value.numel()));
  for (double& x : values) x = 0.7 * factor * (random.uniform() - 0.5);
  put(ctx_, values, p.gradient);
  ops::axpby(ctx_, 0.3 * factor, p.value, 1, p.gradient);
}

/// What has been handed over may be overwritten.
void Trainee::spoil(Tensor& x) {
  if (x.is_set()) ops::fill(ctx_, x, kNan);
}

void Trainee::record(std::size_t i, Record& r, bool input) {
  const Stream stream = ctx_.stream();
  const bool norm = r.mean.is_set();
  if (std::holds_alternative<PlainSpec>(layers_[i].spec) || (input && norm)) return;
  with_optimizer([&](auto& o) {
    if (!(input ? o.wants_input(ids_[i]) : o.wants_grad_output(ids_[i]))) return;
    if (input)
      o.record_input(ids_[i], r.input, stream, scale_);
    else if (norm)
      o.record_normalization(ids_[i], r.input, r.mean, r.inv_std, r.grad_output, stream, scale_);
    else
      o.record_grad_output(ids_[i], r.grad_output, stream, scale_);
  });
  if (c_.curvature.statistics.records_valid_until_step) return;
  spoil(input || norm ? r.input : r.grad_output);
  if (norm)
    for (Tensor* x : {&r.mean, &r.inv_std, &r.grad_output}) spoil(*x);
}

void Trainee::announce(std::size_t i) {
  if (!optimizer_) return;
  optimizer_->grads_ready(ids_[i], ctx_.stream(), scale_);
  for (Parameter& p : parameters_)
    if (p.layer == i) spoil(p.gradient);
}

kfac::StepReport Trainee::step(const StepPlan& plan) {
  const std::size_t parts = flags_.data_error ? 0 : records_.size(), layers = layers_.size();
  for (std::size_t part = 0; part < parts; ++part) {
    for (std::size_t i = 0; i < layers; ++i) record(i, records_[part][i], true);
    for (std::size_t i = layers; i-- > 0;) {
      record(i, records_[part][i], false);
      if (part + 1 == parts && !c_.drawn) announce(i);
    }
  }
  for (std::size_t i = layers; parts > 0 && c_.drawn && i-- > 0;) announce(i);
  const StepArgs args{.lr = plan.lr, .flags = flags_, .momentum = plan.momentum};
  if (optimizer_) return optimizer_->step(args, ctx_.stream());
  // A rank without a batch has no gradient to reduce, either.
  if (plan.fault != Fault::no_batch)
    for (Parameter& p : parameters_)
      comm_->all_reduce(p.gradient, comm::ReduceOp::sum, ctx_.stream(), "gradient");
  const kfac::StepReport report = preconditioner_->step(grads_, ctx_.stream(), args);
  for (Parameter& p : parameters_)
    if (report.updated) ops::axpby(ctx_, -args.lr, p.gradient, 1, p.value);
  return report;
}

void Trainee::visit_state(StateVisitor& visitor) {
  with_optimizer([&](auto& o) { o.visit_state(visitor); });
}

}  // namespace dkfac::probe
