#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/data/dataset.h"
#include "dkfac/data/image.h"
#include "dkfac/data/photo_options.h"
#include "dkfac/data/photo_set.h"
#include "dkfac/data/photo_view.h"

namespace dkfac::data {

/// Buffers of one thread for decoding photographs, reused between photographs.
struct PhotoScratch {
  std::vector<std::uint8_t> file{}, rows{};
  Image picture{};
  std::int64_t number = -1;                       ///< Number of the open photograph.
  double read_s = 0, decode_s = 0, resize_s = 0;  ///< Accumulated seconds.
};

/// Source of labelled photographs of any sizes. All methods are thread-safe.
class PhotoSource {
 public:
  PhotoSource() = default;
  virtual ~PhotoSource() = default;
  PhotoSource(const PhotoSource&) = delete;
  PhotoSource& operator=(const PhotoSource&) = delete;

  [[nodiscard]] virtual std::int64_t count() const = 0;
  [[nodiscard]] virtual const std::vector<std::string>& classes() const = 0;
  [[nodiscard]] virtual const std::vector<std::int32_t>& labels() const = 0;
  [[nodiscard]] virtual std::string name(std::int64_t i) const = 0;  ///< For messages.
  /// Returns a sentence about files that are left out; empty for none.
  [[nodiscard]] virtual std::string remark() const { return {}; }
  /// Returns a 64-bit hash, to compare the data of ranks.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

  /// Opens photograph i and returns its size. Throws DataError for a damaged photograph,
  /// MissingInput and IoError when reading fails.
  virtual ImageSize open(std::int64_t i, PhotoScratch& scratch) const = 0;
  /// Decodes the photograph opened last; the pixels are valid until the next call. They may be
  /// smaller than the size of open() where `options` allow it. Throws DataError for a damaged one.
  virtual ImageView decode(const DecodeOptions& options, PhotoScratch& scratch) const = 0;
};

/// Returns a source that reads and decodes the files of an ImageFolder.
[[nodiscard]] std::shared_ptr<const PhotoSource> folder_source(PhotoSet set);

/// Contents of a Dataset of photographs, in place of its pixels.
struct PhotoData {
  std::shared_ptr<const PhotoSource> source;
  std::vector<std::int64_t> samples{};  ///< Sample i of the data set is photograph samples[i].
  PhotoOptions options{};
  Normalization normalization{};
  std::vector<ImageSize> sizes{};  ///< Sizes of the samples, if options.rectangular.
  /// Common prefix of the cache files with facts about the photographs; empty: no cache.
  std::filesystem::path cache_path{};
  [[nodiscard]] std::filesystem::path sizes_cache() const;
};

/// Returns the commonly used mean and deviation of the ImageNet training images.
[[nodiscard]] Normalization imagenet_normalization();

/// Returns a data set of all photographs of a source. If options.rectangular, it determines their
/// sizes.
[[nodiscard]] Dataset photo_dataset(std::string name, std::shared_ptr<const PhotoSource> source,
                                    const PhotoOptions& options,
                                    Normalization normalization = imagenet_normalization(),
                                    const std::filesystem::path& cache_path = {});

/// Chooses the view of a photograph for a key. `shape` is the shape of the image: options.shape(),
/// except for centre crops.
[[nodiscard]] PhotoView choose_view(const PhotoOptions& options, const ImageSize& picture,
                                    const ImageSize& shape, const PhotoKey& key);

/// Writes photograph i of a source as an 8-bit image [shape.height,shape.width,3]. Throws as
/// PhotoSource.
void make_image(const PhotoSource& source, std::int64_t i, const PhotoOptions& options,
                const ImageSize& shape, const PhotoKey& key, std::uint8_t* out,
                PhotoScratch& scratch);

/// Result of checking all photographs of a source.
struct PhotoReport {
  std::int64_t good = 0;
  std::vector<std::string> bad{};  ///< Damaged photographs in order, with reasons.
  ImageSize smallest, largest;     ///< Of the undamaged ones, by number of pixels.
};
/// Decodes all photographs with `workers` threads; 0: as PhotoOptions. Throws MissingInput and
/// IoError.
[[nodiscard]] PhotoReport check_photos(const PhotoSource& source, int workers = 0);

}  // namespace dkfac::data
