#include "data/cuda/image_functors.h"

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/shared/element.h"
#include "data/image_writer.h"

/// The kernel that makes batches of a resident data set, on the host, against ImageWriter.
namespace dkfac::data::cuda {
namespace {

constexpr std::size_t kImageGuard = 16;

template <class T>
std::vector<T> poisoned(std::size_t size) {
  std::vector<T> out(size);
  std::memset(static_cast<void*>(out.data()), 0xFE, size * sizeof(T));
  return out;
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(T)) == 0;
}

struct Case {
  Shape image;
  AugmentOptions options;
  bool shared;
  bool mean = false;  ///< Whether a mean image is subtracted.
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Shape image : {Shape{6, 8, 3}, Shape{5, 7, 1}, Shape{4, 4, 2}})
    for (const bool shared : {false, true}) {
      out.push_back({image, {}, shared});
      out.push_back({image, {.pad = 3, .flip = true, .cutout = 2}, shared});
      out.push_back({image, {.pad = 3, .pad_mode = PadMode::zero, .flip = true}, shared});
      if (!shared) out.push_back({image, {.flip = true, .alternate_flip = true}, false});
    }
  for (std::size_t i = 0, without = out.size(); i < without; ++i) {
    out.push_back(out[i]);
    out.back().mean = true;
  }
  return out;
}

template <class T>
void expect_images_of_the_host(const Case& c, bool offset) {
  constexpr std::int64_t kCount = 9, kBatch = 5, kSeed = 7, kEpoch = 3;
  Dataset data = synthetic_images(kCount, c.image, 4, 2);
  if (c.mean) data.mean_image = std::make_shared<const MeanImage>(find_mean_image(data).image);
  const Normalization normalization = normalization_of(data);
  const std::vector<Wide<T>> mean = mean_values<Wide<T>>(normalization, c.image);
  const std::vector<T> table = value_table<T>(normalization);
  const std::vector<std::int32_t> order{8, 0, 3, 3, 5};
  std::vector<Augmentation> choices;
  std::vector<std::int32_t> changes;
  for (std::int64_t i = 0; i < kCount; ++i) {
    // Shared choices are those of another epoch: not what is drawn here.
    choices.push_back(
        sample_augmentation(c.options, c.image, kSeed, c.shared ? kEpoch + 1 : kEpoch, i));
    const Augmentation& a = choices.back();
    changes.insert(changes.end(), {a.dy, a.dx, a.flip ? 1 : 0, a.cut_y, a.cut_x});
  }
  const std::int64_t size = data.image_size();
  const std::size_t total = static_cast<std::size_t>(kBatch * size);
  const std::size_t first = kImageGuard + (offset ? 1 : 0);
  const std::vector<T> untouched = poisoned<T>(total + 2 * kImageGuard);
  std::vector<T> images = untouched, expected = untouched;
  std::vector<std::int32_t> labels(kBatch + 2, -9);
  const bool aligned = !offset && size % static_cast<std::int64_t>(kPack<T>) == 0;
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(images.data()) % 16, 0U);
  const MakeImages<T> make{.pixels = data.pixels.data(),
                           .table = table.data(),
                           .mean = c.mean ? mean.data() : nullptr,
                           .all_labels = data.labels.data(),
                           .order = order.data(),
                           .changes = c.shared ? changes.data() : nullptr,
                           .options = c.options,
                           .augmented = c.options.any(),
                           .seed = kSeed,
                           .epoch = kEpoch,
                           .height = c.image[0],
                           .width = c.image[1],
                           .channels = c.image[2],
                           .images = images.data() + first,
                           .labels = labels.data() + 1,
                           .aligned = aligned};
  for (std::int64_t row = 0; row < kBatch; ++row)
    for (std::int64_t p = 0; p < make.packs(); ++p) make(row, p);
  const ImageWriter<T> writer(normalization, c.image, c.options);
  for (std::int64_t row = 0; row < kBatch; ++row) {
    const auto sample = static_cast<std::size_t>(order[static_cast<std::size_t>(row)]);
    const std::uint8_t* pixels = data.pixels.data() + sample * static_cast<std::size_t>(size);
    T* to = expected.data() + first + row * size;
    c.options.any() ? writer.write(pixels, choices[sample], to)
                    : writer.write(pixels, c.image[0] * c.image[1], to);
    EXPECT_EQ(labels[static_cast<std::size_t>(row) + 1], data.labels[sample]);
  }
  EXPECT_TRUE(same_bits(images.data(), expected.data(), images.size()))
      << c.image << " pad " << c.options.pad << " shared " << c.shared << " offset " << offset
      << " mean " << c.mean;
  EXPECT_EQ(labels.front(), -9);
  EXPECT_EQ(labels.back(), -9);
}

TEST(ImageFunctors, GiveTheBitsOfTheHostAndWriteNothingElse) {
  for (const Case& c : cases())
    for (const bool offset : {false, true}) {
      expect_images_of_the_host<double>(c, offset);
      expect_images_of_the_host<float>(c, offset);
      expect_images_of_the_host<bf16>(c, offset);
      expect_images_of_the_host<f16>(c, offset);
    }
}

TEST(ImageFunctors, TablesOf16BitsAreThoseOfF32Rounded) {
  const Normalization n{{0.3, 0.1}, {0.7, 0.02}};
  const auto wide = value_table<float>(n);
  const auto narrow = value_table<bf16>(n);
  const auto half = value_table<f16>(n);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(narrow[i], to_bf16(wide[i]));
    EXPECT_EQ(half[i], to_f16(wide[i]));
  }
}

}  // namespace
}  // namespace dkfac::data::cuda
