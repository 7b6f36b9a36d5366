#include "app/checkpoint/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"
#include "dkfac/nn/layers.h"

#include "app/checkpoint/convert.h"
#include "app/checkpoint/host_tensors.h"
#include "app/checkpoint/state_io.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

bool is_native(const safetensors::File& file) {
  const auto at = file.metadata().find("layout");
  return at != file.metadata().end() &&
         (at->second.starts_with("native") ||
          at->second.starts_with("convolution weights are [out, kernel_h"));
}

template <class T>
T bits_at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// Element i of data of this type of the format.
double number_at(const std::string& code, const std::byte* data, std::size_t i) {
  if (code == "F64") return bits_at<double>(data + 8 * i);
  if (code == "F32") return bits_at<float>(data + 4 * i);
  const f16 bits{bits_at<std::uint16_t>(data + 2 * i)};
  return code == "F16" ? to_float(bits) : to_float(bf16{bits.bits});
}

/// Converts all elements to the type of `to`, f32 or f64.
std::vector<std::byte> converted(const safetensors::Entry& entry, std::span<const std::byte> data,
                                 DType dtype, std::int64_t count) {
  std::vector<std::byte> out(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const double value = number_at(entry.dtype, data.data(), i);
    if (dtype == DType::f64) {
      std::memcpy(out.data() + 8 * i, &value, 8);
    } else {
      const auto narrow = static_cast<float>(value);
      std::memcpy(out.data() + 4 * i, &narrow, 4);
    }
  }
  return out;
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
  std::vector<std::int64_t> wanted;
  for (int d = 0; d < shape.ndim(); ++d) wanted.push_back(shape[d]);
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
  if (static_cast<int>(entry.shape.size()) != shape.ndim()) return false;
  for (int d = 1; d < shape.ndim(); ++d)
    if (entry.shape[static_cast<std::size_t>(d)] != shape[d]) return false;
  return entry.shape[0] != shape[0];
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
    const std::vector<std::byte> values =
        converted(*entry, file.data(*entry), t.view.dtype(), t.view.numel());
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
