// For photo_oracle_test.py and torchvision_oracle_test.py.
//
//   photo_dump SPLIT SIZE OUT
//
// Writes what we make of every photograph of a split: prints "NAME height width" of the picture,
// then for two random crops and the centre crop "y x height width", and writes the pixels of the
// whole picture and of the three images to OUT, one after the other.
//
//   photo_dump boxes HEIGHT WIDTH COUNT LEAST_AREA
//
// Prints "y x height width" of random crops of one picture.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string_view>
#include <vector>

#include "dkfac/data/photo_data.h"

namespace {

using namespace dkfac;

void put(std::ofstream& out, const std::uint8_t* pixels, std::int64_t count) {
  out.write(reinterpret_cast<const char*>(pixels), count);
}

void dump(const data::PhotoSet& set, std::int64_t size, const char* path) {
  std::ofstream out(path, std::ios::binary);
  const auto source = data::folder_source(set);
  data::PhotoScratch scratch;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(3 * size * size));
  for (std::int64_t i = 0; i < set.count(); ++i) {
    const data::ImageSize whole = source->open(i, scratch);
    const data::ImageView picture = source->decode({}, scratch);
    put(out, picture.pixels, 3 * picture.height * picture.width);
    std::printf("%s %lld %lld", set.files[static_cast<std::size_t>(i)].c_str(),
                static_cast<long long>(picture.height), static_cast<long long>(picture.width));
    for (const std::int64_t epoch : {0, 1, 2}) {
      data::PhotoOptions options;
      options.size = size;
      options.resized = size * 8 / 7;
      if (epoch == 2) options.crop = data::PhotoCrop::centre;
      const data::PhotoKey key{.epoch = epoch, .sample = i};
      const data::Box box = data::choose_view(options, whole, options.shape(), key).from;
      data::make_image(*source, i, options, options.shape(), key, image.data(), scratch);
      put(out, image.data(), 3 * size * size);
      std::printf(" %lld %lld %lld %lld", static_cast<long long>(box.y),
                  static_cast<long long>(box.x), static_cast<long long>(box.height),
                  static_cast<long long>(box.width));
    }
    std::printf("\n");
  }
}

void draw_boxes(const data::ImageSize& picture, std::int64_t count, double least_area) {
  const data::RandomCropOptions options{.min_area = least_area};
  for (std::int64_t i = 0; i < count; ++i) {
    const data::Box box = data::random_resized_crop(picture, 224, options, {.sample = i}).from;
    std::printf("%lld %lld %lld %lld\n", static_cast<long long>(box.y),
                static_cast<long long>(box.x), static_cast<long long>(box.height),
                static_cast<long long>(box.width));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool boxes = argc == 6 && std::string_view(argv[1]) == "boxes";
  if (argc != 4 && !boxes) return 64;
  try {
    if (boxes)
      draw_boxes({std::atoll(argv[2]), std::atoll(argv[3])}, std::atoll(argv[4]),
                 std::atof(argv[5]));
    else
      dump(data::read_photo_set(argv[1]), std::atoll(argv[2]), argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
