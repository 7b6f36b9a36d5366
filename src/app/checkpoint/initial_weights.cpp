#include "app/checkpoint/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/layers.h"

#include "app/checkpoint/convert.h"
#include "app/checkpoint/host_tensors.h"
#include "app/checkpoint/state_io.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

bool is_native(const safetensors::File& file) {
  const std::string layout = file.fact("layout");
  return layout.starts_with("native") ||
         layout.starts_with("convolution weights are [out, kernel_h");
}

/// Converts all elements to f32 or f64.
std::vector<std::byte> converted(const std::vector<double>& values, DType dtype) {
  const auto bytes_of = [](const auto& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  if (dtype == DType::f64) return bytes_of(values);
  std::vector<float> narrow;
  for (const double value : values) narrow.push_back(static_cast<float>(value));
  return bytes_of(narrow);
}

template <class T>
std::string bad_value_of(std::span<const std::byte> values, bool variance) {
  const T* x = reinterpret_cast<const T*>(values.data());
  const T* const end = x + values.size() / sizeof(T);
  if (!std::all_of(x, end, [](T v) { return std::isfinite(v); })) return "not finite";
  return variance && std::any_of(x, end, [](T v) { return v < 0; }) ? "negative" : "";
}

/// Refuses values with which no step can be made. A value that is too large for f32 is infinite.
void check_values(const nn::NamedTensor& t, std::span<const std::byte> values,
                  const std::string& source) {
  const bool variance = t.name.ends_with(".running_var");
  const std::string bad = t.view.dtype() == DType::f64 ? bad_value_of<double>(values, variance)
                                                       : bad_value_of<float>(values, variance);
  if (!bad.empty())
    throw DataError(
        fmt::format("[init] '{}': {} has a value that is {} in {}; use a file of a "
                    "network that has been trained",
                    source, t.name, bad, detail::concat(t.view.dtype())));
}

/// Returns how the entry differs from a tensor of this shape; empty if it fits.
std::string difference(const safetensors::Entry& entry, const Shape& shape) {
  static const std::set<std::string> kTypes{"F64", "F32", "F16", "BF16"};
  const std::vector<std::int64_t> wanted = safetensors::extents(shape);
  if (kTypes.contains(entry.dtype) && entry.shape == wanted) return {};
  return fmt::format("{}, not [{}] of F64, F32, F16 or BF16", safetensors::describe(entry),
                     fmt::join(wanted, ", "));
}

/// Returns the name of the last Linear, the classifier; empty without one.
std::string classifier_of(const nn::Model& model) {
  std::string name;
  model.trace([&](const nn::Layer& layer, const Shape&) {
    if (dynamic_cast<const nn::Linear*>(&layer) != nullptr) name = layer.name();
  });
  return name;
}

/// Whether the entry has as many values for each of another number of outputs.
bool has_other_outputs(const safetensors::Entry& entry, const Shape& shape) {
  std::vector<std::int64_t> wanted = safetensors::extents(shape);
  if (entry.shape.empty() || wanted.empty() || entry.shape[0] == wanted[0]) return false;
  wanted[0] = entry.shape[0];
  return entry.shape == wanted;
}

}  // namespace

InitialWeights read_initial_weights(Context& ctx, nn::Model& model, const safetensors::File& file) {
  const bool native = is_native(file);
  const std::string head = classifier_of(model);
  const FlattenedImages images(model);
  InitialWeights out;
  std::vector<std::string> problems;
  std::set<std::string> known;
  HostTensors tensors(ctx, model);
  for (const nn::NamedTensor& t : tensors.all()) {
    known.insert(t.name);
    const bool in_head = t.name == head + ".weight" || t.name == head + ".bias";
    const Shape shape = native ? t.view.shape() : torch_shape(t);
    const safetensors::Entry* entry = file.find(t.name);
    const std::string other = entry == nullptr ? "missing" : difference(*entry, shape);
    if (!other.empty()) {
      const bool other_head = in_head && (entry == nullptr || has_other_outputs(*entry, shape));
      (other_head ? out.drawn : problems).push_back(fmt::format("{} is {}", t.name, other));
      continue;
    }
    const std::vector<std::byte> values = converted(file.numbers(*entry), t.view.dtype());
    check_values(t, values, file.source());
    if (native)
      std::memcpy(t.view.raw(), values.data(), values.size());
    else
      images.from_torch(t, values);
    ++out.taken;
  }
  for (const auto& [name, entry] : file.entries())
    if (!known.contains(name) && !name.ends_with("num_batches_tracked"))
      problems.push_back(fmt::format("{} is not expected", printable(name)));
  if (!problems.empty())
    throw DataError(fmt::format(
        "[init] '{}' does not fit the model {}: {}; use a file of that model, with torchvision's "
        "names and weights [out, in, kernel_h, kernel_w]",
        file.source(), model.name(), first_of(problems)));
  tensors.put_back();
  return out;
}

std::string describe(const InitialWeights& weights, const std::string& source) {
  std::string text = fmt::format("weights from '{}': {} tensors", source, weights.taken);
  if (!weights.drawn.empty())
    text += fmt::format("; drawn anew, because the classifier has another size: {}",
                        fmt::join(weights.drawn, "; "));
  return text;
}

}  // namespace dkfac::app
