// For photo_oracle_test.py: writes what we make of every photograph of a split.
//
//   photo_dump SPLIT SIZE OUT
//
// Prints per photograph "NAME height width" of the picture, then for two random crops and the
// centre crop "y x height width", and writes the pixels of the whole picture and of the three
// images to OUT, one after the other.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <vector>

#include "dkfac/nn/photo_data.h"

namespace {

using namespace dkfac;

void put(std::ofstream& out, const std::uint8_t* pixels, std::int64_t count) {
  out.write(reinterpret_cast<const char*>(pixels), count);
}

void dump(const nn::PhotoSet& set, std::int64_t size, const char* path) {
  std::ofstream out(path, std::ios::binary);
  const auto source = nn::folder_source(set);
  nn::PhotoScratch scratch;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(3 * size * size));
  for (std::int64_t i = 0; i < set.count(); ++i) {
    const nn::ImageSize whole = source->open(i, scratch);
    const nn::ImageView picture = source->decode({}, scratch);
    put(out, picture.pixels, 3 * picture.height * picture.width);
    std::printf("%s %lld %lld", set.files[static_cast<std::size_t>(i)].c_str(),
                static_cast<long long>(picture.height), static_cast<long long>(picture.width));
    for (const std::int64_t epoch : {0, 1, 2}) {
      nn::PhotoOptions options;
      options.size = size;
      options.resized = size * 8 / 7;
      if (epoch == 2) options.crop = nn::PhotoCrop::centre;
      const nn::PhotoKey key{.epoch = epoch, .sample = i};
      const nn::Box box = nn::choose_view(options, whole, key).from;
      nn::make_image(*source, i, options, key, image.data(), scratch);
      put(out, image.data(), 3 * size * size);
      std::printf(" %lld %lld %lld %lld", static_cast<long long>(box.y),
                  static_cast<long long>(box.x), static_cast<long long>(box.height),
                  static_cast<long long>(box.width));
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    dump(nn::read_photo_set(argv[1]), std::atoll(argv[2]), argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
