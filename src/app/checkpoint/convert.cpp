#include "app/checkpoint/convert.h"

#include <cstring>
#include <map>

#include "dkfac/nn/layers.h"

namespace dkfac::app {

namespace {

/// Position of a pixel's channel in memory [rows, h, w, c], and in [rows, c, h, w].
struct Permuted {
  std::size_t native, torch;
};

/// Calls f(Permuted) for every element of so many rows of images [n,h,w,c].
template <class F>
void for_each_position(std::int64_t rows, const Shape& image, F f) {
  const std::int64_t pixels = image[1] * image[2], channels = image[3];
  std::size_t native = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t p = 0; p < pixels; ++p)
      for (std::int64_t c = 0; c < channels; ++c, ++native)
        f(Permuted{native, static_cast<std::size_t>((r * channels + c) * pixels + p)});
}

/// Permutes rows [h,w,c] to [c,h,w].
std::vector<std::byte> channels_first(ConstTensorView x, const Shape& image) {
  std::vector<std::byte> out(x.bytes());
  const std::size_t size = size_of(x.dtype());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for_each_position(x.dim(0), image, [&](Permuted at) {
    std::memcpy(out.data() + at.torch * size, from + at.native * size, size);
  });
  return out;
}

std::string layer_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

}  // namespace

FlattenedImages::FlattenedImages(const nn::Model& model) {
  const Shape& input = model.input();
  Shape last = input.ndim() == 3 ? Shape{1, input[0], input[1], input[2]} : Shape{};
  Shape image;  // Shape before flattening.
  model.trace([&](const nn::Layer& layer, const Shape& output) {
    if (dynamic_cast<const nn::Flatten*>(&layer) != nullptr) {
      image = last.ndim() == 4 ? last : image;
    } else if (dynamic_cast<const nn::Linear*>(&layer) != nullptr) {
      if (image.ndim() == 4) images_.emplace(layer.name(), image);
      image = {};
    }
    last = output;
  });
}

const Shape* FlattenedImages::permuted(const nn::NamedTensor& tensor) const {
  if (tensor.view.shape().ndim() == 4) return &tensor.view.shape();
  const auto at = images_.find(layer_of(tensor.name));
  return at != images_.end() && tensor.view.shape().ndim() == 2 ? &at->second : nullptr;
}

void FlattenedImages::from_torch(const nn::NamedTensor& tensor,
                                 std::span<const std::byte> values) const {
  auto* to = static_cast<std::byte*>(tensor.view.raw());
  const std::size_t size = size_of(tensor.view.dtype());
  const Shape* s = permuted(tensor);
  if (s == nullptr) {
    std::memcpy(to, values.data(), values.size());
    return;
  }
  for_each_position(tensor.view.dim(0), *s, [&](Permuted at) {
    std::memcpy(to + at.native * size, values.data() + at.torch * size, size);
  });
}

Shape torch_shape(const nn::NamedTensor& tensor) {
  const Shape& shape = tensor.view.shape();
  return shape.ndim() == 4 ? Shape{shape[0], shape[3], shape[1], shape[2]} : shape;
}

TorchItems to_torch(nn::Model& model, const std::int64_t& steps) {
  TorchItems torch;
  const FlattenedImages images(model);
  for (const nn::NamedTensor& t : model.named_tensors()) {
    safetensors::Item item = safetensors::item(t.name, t.view);
    if (const Shape* s = images.permuted(t)) {
      item.shape = safetensors::extents(torch_shape(t));
      item.data = torch.storage.emplace_back(channels_first(t.view, *s));
    }
    torch.items.push_back(std::move(item));
    if (t.name.ends_with("running_mean"))
      torch.items.push_back(safetensors::item(layer_of(t.name) + ".num_batches_tracked", steps));
  }
  return torch;
}

}  // namespace dkfac::app
