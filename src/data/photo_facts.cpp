#include "data/shared/photo_facts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <optional>
#include <string_view>

#include "dkfac/core/error.h"

#include "data/cache_file.h"
#include "data/field_io.h"
#include "data/worker_pool.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

// The marks include the version, which changes with the layout or the rules.
constexpr std::string_view kSizesMark = "dkfacsz1", kColoursMark = "dkfacno2";
constexpr std::int64_t kMostColours = 4096;  ///< Photographs in the colour statistics.

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15U;  // Odd, so that no word is lost.
  return hash ^ (hash >> 29U);
}

/// Returns the cached numbers for a key if there are exactly `count`.
std::optional<std::vector<std::uint64_t>> recall(const fs::path& cache_path, std::string_view mark,
                                                 std::uint64_t key, std::size_t count) {
  if (cache_path.empty()) return {};
  try {
    const std::vector<std::uint8_t> content = read_cache_file(cache_path, mark);
    FieldReader in{std::span(content)};
    if (in.get<std::uint64_t>() != key || in.rest().size() != count * sizeof(std::uint64_t))
      return {};
    std::vector<std::uint64_t> out(count);
    for (std::uint64_t& word : out) word = in.get<std::uint64_t>();
    return out;
  } catch (const Error&) {
    return {};
  }
}

void store(const fs::path& cache_path, std::string_view mark, std::uint64_t key,
           std::span<const std::uint64_t> words) {
  if (cache_path.empty()) return;
  FieldWriter content;
  content.put(key);
  for (const std::uint64_t word : words) content.put(word);
  (void)write_cache_file(cache_path, mark, content.bytes());  // Only a cache.
}

/// Returns the size of a photograph; nothing if it is damaged.
std::optional<ImageSize> size_of_photo(const PhotoSource& source, std::int64_t number,
                                       PhotoScratch& scratch) {
  try {
    return source.open(number, scratch);
  } catch (const DataError&) {
    return {};
  }
}

/// Sums over pixels for each channel.
struct Colours {
  std::uint64_t pixels = 0;
  std::array<std::uint64_t, 3> sum{}, squares{};
  void add(std::span<const std::uint8_t> image) {
    pixels += image.size() / 3;
    for (std::size_t i = 0; i < image.size(); ++i) {
      const std::uint64_t p = image[i];
      sum[i % 3] += p;
      squares[i % 3] += p * p;
    }
  }
  void add(const Colours& other) {
    pixels += other.pixels;
    for (std::size_t c = 0; c < 3; ++c) {
      sum[c] += other.sum[c];
      squares[c] += other.squares[c];
    }
  }
  [[nodiscard]] Normalization normalization() const {
    Normalization out;
    const auto n = static_cast<double>(pixels);
    for (std::size_t c = 0; c < 3; ++c) {
      const double mean = static_cast<double>(sum[c]) / n;
      const double variance = static_cast<double>(squares[c]) / n - mean * mean;
      out.mean.push_back(mean / 255);
      out.stddev.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1);
    }
    return out;
  }
};

Colours colours_of(const PhotoSource& source, int workers) {
  PhotoOptions options;
  options.crop = PhotoCrop::centre;
  struct Worker {
    PhotoScratch scratch;
    std::vector<std::uint8_t> image;
    Colours colours;
  };
  WorkerPool pool(photo_workers(workers));
  std::vector<Worker> all(static_cast<std::size_t>(pool.workers()));
  const std::int64_t count = std::min(source.count(), kMostColours);
  pool.run(count, [&](int number, std::int64_t i) {
    Worker& worker = all[static_cast<std::size_t>(number)];
    worker.image.resize(static_cast<std::size_t>(options.size * options.size * 3));
    try {
      make_image(source, i * source.count() / count, options, options.shape(), {},
                 worker.image.data(), worker.scratch);
    } catch (const DataError&) {
      return;
    }
    worker.colours.add(worker.image);
  });
  Colours sum;
  for (const Worker& worker : all) sum.add(worker.colours);
  if (sum.pixels == 0)
    throw DataError("[find_photo_normalization] there is no good photograph; check the files");
  return sum;
}

}  // namespace

std::vector<ImageSize> find_photo_sizes(const PhotoSource& source,
                                        std::span<const std::int64_t> numbers, int workers,
                                        const fs::path& cache_path) {
  std::uint64_t key = source.fingerprint();
  for (const std::int64_t number : numbers) key = mixed(key, static_cast<std::uint64_t>(number));
  std::vector<ImageSize> sizes(numbers.size());
  if (const auto words = recall(cache_path, kSizesMark, key, 2 * sizes.size())) {
    for (std::size_t i = 0; i < sizes.size(); ++i)
      sizes[i] = {static_cast<std::int64_t>((*words)[2 * i]),
                  static_cast<std::int64_t>((*words)[2 * i + 1])};
    return sizes;
  }
  WorkerPool pool(photo_workers(workers));
  std::vector<PhotoScratch> scratch(static_cast<std::size_t>(pool.workers()));
  std::atomic<bool> all_good = true;
  pool.run(std::ssize(sizes), [&](int worker, std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const auto size = size_of_photo(source, numbers[at], scratch[static_cast<std::size_t>(worker)]);
    if (!size) all_good = false;
    sizes[at] = size.value_or(ImageSize{1, 1});
  });
  if (!all_good) return sizes;  // A file may be repaired without changing the fingerprint.
  std::vector<std::uint64_t> words;
  for (const ImageSize& size : sizes) {
    words.push_back(static_cast<std::uint64_t>(size.height));
    words.push_back(static_cast<std::uint64_t>(size.width));
  }
  store(cache_path, kSizesMark, key, words);
  return sizes;
}

Normalization find_photo_normalization(const PhotoSource& source, int workers,
                                       const fs::path& cache_path) {
  const std::uint64_t key = source.fingerprint();
  if (const auto words = recall(cache_path, kColoursMark, key, 6)) {
    Normalization out;
    for (std::size_t c = 0; c < 3; ++c) {
      out.mean.push_back(std::bit_cast<double>((*words)[c]));
      out.stddev.push_back(std::bit_cast<double>((*words)[3 + c]));
    }
    return out;
  }
  Normalization found = colours_of(source, workers).normalization();
  std::vector<std::uint64_t> words;
  for (const std::vector<double>* values : {&found.mean, &found.stddev})
    for (const double value : *values) words.push_back(std::bit_cast<std::uint64_t>(value));
  store(cache_path, kColoursMark, key, words);
  return found;
}

}  // namespace dkfac::data
