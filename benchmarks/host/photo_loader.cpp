// Images per second of one core that reads, decodes, crops, resizes and normalises photographs as
// in training. `photos` of peers/pytorch.py compares it with Pillow.
//
//   bench_photo_loader SPLIT SIZE EPOCHS full|scaled [VIEWS]
//
// SPLIT: a folder of class folders. VIEWS: a file for "NAME y x height width" of every image in
// turn. Prints one JSON object; seconds are CPU time, which is less affected by other programs.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "dkfac/data/photo_data.h"

namespace {

using namespace dkfac;

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Computes (p / 255 - mean) / deviation by a table.
struct Normalizer {
  std::vector<float> table;
  Normalizer() {
    const data::Normalization n = data::imagenet_normalization();
    for (std::size_t p = 0; p < 256; ++p)
      for (std::size_t c = 0; c < 3; ++c)
        table.push_back(
            static_cast<float>((static_cast<double>(p) / 255 - n.mean[c]) / n.stddev[c]));
  }
  void operator()(const std::vector<std::uint8_t>& pixels, std::vector<float>& out) const {
    for (std::size_t i = 0; i < pixels.size(); i += 3)
      for (std::size_t c = 0; c < 3; ++c) out[i + c] = table[pixels[i + c] * std::size_t{3} + c];
  }
};

void write_views(const data::PhotoSet& set, const data::PhotoOptions& options, std::int64_t epochs,
                 const char* path) {
  std::ofstream out(path);
  std::vector<std::uint8_t> file;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t i = 0; i < set.count(); ++i) {
      data::read_file(set.path(i), file);
      const data::Box box = data::choose_view(options, data::jpeg_size(file), options.shape(),
                                              {.epoch = epoch, .sample = i})
                                .from;
      out << set.files[static_cast<std::size_t>(i)] << ' ' << box.y << ' ' << box.x << ' '
          << box.height << ' ' << box.width << '\n';
    }
  }
}

void measure(const data::PhotoSet& set, const data::PhotoOptions& options, std::int64_t epochs) {
  const auto source = data::folder_source(set);
  const Normalizer normalize;
  data::PhotoScratch scratch;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * options.size * options.size));
  std::vector<float> image(pixels.size());
  double sum = 0;
  const auto all = [&](std::int64_t epoch) {
    for (std::int64_t i = 0; i < set.count(); ++i) {
      data::make_image(*source, i, options, options.shape(), {.epoch = epoch, .sample = i},
                       pixels.data(), scratch);
      normalize(pixels, image);
      sum += image[static_cast<std::size_t>(i) % image.size()];
    }
  };
  all(0);  // Warms the page cache.
  scratch.read_s = scratch.decode_s = scratch.resize_s = 0;
  const double begin = processor_seconds();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) all(epoch);
  const double seconds = processor_seconds() - begin;
  const double images = static_cast<double>(set.count() * epochs);
  std::printf(
      "{\"images\": %.0f, \"size\": %lld, \"scaled\": %s, \"seconds\": %.4f, "
      "\"images_per_second\": "
      "%.2f, \"elapsed\": {\"read_s\": %.4f, \"decode_s\": %.4f, \"resize_s\": %.4f}, \"sum\": "
      "%.6f}\n",
      images, static_cast<long long>(options.size), options.scaled_decoding ? "true" : "false",
      seconds, images / seconds, scratch.read_s, scratch.decode_s, scratch.resize_s, sum);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s SPLIT SIZE EPOCHS full|scaled [VIEWS]\n", argv[0]);
    return 64;
  }
  try {
    data::PhotoOptions options;
    options.size = std::atoll(argv[2]);
    options.scaled_decoding = std::string(argv[4]) == "scaled";
    const std::int64_t epochs = std::atoll(argv[3]);
    const data::PhotoSet set = data::read_photo_set(argv[1]);
    if (argc > 5) write_views(set, options, epochs, argv[5]);
    measure(set, options, epochs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
