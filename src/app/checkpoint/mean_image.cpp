#include "app/checkpoint/mean_image.h"

#include <memory>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

#include "app/checkpoint/durable.h"

namespace dkfac::app {

namespace {

constexpr const char* kMeanImage = "mean_image";

}  // namespace

void write_mean_image(const std::filesystem::path& path, const data::FoundMeanImage& found,
                      const std::string& data) {
  const data::MeanImage& mean = found.image;
  const ConstTensorView view =
      view_of(mean.values.data(), {mean.height, mean.width, mean.channels});
  put_file(path, [&](const std::filesystem::path& temporary) {
    (void)safetensors::write(temporary, {safetensors::item(kMeanImage, view)},
                             {{"data", data}, {"pictures", std::to_string(found.pictures)}});
  });
}

data::MeanImage read_mean_image(const std::filesystem::path& path) {
  const safetensors::File file = safetensors::File::read(path);
  const safetensors::Entry* entry = file.find(kMeanImage);
  if (entry == nullptr || entry->shape.size() != 3 || file.data(*entry).empty() ||
      (entry->dtype != "F64" && entry->dtype != "F32"))
    throw DataError(fmt::format(
        "[mean_image] '{}' has {} as '{}', not F64 or F32 [height, width, channels]; write it with "
        "'dkfac data mean'",
        path.string(), entry == nullptr ? "nothing" : safetensors::describe(*entry), kMeanImage));
  data::MeanImage mean{
      .height = entry->shape[0], .width = entry->shape[1], .channels = entry->shape[2]};
  mean.values = file.numbers(*entry);
  for (const double value : mean.values)
    if (!(value >= 0 && value <= 1))
      throw DataError(fmt::format(
          "[mean_image] '{}' has a value of {}, and means of pixels / 255 are from 0 to 1; divide "
          "it by 255, or write it with 'dkfac data mean'",
          path.string(), value));
  return mean;
}

void attach_mean_image(const Config& config, std::initializer_list<data::Dataset*> sets) {
  if (config.data.mean_image.empty()) return;
  const auto mean =
      std::make_shared<const data::MeanImage>(read_mean_image(config.data.mean_image));
  for (data::Dataset* set : sets) {
    DKFAC_CHECK(
        mean->height >= set->height && mean->width >= set->width && mean->channels == set->channels,
        "[config] data.mean_image = \"", config.data.mean_image, "\" is of ", mean->height, "x",
        mean->width, "x", mean->channels, ", and the images are of ", set->height, "x", set->width,
        "x", set->channels, "; write another with 'dkfac data mean', of at least their size");
    set->mean_image = mean;
  }
}

std::string mean_image_text(const data::Normalization& normalization) {
  if (normalization.mean_image == nullptr) return {};
  return fmt::format("{:016x}", data::fingerprint(*normalization.mean_image));
}

void require_mean_image(const safetensors::File& model, const data::Dataset& data) {
  const std::string before = model.fact(kMeanImage);
  const std::string now =
      data.mean_image == nullptr ? "" : mean_image_text({.mean_image = data.mean_image});
  const auto text = [](const std::string& mean) {
    return mean.empty() ? std::string("no mean image") : "the mean image " + mean;
  };
  DKFAC_CHECK(before == now, "[checkpoint] '", model.source(), "' was trained with ", text(before),
              ", and data.mean_image gives ", text(now), "; give it the file of the run");
}

}  // namespace dkfac::app
