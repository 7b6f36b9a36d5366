#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>

#include "dkfac/core/error.h"
#include "dkfac/nn/model.h"

#include "nn/batch_shape.h"

namespace dkfac::nn {
namespace {

std::string full_name(const Layer& layer, const std::string& tensor) {
  return layer.name().empty() ? tensor : layer.name() + "." + tensor;
}

std::string_view parent(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
}

/// Returns candidates for a mistyped name: those of its layer, or all when there are few.
std::string candidates(const std::vector<NamedTensor>& tensors, std::string_view name) {
  constexpr std::size_t kFew = 12;
  std::vector<std::string_view> close;
  for (const NamedTensor& t : tensors) {
    if (parent(t.name) == parent(name)) close.push_back(t.name);
  }
  if (close.empty()) {
    for (const NamedTensor& t : tensors) close.push_back(t.name);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(close.size(), kFew); ++i) {
    text += (i == 0 ? "" : ", ") + std::string(close[i]);
  }
  return close.size() > kFew ? text + ", ..." : text;
}

/// Name, description, output shape and parameters of a leaf.
using Line = std::array<std::string, 4>;

PassPlan plan_sample(const Model& model, Mode mode) {
  return plan_passes(model.root(), batch_shape(1, model.input()), mode, model.compute());
}

}  // namespace

std::vector<NamedTensor> Model::named_tensors() {
  std::vector<NamedTensor> tensors;
  visit([&](Layer& layer) {
    for (const Parameter& p : layer.parameters()) {
      tensors.push_back({full_name(layer, p.name), true, p.value});
    }
    for (const Buffer& b : layer.buffers()) {
      tensors.push_back({full_name(layer, b.name), false, b.value});
    }
  });
  return tensors;
}

std::string Model::summary() const {
  std::vector<Line> lines;
  trace([&](const Layer& layer, const Shape& shape) {
    std::int64_t count = 0;
    for (const Parameter& p : layer.parameters()) count += p.shape.numel();
    lines.push_back({layer.name(), layer.describe(), detail::concat(shape), detail::concat(count)});
  });
  std::array<std::size_t, 4> width{};
  for (const Line& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) width[c] = std::max(width[c], line[c].size());
  }
  std::ostringstream out;
  out << name_ << ": " << dtype_;
  if (compute_ != dtype_) out << " computing in " << compute_;
  out << ", samples " << input_ << ", " << parameter_count() << " parameters\n";
  for (const Line& line : lines) {
    out << "  " << std::left;
    for (std::size_t c = 0; c < 3; ++c)
      out << std::setw(static_cast<int>(width[c])) << line[c] << "  ";
    out << std::right << std::setw(static_cast<int>(width[3])) << line[3] << '\n';
  }
  return std::move(out).str();
}

NamedTensor Model::tensor(std::string_view name) {
  std::vector<NamedTensor> tensors = named_tensors();
  for (NamedTensor& t : tensors) {
    if (t.name == name) return std::move(t);
  }
  throw InvalidArgument(detail::concat("[model] '", name_, "' has no tensor '", name,
                                       "'; there are ", candidates(tensors, name)));
}

double forward_flops(const Model& model) { return plan_sample(model, Mode::eval).flops; }

double training_flops(const Model& model) { return plan_sample(model, Mode::train).flops; }

}  // namespace dkfac::nn
