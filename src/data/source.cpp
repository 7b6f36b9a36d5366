#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/photo_data.h"

#include "data/photo_splits.h"
#include "data/pixel_sums.h"
#include "data/synthetic_photos.h"
#include "data/word_hash.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

enum class Format : std::uint8_t { idx, cifar, photos };
struct KnownSet {
  std::string_view name;
  Format format;
};
constexpr std::array<KnownSet, 5> kFileSets{{{"fashion-mnist-small", Format::idx},
                                             {"fashion-mnist", Format::idx},
                                             {"mnist", Format::idx},
                                             {"cifar-10", Format::cifar},
                                             {"image-folder", Format::photos}}};
constexpr std::int64_t kIdxClasses = 10;
constexpr int kCifarBatches = 5;
/// Name of the folder inside the published archive.
constexpr std::string_view kCifarFolder = "cifar-10-batches-bin";

/// Returns the folders with the data that come with dkfac, in order: beside the running program of
/// an installation, which may have been moved; where it was installed; in the source tree, which
/// comes first for a program of its build.
std::vector<fs::path> own_folders() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  std::vector<fs::path> out{DKFAC_INSTALL_DATA_DIR, DKFAC_SOURCE_DATA_DIR};
  if (!program.empty())
    out.insert(out.begin(), program.parent_path().parent_path() / "share/dkfac/data");
  if (program.native().starts_with(DKFAC_BUILD_DIR "/"))
    std::rotate(out.begin(), out.end() - 1, out.end());
  return out;
}

/// Returns the folders to search, in order.
std::vector<fs::path> places(const DataSource& source, Format format) {
  std::vector<fs::path> out;
  const auto below = [&](const fs::path& root) {
    out.push_back(root / source.name);
    if (format == Format::cifar) out.push_back(root / kCifarFolder);
  };
  if (!source.path.empty()) {
    out.push_back(source.path);
    below(source.path);
    return out;
  }
  const char* root = std::getenv("DKFAC_DATA");
  if (root != nullptr && *root != '\0') below(root);
  for (const fs::path& folder : own_folders()) below(folder);
  return out;
}

/// Finds the file under its published names; returns the first of them when none exists.
fs::path find_file(const fs::path& folder, std::string_view part, std::string_view kind) {
  const std::string stem = detail::concat(part, "-", kind.substr(0, kind.find('-')));
  const std::string ending(kind.substr(kind.find('-') + 1));
  const std::array<std::string, 4> names{stem + "-" + ending, stem + "-" + ending + ".gz",
                                         stem + "." + ending, stem + "." + ending + ".gz"};
  for (const std::string& name : names) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  return folder / names.front();
}

DataSplits read_idx_folder(const fs::path& folder, std::string_view name) {
  const auto read = [&](std::string_view part, std::string_view split) {
    return read_idx(find_file(folder, part, "images-idx3-ubyte"),
                    find_file(folder, part, "labels-idx1-ubyte"), kIdxClasses,
                    detail::concat(name, split));
  };
  DataSplits out{read("train", ""), read("t10k", " test")};
  const Dataset &a = out.train, &b = out.test;
  if (a.height != b.height || a.width != b.width) {
    throw DataError(detail::concat("[load_data] ", folder.string(), ": training images are ",
                                   a.height, " x ", a.width, ", test images ", b.height, " x ",
                                   b.width, "; the files do not belong together"));
  }
  return out;
}

fs::path cifar_batch(const fs::path& folder, int batch) {
  return folder / detail::concat("data_batch_", batch, ".bin");
}

DataSplits read_cifar_folder(const fs::path& folder, std::string_view name) {
  std::vector<fs::path> train;
  for (int i = 1; i <= kCifarBatches; ++i) train.push_back(cifar_batch(folder, i));
  const std::array<fs::path, 1> test{folder / "test_batch.bin"};
  return {read_cifar10(train, std::string(name)),
          read_cifar10(test, detail::concat(name, " test"))};
}

/// Returns whether the set's first file exists.
bool is_in(const fs::path& folder, Format format) {
  std::error_code ignored;
  if (format == Format::photos) return fs::is_directory(folder / "train", ignored);
  return fs::exists(format == Format::idx ? find_file(folder, "train", "images-idx3-ubyte")
                                          : cifar_batch(folder, 1),
                    ignored);
}

const KnownSet& find_set(const std::string& name) {
  std::string known = "synthetic, synthetic-photos";
  for (const KnownSet& candidate : kFileSets) {
    if (candidate.name == name) return candidate;
    known += detail::concat(", ", candidate.name);
  }
  throw InvalidArgument(
      detail::concat("[load_data] unknown data set '", name, "'; known are ", known));
}

/// Generates both splits as one set, so that they share the patterns of the classes.
DataSplits make_synthetic(const DataSource& source) {
  DKFAC_CHECK(source.synthetic_train > 0 && source.synthetic_test > 0,
              "[load_data] synthetic_train is ", source.synthetic_train, " and synthetic_test ",
              source.synthetic_test, "; both must be > 0");
  DataSplits out;
  out.train = synthetic_images(source.synthetic_train + source.synthetic_test,
                               source.synthetic_image, source.synthetic_classes, source.seed);
  hold_out(out, source.synthetic_test);
  out.test.name = "synthetic test";
  return out;
}

}  // namespace

fs::path data_folder(const DataSource& source) {
  if (source.name == "synthetic" || source.name == "synthetic-photos") return {};
  const KnownSet& set = find_set(source.name);
  std::string looked;
  for (const fs::path& place : places(source, set.format)) {
    if (is_in(place, set.format)) return place;
    looked += detail::concat("\n  ", place.string());
  }
  const std::string_view first = set.format == Format::idx
                                     ? "train-images-idx3-ubyte or train-images-idx3-ubyte.gz"
                                 : set.format == Format::cifar ? "data_batch_1.bin"
                                                               : "a folder train";
  throw MissingInput(detail::concat(
      "[load_data] no ", source.name, ": ", first, " is in none of", looked,
      "\ngive its folder as the data path, or set DKFAC_DATA to the folder that holds ",
      source.name, "/"));
}

double synthetic_bytes(const DataSource& source) {
  if (source.name == "synthetic-photos") return synthetic_photo_bytes(source);
  if (source.name != "synthetic") return 0;
  const Shape& image = source.synthetic_image;
  // Test images are generated with the others, and then moved.
  return synthetic_image_bytes(
      static_cast<double>(source.synthetic_train) + 2 * static_cast<double>(source.synthetic_test),
      static_cast<double>(image[0]) * static_cast<double>(image[1]) * static_cast<double>(image[2]),
      static_cast<double>(source.synthetic_classes));
}

namespace {

DataSplits load_values(const DataSource& source) {
  if (source.name == "synthetic") return make_synthetic(source);
  if (source.name == "synthetic-photos") return make_synthetic_photos(source);
  const KnownSet& set = find_set(source.name);
  const fs::path folder = data_folder(source);
  if (set.format == Format::photos) return load_photos(folder, source);
  return set.format == Format::idx ? read_idx_folder(folder, set.name)
                                   : read_cifar_folder(folder, set.name);
}

}  // namespace

DataSplits load_data(const DataSource& source) {
  DataSplits splits = load_values(source);
  splits.train.unit_range = splits.test.unit_range = source.unit_range;
  return splits;
}

std::string data_name_at(const fs::path& path) {
  const auto holds = [&](const KnownSet& set) {
    const auto where = places({.name = std::string(set.name), .path = path}, set.format);
    return std::ranges::any_of(where, [&](const fs::path& p) { return is_in(p, set.format); });
  };
  const std::string own = (path / "").parent_path().filename().string();
  std::string found;
  for (const KnownSet& set : kFileSets) {
    if (!holds(set)) continue;
    if (set.name == own) return own;
    // Files of the idx format look alike; "mnist", the last such set, represents any of them.
    found = set.name;
  }
  if (!found.empty()) return found;
  throw MissingInput(detail::concat("[load_data] ", path.string(),
                                    " holds no data set; expected train-images-idx3-ubyte[.gz], "
                                    "data_batch_1.bin or a folder train in it"));
}

std::vector<std::string> data_names() {
  std::vector<std::string> names;
  for (const KnownSet& set : kFileSets) names.emplace_back(set.name);
  names.insert(names.end(), {"synthetic", "synthetic-photos"});
  return names;
}

void hold_out(DataSplits& data, std::int64_t count) {
  Dataset& train = data.train;
  DKFAC_CHECK(count > 0 && count < train.count, "[hold_out] count is ", count,
              "; it must be > 0 and less than the ", train.count, " training samples");
  if (train.photos != nullptr) return hold_out_photos(data, count);
  const std::int64_t kept = train.count - count;
  const auto first_pixel = train.pixels.begin() + kept * train.image_size();
  Dataset& test = data.test;
  test = Dataset{.name = train.name + " held out",
                 .count = count,
                 .height = train.height,
                 .width = train.width,
                 .channels = train.channels,
                 .classes = train.classes,
                 .pixels = {first_pixel, train.pixels.end()},
                 .labels = {train.labels.begin() + kept, train.labels.end()}};
  train.pixels.erase(first_pixel, train.pixels.end());
  train.labels.erase(train.labels.begin() + kept, train.labels.end());
  train.count = kept;
}

std::uint64_t fingerprint(const Dataset& data) {
  WordHash hash;
  hash.mix(data.count, data.height, data.width, data.channels, data.classes);
  for (const std::int32_t label : data.labels) hash.mix(static_cast<std::uint32_t>(label));
  std::span<const std::uint8_t> rest = data.pixels;
  while (!rest.empty()) {
    const std::size_t n = std::min<std::size_t>(rest.size(), 8);
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < n; ++i) word |= std::uint64_t{rest[i]} << (8 * i);
    hash.mix(word);
    rest = rest.subspan(n);
  }
  hash.mix(data.pixels.size());
  if (data.photos != nullptr) {
    const PhotoData& photos = *data.photos;
    hash.mix(photos.source->fingerprint());
    for (const std::int64_t sample : photos.samples) hash.mix(sample);
    // Each rank may have determined the sizes independently.
    for (const ImageSize& size : photos.sizes) hash.mix(size.height, size.width);
    hash.mix_bits(photos.normalization.mean);
    hash.mix_bits(photos.normalization.stddev);
  }
  if (data.mean_image != nullptr) hash.mix(fingerprint(*data.mean_image));
  return hash.value();
}

Normalization normalization_of(const Dataset& train) {
  DKFAC_CHECK(train.count > 0 && train.channels > 0,
              "[normalization_of] the data set is empty; give at least one image");
  const auto channels = static_cast<std::size_t>(train.channels);
  if (train.mean_image != nullptr)
    return {std::vector<double>(channels, 0), std::vector<double>(channels, 1), train.mean_image};
  if (train.unit_range) return {std::vector<double>(channels, 0), std::vector<double>(channels, 1)};
  if (train.photos != nullptr) return train.photos->normalization;
  Colours colours(channels);
  colours.add(train.pixels);
  return colours.normalization();
}

}  // namespace dkfac::data
