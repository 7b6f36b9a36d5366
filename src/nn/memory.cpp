#include "nn/shared/memory.h"

#include <iomanip>
#include <memory>
#include <sstream>
#include <utility>

#include "dkfac/core/error.h"

#include "nn/batch_shape.h"
#include "nn/binding.h"
#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// A network to plan, bound or not.
struct Net {
  const Layer& root;
  Shape input;
  DType dtype, compute;
  ArenaSizes sizes;
};

/// Limit of elements per tensor: far more than any memory, and the bytes of a thousand such tensors
/// fit into 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

void check_sizes(const Net& net, std::int64_t batch) {
  DKFAC_CHECK(batch > 0, "[plan_memory] batch is ", batch, "; it must be > 0");
  const auto check = [&](const Shape& sample) {
    DKFAC_CHECK(sample.numel() <= kMostElements / batch, "[plan_memory] batch is ", batch,
                ", which gives a tensor of more than 2^48 elements (", sample,
                " for one image); use a smaller batch, image or model");
  };
  check(net.input);
  net.root.trace(batch_shape(1, net.input),
                 [&](const Layer&, const Shape& output) { check(output); });
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
  const PassPlan passes = plan_passes(net.root, input, mode, net.compute);
  plan.activations = passes.activations;
  plan.workspace = passes.workspace;
  plan.statistics = passes.statistics;
  plan.scratch = passes.reordered + passes.scratch;
  if (net.compute != net.dtype) {
    const auto logits = static_cast<std::size_t>(net.root.output_shape(input).numel());
    const std::size_t narrow = size_of(net.compute);
    plan.casts = static_cast<std::size_t>(input.numel()) * narrow + logits * element +
                 (mode == Mode::train ? logits * narrow : 0);
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
    constexpr double kKiB = 1024, kMiB = kKiB * kKiB;
    const bool small = static_cast<double>(bytes) < kMiB;
    out << "  " << std::left << std::setw(20) << name << std::right << std::setw(12)
        << static_cast<double>(bytes) / (small ? kKiB : kMiB) << (small ? " KiB\n" : " MiB\n");
  }
  return std::move(out).str();
}

}  // namespace dkfac::nn
