#include "data/shared/photo_facts.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <string_view>

#include "dkfac/core/error.h"

#include "data/cache_file.h"
#include "data/field_io.h"
#include "data/pixel_sums.h"
#include "data/word_hash.h"
#include "data/worker_pool.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

// The marks include the version, which changes with the layout or the rules.
constexpr std::string_view kSizesMark = "dkfacsz1", kColoursMark = "dkfacno2";
constexpr std::int64_t kMostColours = 4096;  ///< Photographs in the colour statistics.

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

Colours colours_of(const PhotoSource& source, int workers) {
  PhotoOptions options;
  options.crop = PhotoCrop::centre;
  const std::int64_t count = std::min(source.count(), kMostColours);
  const auto number_of = [&](std::int64_t i) { return i * source.count() / count; };
  Colours sum = sum_photos(source, count, number_of, options, workers, Colours(3));
  if (sum.pixels() == 0)
    throw DataError("[find_photo_normalization] there is no good photograph; check the files");
  return sum;
}

struct Finding {
  ImageSize size;
  std::string bad;
};

Finding look_at(const PhotoSource& source, std::int64_t i, PhotoScratch& scratch) {
  try {
    const ImageSize size = source.open(i, scratch);
    (void)source.decode({}, scratch);
    return {size, {}};
  } catch (const DataError& error) {
    return {{}, source.name(i) + ": " + error.what()};
  }
}

std::int64_t pixels(const ImageSize& size) { return size.height * size.width; }

}  // namespace

std::vector<ImageSize> find_photo_sizes(const PhotoSource& source,
                                        std::span<const std::int64_t> numbers, int workers,
                                        const fs::path& cache_path) {
  WordHash hash(source.fingerprint());
  for (const std::int64_t number : numbers) hash.mix(number);
  const std::uint64_t key = hash.value();
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

PhotoReport check_photos(const PhotoSource& source, int workers) {
  WorkerPool pool(photo_workers(workers));
  std::vector<PhotoScratch> scratch(static_cast<std::size_t>(pool.workers()));
  std::vector<Finding> found(static_cast<std::size_t>(source.count()));
  pool.run(source.count(), [&](int worker, std::int64_t i) {
    found[static_cast<std::size_t>(i)] =
        look_at(source, i, scratch[static_cast<std::size_t>(worker)]);
  });
  PhotoReport report;
  for (Finding& finding : found) {
    if (!finding.bad.empty()) {
      report.bad.push_back(std::move(finding.bad));
      continue;
    }
    const bool first = report.good++ == 0;
    if (first || pixels(finding.size) < pixels(report.smallest)) report.smallest = finding.size;
    if (first || pixels(finding.size) > pixels(report.largest)) report.largest = finding.size;
  }
  return report;
}

}  // namespace dkfac::data
