#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/config/use.h"

namespace dkfac::app {

namespace {

data::PhotoOptions photo_options(const DataConfig& data) {
  data::PhotoOptions options;
  options.size = data.image_size;
  options.crop = data.crop;
  options.resized = data.crop_resized;
  options.random = {.min_area = data.crop_min_area,
                    .max_area = data.crop_max_area,
                    .min_aspect = 1 / data.crop_max_aspect,
                    .max_aspect = data.crop_max_aspect};
  options.scaled_decoding = data.scaled_decoding;
  options.workers = data.workers;
  options.bad = data.bad_sample;
  options.bad_limit = data.bad_limit;
  return options;
}

bool has_photos(const Config& config) {
  return config.data.name == "image-folder" || config.data.name == "synthetic-photos";
}

std::int64_t test_resized(const DataConfig& data) {
  return data.test_resized > 0 ? data.test_resized : data.image_size * 8 / 7;
}

void check_crops(const Config& config) {
  if (!takes_crops(config.run.tta)) return;
  const DataConfig& data = config.data;
  constexpr const char* kCrops = "[config] run.tta = \"five_crops\" and \"ten_crops\" ";
  DKFAC_CHECK(has_photos(config), kCrops, "cut photographs, and data.name is \"", data.name,
              "\"; use \"flip\" or \"none\"");
  DKFAC_CHECK(!data.rectangular, kCrops,
              "cut squares, and data.rectangular = true keeps the whole picture; use one of them");
  DKFAC_CHECK(
      test_resized(data) > data.image_size, kCrops, "cut data.image_size = ", data.image_size,
      " out of data.test_resized = ", test_resized(data), ", which has to be larger; raise it");
}

void check_order(const char* low_key, double low, const char* high_key, double high) {
  DKFAC_CHECK(low <= high, "[config] ", low_key, " = ", low, " is more than ", high_key, " = ",
              high, "; lower it, or raise ", high_key);
}

// Checks options that the library would refuse too, to name the keys in messages.
void check_views(const Config& config) {
  const nn::EraseOptions& erase = config.regularize.erase;
  check_order("augment.erase_min_area", erase.min_area, "augment.erase_max_area", erase.max_area);
  check_order("augment.erase_min_aspect", erase.min_aspect, "augment.erase_max_aspect",
              erase.max_aspect);
  if (!has_photos(config)) return;
  const DataConfig& data = config.data;
  check_order("data.crop_min_area", data.crop_min_area, "data.crop_max_area", data.crop_max_area);
  if (data.crop != data::PhotoCrop::random_resized)
    check_order("data.image_size", static_cast<double>(data.image_size), "data.crop_resized",
                static_cast<double>(data.crop_resized));
  if (data.test_crop == data::PhotoCrop::centre) return;
  DKFAC_CHECK(
      !data.rectangular,
      "[config] data.rectangular = true keeps the aspect of test images, and data.test_crop "
      "= \"squashed\" does not; use one of them");
  if (data.test_resized > 0)
    check_order("data.image_size", static_cast<double>(data.image_size), "data.test_resized",
                static_cast<double>(data.test_resized));
}

void check_mean_image(const Config& config) {
  const DataConfig& data = config.data;
  if (data.mean_image.empty()) return;
  const std::string both = "[config] data.mean_image = \"" + shortened(data.mean_image) +
                           "\" is subtracted from images of ";
  DKFAC_CHECK(!has_photos(config) || data.normalisation == PhotoColours::imagenet, both,
              "data.normalisation = \"data\", which it replaces; use one of them");
  DKFAC_CHECK(!has_photos(config) || !data.rectangular, both,
              "one shape, and data.rectangular = true has others; use one of them");
  DKFAC_CHECK(!takes_crops(config.run.tta), both,
              "the network's size, and run.tta cuts these out of larger ones; use \"flip\" or "
              "\"none\"");
}

void check_path(const DataConfig& data) {
  DKFAC_CHECK(data.path.empty() || !data.name.starts_with("synthetic"), "[config] data.name = \"",
              data.name, "\" reads no files, and data.path is \"", shortened(data.path),
              "\"; leave data.path out (--set data.path=), or name the data set of that folder");
}

}  // namespace

void check_pictures(const Config& config) {
  check_path(config.data);
  check_crops(config);
  check_views(config);
  check_mean_image(config);
  if (has_photos(config)) photo_options(config.data).validate();
}

data::DataSource data_source(const Config& config) {
  const DataConfig& data = config.data;
  data::DataSource source;
  source.name = data.name;
  source.path = data.path;
  source.synthetic_train = data.synthetic_train;
  source.synthetic_test = data.synthetic_test;
  source.synthetic_image = Shape{data.synthetic_size, data.synthetic_size, data.synthetic_channels};
  source.synthetic_classes = data.synthetic_classes;
  source.seed = data.synthetic_seed;
  source.photos = photo_options(data);
  source.photo_test_resized = test_resized(data);
  if (takes_crops(config.run.tta)) source.photo_test_size = source.photo_test_resized;
  source.photo_test_crop = data.test_crop;
  source.photo_test_rectangular = data.rectangular;
  source.photo_own_normalization = data.normalisation == PhotoColours::data;
  source.photo_index = data.index;
  source.unit_range = loss_of(config) != TrainLoss::softmax;
  return source;
}

}  // namespace dkfac::app
