#include "optim/quadratic_step.h"

#include <cmath>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "core/shared/index.h"

namespace dkfac::optim {
namespace {

/// Positions of the numbers that are summed over ranks: slopes, three symmetric matrices as packed
/// lower triangles, and the samples of the model.
constexpr std::int64_t kPairs = kMaxDirections * (kMaxDirections + 1) / 2;
constexpr std::int64_t kSlopes = 0, kCurvature = kMaxDirections, kInner = kCurvature + kPairs,
                       kDecay = kInner + kPairs, kModelSamples = kDecay + kPairs,
                       kSums = kModelSamples + 1;

constexpr std::int64_t packed(std::size_t row, std::size_t column) {
  return static_cast<std::int64_t>(row * (row + 1) / 2 + column);
}

Matrix3 unpacked(const double* sums, double scale) {
  Matrix3 out{};
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) out[i][j] = out[j][i] = scale * sums[packed(i, j)];
  return out;
}

}  // namespace

void check_quadratic(const KfacOptions& o) {
  const KfacOptions unset;
  const std::pair<const char*, bool> fields[] = {
      {"update", o.update != unset.update},
      {"momentum", o.momentum != unset.momentum},
      {"momentum_rule", o.momentum_rule != unset.momentum_rule},
      {"rescale", o.rescale != unset.rescale},
      {"curvature.communication.weight_wire", o.curvature.communication.weight_wire.has_value()}};
  for (const auto& [field, is_set] : fields)
    DKFAC_CHECK(!is_set, "[kfac options] ", field,
                " is set, and step_length is quadratic, whose rates are right only for the step "
                "that it makes itself; leave it out");
  DKFAC_CHECK(
      o.curvature.damping > 0,
      "[kfac options] curvature.damping is 0, which gives each layer its own, and "
      "step_length is quadratic, whose model has one for the whole step; set it, e.g. to 0.01");
}

QuadraticStep::QuadraticStep(OptimizerFrame& frame, std::span<const int> owners,
                             std::span<const Role> roles, double l2)
    : frame_(frame),
      l2_(l2),
      gathered_(frame.ctx, frame.grid, "directions", frame.blocks(owners), frame.dtype()),
      lengths_(frame.ctx, {kMaxDirections}, DType::f64),
      sums_(frame.ctx, {kSums}, DType::f64) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    layers_.push_back({.first = elements, .count = frame.layers[i].numel(), .role = roles[i]});
    has_plain_ = has_plain_ || !roles[i].curved;
    elements += layers_.back().count;
  }
  const auto zeros = [&] { return Tensor::zeros(frame.ctx, {elements}, frame.dtype()); };
  gradient_ = zeros();
  direction_ = zeros();
  last_ = zeros();
  if (has_plain_) plain_ = zeros();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    std::vector<UpdatedPart> parts;
    add_parts(frame.layers[i], layer.of(gradient_), layer.of(last_).reshape({1, layer.count}),
              parts);
    std::int64_t first = layer.first;
    for (const UpdatedPart& part : parts) {
      layer.parts.push_back({part.parameter, first, part.lr, part.decay});
      first += part.numel();
    }
  }
}

void QuadraticStep::keep(Gradients& gradients) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (!layer.role.worked_on) continue;
    const TensorView gradient = gradients.of(static_cast<int>(i));
    for (const Part& part : layer.parts)
      if (l2_ * part.decay > 0)
        ops::axpby(frame_.ctx, l2_ * part.decay, part.parameter, 1,
                   gradient.slice(0, part.first - layer.first, part.parameter.numel()));
    if (layer.role.owned) ops::copy(frame_.ctx, gradient, layer.of(gradient_));
  }
}

void QuadraticStep::gather(Gradients& gradients) {
  const auto home = [&](const Layer& layer) {
    return layer.of(layer.role.curved ? direction_ : plain_);
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (!layer.role.worked_on) continue;
    const int index = static_cast<int>(i);
    const TensorView to = gathered_.needed() ? gathered_.block(index) : home(layer);
    for (const Part& part : layer.parts) {
      const std::int64_t first = part.first - layer.first, count = part.parameter.numel();
      ops::axpby(frame_.ctx, -part.lr, gradients.of(index).slice(0, first, count), 0,
                 to.slice(0, first, count));
    }
  }
  if (!gathered_.needed()) return;
  gathered_.run();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    ops::copy(frame_.ctx, gathered_.block(static_cast<int>(i)), home(layers_[i]));
}

/// A direction of length 0, such as the last step before there was one, has no rate.
void QuadraticStep::choose_directions() {
  std::vector<TensorView> all{direction_};
  if (has_plain_) all.emplace_back(plain_);
  all.emplace_back(last_);
  for (std::size_t i = 0; i < all.size(); ++i)
    ops::dot(frame_.ctx, all[i], all[i],
             lengths_.device().slice(0, static_cast<std::int64_t>(i), 1));
  lengths_.fetch(frame_.ctx);
  frame_.ctx.stream().synchronize();
  directions_.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double length = std::sqrt(lengths_.numbers<double>()[i]);
    if (i > 0 && length == 0) continue;
    directions_.push_back({all[i], length > 0 && std::isfinite(length) ? length : 1});
  }
}

void QuadraticStep::add_product(std::int64_t index, double factor, ConstTensorView x,
                                ConstTensorView y) {
  Scratch scratch(frame_.ctx);
  const TensorView product = scratch.take({1}, DType::f64);
  ops::dot(frame_.ctx, x, y, product);
  ops::axpby(frame_.ctx, factor, product, 1, sums_.device().slice(0, index, 1));
}

/// A gradient is known to its owner alone. Of what every rank could compute, rank 0 does: so the
/// sums have the same bits on all of them, whatever their threads.
void QuadraticStep::add_inner_products() {
  for (std::size_t i = 0; i < directions_.size(); ++i)
    for (const Layer& layer : layers_)
      if (layer.role.owned)
        add_product(kSlopes + static_cast<std::int64_t>(i), 1, layer.of(gradient_),
                    layer.of(directions_[i].elements));
  if (frame_.comm->rank() != 0) return;
  for (std::size_t i = 0; i < directions_.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      const TensorView x = directions_[i].elements, y = directions_[j].elements;
      add_product(kInner + packed(i, j), 1, x, y);
      for (const Layer& layer : layers_)
        for (const Part& part : layer.parts)
          if (l2_ * part.decay > 0)
            add_product(kDecay + packed(i, j), l2_ * part.decay, part.of(x), part.of(y));
    }
}

/// Tangents are those of unit vectors: those of a long direction could leave the range of 16-bit
/// activations.
void QuadraticStep::add_curvature(const CurvatureAlong& along, Stream caller) {
  Scratch scratch(frame_.ctx);
  std::vector<ConstTensorView> units;
  for (const Direction& d : directions_) {
    const TensorView unit = scratch.take(d.elements.shape(), frame_.dtype());
    ops::axpby(frame_.ctx, 1 / d.length, d.elements, 0, unit);
    units.emplace_back(unit);
  }
  const TensorView products = scratch.take({kPairs}, DType::f64);
  frame_.join.leave(caller, frame_.ctx.stream());
  const std::int64_t samples = along(units, products, caller);
  frame_.join.enter("step", caller, frame_.ctx.stream());
  for (std::size_t i = 0; i < directions_.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j)
      ops::axpby(frame_.ctx, directions_[i].length * directions_[j].length,
                 products.slice(0, packed(i, j), 1), 1,
                 sums_.device().slice(0, kCurvature + packed(i, j), 1));
  ops::fill(frame_.ctx, sums_.device().slice(0, kModelSamples, 1), static_cast<double>(samples));
}

DirectionProducts QuadraticStep::reduce_products() {
  frame_.comm->all_reduce(sums_.device(), comm::ReduceOp::sum, frame_.ctx.stream(),
                          "quadratic model");
  sums_.fetch(frame_.ctx);
  frame_.ctx.stream().synchronize();
  const double* sums = sums_.numbers<double>();
  DirectionProducts products{.count = static_cast<int>(directions_.size())};
  for (std::size_t i = 0; i < directions_.size(); ++i)
    products.slope[i] = sums[index_of(kSlopes) + i];
  products.curvature = unpacked(sums + kCurvature, 1 / sums[kModelSamples]);
  products.inner = unpacked(sums + kInner, 1);
  products.decay = unpacked(sums + kDecay, 1);
  return products;
}

void QuadraticStep::move(const ModelStep& step, double lr, kfac::StepReport& report) {
  Context& ctx = frame_.ctx;
  if (step.used == 0) return ops::fill(ctx, last_, 0);
  const std::size_t count = directions_.size();
  const bool has_last = directions_.back().elements.raw() == last_.view().raw();
  report.model_rate = lr * step.x[0];
  report.model_change = step.change;
  report.momentum = has_last ? lr * step.x[count - 1] : 0;
  ops::axpby(ctx, report.model_rate, direction_, report.momentum, last_);
  if (count - (has_last ? 1 : 0) == 2) ops::axpby(ctx, lr * step.x[1], plain_, 1, last_);
  for (const Layer& layer : layers_)
    for (const Part& part : layer.parts) ops::axpby(ctx, 1, part.of(last_), 1, part.parameter);
}

void QuadraticStep::update(Gradients& gradients, const CurvatureAlong& along, double damping,
                           double lr, Stream caller, kfac::StepReport& report) {
  const ActivityTimer timer(report.seconds.update);
  gather(gradients);
  choose_directions();
  ops::fill(frame_.ctx, sums_.device(), 0);
  add_inner_products();
  add_curvature(along, caller);
  move(solve(reduce_products(), damping), lr, report);
}

std::int64_t QuadraticStep::bytes() const {
  std::size_t bytes = gathered_.bytes();
  for (const Tensor* x : {&gradient_, &direction_, &plain_, &last_}) bytes += x->bytes();
  return static_cast<std::int64_t>(bytes);
}

void QuadraticStep::visit_state(StateVisitor& visitor) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    visitor.tensor(frame_.layers[i].name + ".last_step", StateKind::replicated,
                   layers_[i].of(last_));
}

}  // namespace dkfac::optim
