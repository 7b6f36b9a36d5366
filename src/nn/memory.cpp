#include "nn/shared/memory.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"

#include "nn/batch_shape.h"
#include "nn/binding.h"
#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// Walks over the layers as forward() and backward() do and notes what they hold.
class Walk {
 public:
  explicit Walk(DType compute) : compute_(compute) {}

  [[nodiscard]] std::size_t bytes(const Shape& shape) const {
    return static_cast<std::size_t>(shape.numel()) * size_of(compute_);
  }

  void train_forward(const Layer& layer, const Shape& input) {
    const Shape output = layer.output_shape(input);
    if (const auto* sequence = dynamic_cast<const Sequential*>(&layer)) {
      const std::vector<Shape> shapes = shapes_of(*sequence, input);
      for (std::size_t i = 0; i + 1 < shapes.size(); ++i) {
        train_forward(*sequence->children()[i].second, shapes[i]);
      }
    } else if (const auto* block = dynamic_cast<const Residual*>(&layer)) {
      train_forward(block->body(), input);
      if (block->shortcut() != nullptr) train_forward(*block->shortcut(), input);
      if (!block->sums_in_body()) kept += bytes(output);
    } else if (!is_view(layer)) {
      kept += bytes(output) + always_kept(layer, output);
    }
  }

  /// Leaves the output taken: true. False: it is the input, seen otherwise.
  bool eval_forward(const Layer& layer, const Shape& input) {
    if (is_view(layer)) return false;
    const Shape output = layer.output_shape(input);
    if (const auto* sequence = dynamic_cast<const Sequential*>(&layer)) {
      const std::vector<Shape> shapes = shapes_of(*sequence, input);
      bool taken = false;
      for (std::size_t i = 0; i + 1 < shapes.size(); ++i) {
        if (!eval_forward(*sequence->children()[i].second, shapes[i])) continue;
        if (std::exchange(taken, true)) give_back(bytes(shapes[i]));
      }
      return taken;
    } else if (const auto* block = dynamic_cast<const Residual*>(&layer)) {
      // Body, shortcut and, where the body does not add, the sum live side by side.
      if (block->shortcut() != nullptr) eval_forward(*block->shortcut(), input);
      eval_forward(block->body(), input);
      if (!block->sums_in_body()) {
        take(bytes(output));
        give_back(bytes(output));
      }
      if (block->shortcut() != nullptr) give_back(bytes(output));
    } else {
      kept += always_kept(layer, output);
      take(bytes(output));
    }
    return true;
  }

  /// Leaves the gradient of the input taken, if it is needed. False: that is the one of the output.
  bool backward(const Layer& layer, const Shape& input, InputGrad need) {
    if (is_view(layer)) return need == InputGrad::skipped;
    if (const auto* sequence = dynamic_cast<const Sequential*>(&layer)) {
      const std::vector<Shape> shapes = shapes_of(*sequence, input);
      const std::size_t last = need == InputGrad::needed ? 0 : sequence->first_trained();
      bool taken = false;
      for (std::size_t i = shapes.size() - 1; i-- > last;) {
        const InputGrad child_need = i == last ? need : InputGrad::needed;
        if (!backward(*sequence->children()[i].second, shapes[i], child_need)) continue;
        if (std::exchange(taken, true)) give_back(bytes(shapes[i + 1]));
      }
      return taken;
    } else if (const auto* block = dynamic_cast<const Residual*>(&layer)) {
      block_backward(*block, input, need);
    } else if (need == InputGrad::needed) {
      take(bytes(input));
    }
    return true;
  }

  std::size_t kept = 0;
  std::size_t peak = 0;

 private:
  /// Hands on memory that it was given.
  static bool is_view(const Layer& layer) {
    return dynamic_cast<const Flatten*>(&layer) != nullptr;
  }

  void take(std::size_t size) { peak = std::max(peak, live_ += size); }
  void give_back(std::size_t size) { live_ -= size; }

  /// Shapes before, between and behind the children.
  static std::vector<Shape> shapes_of(const Sequential& sequence, const Shape& input) {
    std::vector<Shape> shapes{input};
    for (const auto& [name, child] : sequence.children()) {
      shapes.push_back(child->output_shape(shapes.back()));
    }
    return shapes;
  }

  void block_backward(const Residual& block, const Shape& input, InputGrad need) {
    const bool masks = block.options().activation.kind != ActivationKind::none;
    const std::size_t masked = masks ? bytes(block.output_shape(input)) : 0;
    take(masked);
    backward(block.body(), input, need);
    if (block.shortcut() != nullptr) backward(*block.shortcut(), input, need);
    const bool sums = need == InputGrad::needed && block.shortcut() != nullptr;
    if (sums) give_back(bytes(input));  // Added to the body's gradient in place.
    give_back(masked);
  }

  /// Besides the output, in evaluation too.
  [[nodiscard]] std::size_t always_kept(const Layer& layer, const Shape& output) const {
    const auto* pool = dynamic_cast<const Pool2d*>(&layer);
    const auto* global = dynamic_cast<const GlobalPool*>(&layer);
    if (const auto* attention = dynamic_cast<const SelfAttention*>(&layer))
      return bytes(Shape{output[0], attention->heads(), output[1], output[1]});
    if (dynamic_cast<const SinusoidalPositions*>(&layer) != nullptr)
      return bytes(Shape{output[1], output[2]});
    const bool has_places = (pool != nullptr && pool->kind() == PoolKind::max) ||
                            (global != nullptr && global->kind() == PoolKind::max);
    return has_places ? static_cast<std::size_t>(output.numel()) * size_of(DType::i32) : 0;
  }

  DType compute_;
  std::size_t live_ = 0;
};

/// What a plan is made from.
struct Net {
  const Layer& root;
  Shape input;
  DType dtype, compute;
  ArenaSizes sizes;

  void trace(const std::function<void(const Layer&, const Shape&)>& f) const {
    root.trace(batch_shape(1, input), f);
  }
};

/// Weights of all convolutions in the order a library wants them, forward and backward.
std::size_t weight_scratch_bytes(const Net& net) {
  std::size_t weights = 0;
  net.trace([&](const Layer& layer, const Shape&) {
    if (dynamic_cast<const Conv2d*>(&layer) != nullptr && !layer.parameters().empty()) {
      const auto count = static_cast<std::size_t>(layer.parameters()[0].shape.numel());
      weights += 2 * count * size_of(net.compute);
    }
  });
  return weights;
}

/// What all normalisations keep, and the scratch of the largest.
NormBytes norm_bytes(const Net& net, std::int64_t batch) {
  NormBytes all;
  net.root.trace(batch_shape(batch, net.input), [&](const Layer& layer, const Shape& output) {
    const auto* norm = dynamic_cast<const NormalizingLayer*>(&layer);
    if (norm == nullptr) return;
    const NormBytes one = norm->training_bytes(output, net.compute);
    all.statistics += one.statistics;
    all.scratch = std::max(all.scratch, one.scratch);
  });
  return all;
}

/// Of one tensor. Far more than any memory, and the bytes of a thousand of them fit into 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

void check_sizes(const Net& net, std::int64_t batch) {
  DKFAC_CHECK(batch > 0, "[plan_memory] batch is ", batch, "; it must be > 0");
  const auto check = [&](const Shape& sample) {
    DKFAC_CHECK(sample.numel() <= kMostElements / batch, "[plan_memory] batch is ", batch,
                ", which gives a tensor of more than 2^48 elements (", sample,
                " for one image); use a smaller batch, image or model");
  };
  check(net.input);
  net.trace([&](const Layer&, const Shape& output) { check(output); });
}

MemoryPlan plan_of(const Net& net, std::int64_t batch, Mode mode) {
  check_sizes(net, batch);
  const Shape input = batch_shape(batch, net.input);
  const std::size_t element = size_of(net.dtype);
  MemoryPlan plan;
  plan.parameters = static_cast<std::size_t>(net.sizes.parameters) * element;
  plan.gradients = plan.parameters;
  plan.buffers = static_cast<std::size_t>(net.sizes.buffers) * element;
  plan.input = static_cast<std::size_t>(input.numel()) * element;
  const NormBytes norms = norm_bytes(net, batch);
  plan.scratch = weight_scratch_bytes(net) + norms.scratch;

  Walk walk(net.compute);
  if (mode == Mode::train) {
    walk.train_forward(net.root, input);
    walk.backward(net.root, input, InputGrad::skipped);
    plan.statistics = norms.statistics;
  } else {
    walk.eval_forward(net.root, input);
  }
  plan.activations = walk.kept;
  plan.workspace = walk.peak;
  if (net.compute != net.dtype) {
    const auto logits = static_cast<std::size_t>(net.root.output_shape(input).numel());
    plan.casts = walk.bytes(input) + logits * element +
                 (mode == Mode::train ? logits * size_of(net.compute) : 0);
  }
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const Model& model, std::int64_t batch, Mode mode) {
  return plan_of({model.root(),
                  model.input(),
                  model.dtype(),
                  model.compute(),
                  {model.parameter_count(), model.buffer_count()}},
                 batch, mode);
}

MemoryPlan plan_memory(const ModelOptions& options, std::int64_t batch, Mode mode) {
  const std::unique_ptr<Layer> root = make_layers(options);
  return plan_of({*root, options.input, options.dtype, options.compute.value_or(options.dtype),
                  arena_sizes(*root)},
                 batch, mode);
}

std::string describe(const MemoryPlan& plan) {
  const std::pair<const char*, std::size_t> items[] = {
      {"parameters", plan.parameters}, {"gradients", plan.gradients},
      {"buffers", plan.buffers},       {"activations", plan.activations},
      {"workspace", plan.workspace},   {"statistics", plan.statistics},
      {"casts", plan.casts},           {"scratch (estimate)", plan.scratch},
      {"input batch", plan.input},     {"total", plan.total()}};
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  for (const auto& [name, bytes] : items) {
    constexpr double kMiB = 1024.0 * 1024.0;
    out << "  " << std::left << std::setw(20) << name << std::right << std::setw(12)
        << static_cast<double>(bytes) / kMiB << " MiB\n";
  }
  return std::move(out).str();
}

}  // namespace dkfac::nn
