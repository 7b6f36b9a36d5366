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

/// What one thread needs to decode photographs, used again from one to the next.
struct PhotoScratch {
  std::vector<std::uint8_t> file{}, rows{};
  Image picture{};
  std::int64_t number = -1;                       ///< Of the photograph that is open.
  double read_s = 0, decode_s = 0, resize_s = 0;  ///< Spent, summed.
};

/// Photographs of any sizes with labels. All methods may be called by any number of threads.
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
  /// 64-bit hash, to compare what ranks have.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;

  /// Reads photograph i as far as to know its size. Throws DataError for a bad one, MissingInput
  /// and IoError when reading fails.
  virtual ImageSize open(std::int64_t i, PhotoScratch& scratch) const = 0;
  /// The pixels of the one opened last: valid until the next call. May be smaller than open() said
  /// where `options` allow it. Throws DataError for a bad one.
  virtual ImageView decode(const DecodeOptions& options, PhotoScratch& scratch) const = 0;
};

/// Files of an ImageFolder, decoded each time.
[[nodiscard]] std::shared_ptr<const PhotoSource> folder_source(PhotoSet set);

/// What a Dataset of photographs has instead of pixels.
struct PhotoData {
  std::shared_ptr<const PhotoSource> source;
  std::vector<std::int64_t> samples{};  ///< Sample i of the data set is photograph samples[i].
  PhotoOptions options{};
  Normalization normalization{};
  std::vector<ImageSize> sizes{};  ///< Of the samples, when options.rectangular.
  /// Begins the names of files that keep what was found out of the photographs; empty: none are.
  std::filesystem::path kept{};
  [[nodiscard]] std::filesystem::path kept_sizes() const;
};

/// Mean and deviation over the training images of ImageNet as everybody uses them.
[[nodiscard]] Normalization imagenet_normalization();

/// All photographs of a source. Where options.rectangular it looks for their sizes.
[[nodiscard]] Dataset photo_dataset(std::string name, std::shared_ptr<const PhotoSource> source,
                                    const PhotoOptions& options,
                                    Normalization normalization = imagenet_normalization(),
                                    const std::filesystem::path& kept = {});

/// The part of a photograph that options choose for a key. `shape`: of the image;
/// options.shape(), but for centre crops.
[[nodiscard]] PhotoView choose_view(const PhotoOptions& options, const ImageSize& picture,
                                    const ImageSize& shape, const PhotoKey& key);

/// Photograph i of a source as an 8-bit image [shape.height,shape.width,3]. Throws as PhotoSource.
void make_image(const PhotoSource& source, std::int64_t i, const PhotoOptions& options,
                const ImageSize& shape, const PhotoKey& key, std::uint8_t* out,
                PhotoScratch& scratch);

/// What is in a source.
struct PhotoReport {
  std::int64_t good = 0;
  std::vector<std::string> bad{};  ///< In order, with reasons.
  ImageSize smallest, largest;     ///< Of the good ones, by pixels.
};
/// Decodes all photographs by `workers` threads; 0: as PhotoOptions. Throws MissingInput and
/// IoError.
[[nodiscard]] PhotoReport check_photos(const PhotoSource& source, int workers = 0);

}  // namespace dkfac::data
