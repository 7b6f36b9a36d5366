#include "app/checkpoint/convert.h"

#include <cstring>
#include <map>

#include "dkfac/nn/layers.h"

namespace dkfac::app {

namespace {

/// Permutes [rows, h, w, c] to [rows, c, h, w].
std::vector<std::byte> channels_first(ConstTensorView x, std::int64_t rows, std::int64_t pixels,
                                      std::int64_t channels) {
  std::vector<std::byte> out(x.bytes());
  const std::size_t size = size_of(x.dtype());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t p = 0; p < pixels; ++p)
      for (std::int64_t c = 0; c < channels; ++c, from += size) {
        const std::int64_t to = (r * channels + c) * pixels + p;
        std::memcpy(out.data() + static_cast<std::size_t>(to) * size, from, size);
      }
  return out;
}

/// Returns the shapes of images that are flattened before a Linear, by the name of its layer.
std::map<std::string, Shape> flattened_images(const nn::Model& model) {
  std::map<std::string, Shape> images;
  const Shape& input = model.input();
  Shape last = input.ndim() == 3 ? Shape{1, input[0], input[1], input[2]} : Shape{};
  Shape image;  // Shape before flattening.
  model.trace([&](const nn::Layer& layer, const Shape& output) {
    if (dynamic_cast<const nn::Flatten*>(&layer) != nullptr) {
      image = last.ndim() == 4 ? last : image;
    } else if (dynamic_cast<const nn::Linear*>(&layer) != nullptr) {
      if (image.ndim() == 4) images.emplace(layer.name(), image);
      image = {};
    }
    last = output;
  });
  return images;
}

std::string layer_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

}  // namespace

TorchItems to_torch(nn::Model& model, const std::int64_t& steps) {
  TorchItems torch;
  const std::map<std::string, Shape> images = flattened_images(model);
  for (const nn::NamedTensor& t : model.named_tensors()) {
    safetensors::Item item = safetensors::item(t.name, t.view);
    const Shape& shape = t.view.shape();
    const auto image = images.find(layer_of(t.name));
    if (shape.ndim() == 4) {
      item.shape = {shape[0], shape[3], shape[1], shape[2]};
      item.data = torch.storage.emplace_back(
          channels_first(t.view, shape[0], shape[1] * shape[2], shape[3]));
    } else if (image != images.end() && shape.ndim() == 2) {
      const Shape& s = image->second;
      item.data = torch.storage.emplace_back(channels_first(t.view, shape[0], s[1] * s[2], s[3]));
    }
    torch.items.push_back(std::move(item));
    if (t.name.ends_with("running_mean"))
      torch.items.push_back(safetensors::item(layer_of(t.name) + ".num_batches_tracked", steps));
  }
  return torch;
}

}  // namespace dkfac::app
