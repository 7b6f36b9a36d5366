#include "app/checkpoint/mean_image.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/run/run_one.h"
#include "support/temp_folder.h"

// Files of mean images, and which configurations take one.
namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;

data::MeanImage mean_of_sevenths() {
  data::MeanImage mean{.height = 4, .width = 3, .channels = 2};
  for (int i = 0; i < 24; ++i) mean.values.push_back(i % 8 / 7.0);
  return mean;
}

/// Writes a file with one tensor by the name of mean images.
template <class T>
std::filesystem::path written(const TempFolder& folder, const std::string& name, const Shape& shape,
                              const std::vector<T>& values) {
  const std::filesystem::path path = folder.path() / name;
  (void)safetensors::write(path, {safetensors::item("mean_image", view_of(values.data(), shape))},
                           {});
  return path;
}

std::string reading_fails_with(const std::filesystem::path& path) {
  try {
    (void)read_mean_image(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "it was read";
}

TEST(MeanImageFile, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const data::FoundMeanImage found{.image = mean_of_sevenths(), .pictures = 7};
  write_mean_image(folder.path() / "mean", found, "a set");
  const data::MeanImage back = read_mean_image(folder.path() / "mean");
  EXPECT_EQ(back.height, 4);
  EXPECT_EQ(back.width, 3);
  EXPECT_EQ(back.channels, 2);
  EXPECT_EQ(back.values, found.image.values);
  EXPECT_EQ(safetensors::File::read(folder.path() / "mean").metadata(),
            (safetensors::Metadata{{"data", "a set"}, {"pictures", "7"}}));
  const std::vector<float> narrow{0.25F, 1, 0};
  EXPECT_EQ(read_mean_image(written(folder, "f32", {1, 3, 1}, narrow)).values,
            (std::vector<double>{0.25, 1, 0}));
}

TEST(MeanImageFile, IsRefusedWithWhatItHas) {
  const TempFolder folder;
  EXPECT_THROW((void)read_mean_image(folder.path() / "none"), MissingInput);
  const std::vector<float> flat{0, 0.5F, 1};
  EXPECT_NE(reading_fails_with(written(folder, "flat", {3}, flat)).find("F32 [3]"),
            std::string::npos);
  const std::vector<std::int32_t> whole{1, 2};
  EXPECT_NE(reading_fails_with(written(folder, "whole", {1, 1, 2}, whole)).find("I32 [1, 1, 2]"),
            std::string::npos);
  (void)safetensors::write(folder.path() / "empty", {}, {});
  EXPECT_NE(reading_fails_with(folder.path() / "empty").find("nothing"), std::string::npos);
  for (const float value : {123.5F, -0.1F, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> values{0.5F, value};
    EXPECT_NE(reading_fails_with(written(folder, std::to_string(value), {1, 1, 2}, values))
                  .find("from 0 to 1"),
              std::string::npos);
  }
}

std::vector<std::string> for_synthetic(const std::string& file) {
  return {"data.name=synthetic", "data.synthetic_size=12", "data.synthetic_train=40",
          "data.mean_image=" + file};
}

TEST(MeanImageKey, ReachesBothSplitsAndTheHeldOutOne) {
  const TempFolder folder;
  const Config without = parse_config("", for_synthetic(""), "test");
  DataCache cache;
  const auto plain = cache.get(without);
  EXPECT_EQ(plain->train.mean_image, nullptr);
  const std::string file = (folder.path() / "mean").string();
  const data::FoundMeanImage found = data::find_mean_image(plain->train);
  write_mean_image(file, found, "synthetic");
  std::vector<std::string> set = for_synthetic(file);
  for (const char* more : {"data.hold_out=0", "data.hold_out=8"}) {
    set.emplace_back(more);
    const auto with = cache.get(parse_config("", set, "test"));
    for (const data::Dataset* split : {&with->train, &with->test}) {
      ASSERT_NE(split->mean_image, nullptr);
      EXPECT_EQ(split->mean_image->values, found.image.values);
    }
  }
  // Of another size than the images.
  set.emplace_back("data.synthetic_size=13");
  EXPECT_THROW((void)cache.get(parse_config("", set, "test")), InvalidArgument);
}

TEST(MeanImageKey, IsRefusedBesideWhatItReplacesOrCannotFit) {
  const std::vector<std::string> photos{"data.name=synthetic-photos", "data.mean_image=m"};
  EXPECT_EQ(parse_config("", photos, "test").data.mean_image, "m");
  for (const char* other :
       {"data.normalisation=data", "data.rectangular=true", "run.tta=five_crops"}) {
    std::vector<std::string> set = photos;
    set.emplace_back(other);
    try {
      (void)parse_config("", set, "test");
      ADD_FAILURE() << other << " was taken";
    } catch (const InvalidArgument& error) {
      const std::string key(other, std::string_view(other).find('='));
      EXPECT_NE(std::string(error.what()).find("data.mean_image"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
  // What comes after the loader works with it.
  for (const char* other : {"run.tta=flip", "augment.erase=0.5", "augment.mixup=0.4"}) {
    std::vector<std::string> set = photos;
    set.emplace_back(other);
    EXPECT_NO_THROW((void)parse_config("", set, "test")) << other;
  }
}

TEST(MeanImageOfACheckpoint, HasToBeThatOfTheData) {
  const auto checkpoint = [](const safetensors::Metadata& facts) {
    const TempFolder folder;
    (void)safetensors::write(folder.path() / "model", {}, facts);
    return safetensors::File::read(folder.path() / "model");
  };
  data::Dataset with, other;
  with.mean_image = std::make_shared<const data::MeanImage>(mean_of_sevenths());
  data::MeanImage changed = mean_of_sevenths();
  changed.values[3] = std::nextafter(changed.values[3], 1.0);
  other.mean_image = std::make_shared<const data::MeanImage>(std::move(changed));
  const safetensors::File trained_with =
      checkpoint({{"mean_image", mean_image_text({.mean_image = with.mean_image})}});
  const safetensors::File trained_without = checkpoint({});
  EXPECT_NO_THROW(require_mean_image(trained_with, with));
  EXPECT_NO_THROW(require_mean_image(trained_without, data::Dataset{}));
  EXPECT_THROW(require_mean_image(trained_with, other), InvalidArgument);
  EXPECT_THROW(require_mean_image(trained_with, data::Dataset{}), InvalidArgument);
  EXPECT_THROW(require_mean_image(trained_without, with), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::app
