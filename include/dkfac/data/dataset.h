#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/types.h"
#include "dkfac/data/photo_options.h"

namespace dkfac::data {

struct PhotoData;  // photo_data.h

/// Labelled images in memory, as they are stored: 8-bit, [n,h,w,c]; or photographs, of which
/// loaders make images of that shape as they go.
struct Dataset {
  std::string name;
  std::int64_t count = 0;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> pixels{};
  std::vector<std::int32_t> labels{};
  std::shared_ptr<const PhotoData> photos{};  ///< If set, there are no pixels here.
  [[nodiscard]] std::int64_t image_size() const { return height * width * channels; }
};

struct DataSplits {
  Dataset train, test;
};

/// Reads one pair of idx files (LeCun's MNIST format), plain or gzip by content, e.g.
/// train-images-idx3-ubyte[.gz]. Throws MissingInput for a file that is not there, DataError with
/// file, offset, what was expected and what was found for a bad magic, a size that does not match
/// the header, counts that differ, or a label outside [0, classes). Lengths are checked before
/// anything is allocated.
[[nodiscard]] Dataset read_idx(const std::filesystem::path& images,
                               const std::filesystem::path& labels, std::int64_t classes,
                               std::string name);

/// Reads batches of CIFAR-10 in the binary form (records of a label and 32x32 bytes of each red,
/// green, blue), one after the other, into [n,32,32,3]. Any number of records per file. Throws
/// MissingInput for a file that is not there, DataError for a size that is no multiple of 3073 or a
/// label above 9. The size is checked before anything is allocated.
[[nodiscard]] Dataset read_cifar10(std::span<const std::filesystem::path> files, std::string name);

/// Random smooth patterns plus noise, image [h,w,c]: each class has a weak pattern that is always
/// added and a stronger one whose sign is random, which no linear model can see. Sample i depends
/// on (seed, i) alone. Labels are uniformly random.
[[nodiscard]] Dataset synthetic_images(std::int64_t count, Shape image, std::int64_t classes,
                                       std::uint64_t seed);

/// Where data sets are looked for: `path` or `path`/<name> when a path is given, else
/// $DKFAC_DATA/<name>, else the copy in the source tree, in the installation, or in ../share/dkfac
/// of the running program. Known names: "fashion-mnist-small", "fashion-mnist", "mnist",
/// "cifar-10" (its folder may also be called cifar-10-batches-bin), "image-folder" (photographs:
/// train/CLASS/*.jpeg and val/CLASS/*.jpeg, or packed files in train/ and val/), "synthetic"
/// and "synthetic-photos" (some hundred synthetic pictures as any number of photographs).
/// Throws MissingInput listing every place it looked at, InvalidArgument for an unknown name.
struct DataSource {
  std::string name = "fashion-mnist-small";
  std::filesystem::path path{};
  std::int64_t synthetic_train = 2048, synthetic_test = 512;
  Shape synthetic_image{28, 28, 1};
  std::int64_t synthetic_classes = 10;
  std::uint64_t seed = 1;
  PhotoOptions photos{};  ///< Of the training split; the other one is shown by its centre crops.
  std::int64_t photo_test_resized = 256;  ///< Their shorter side before.
  bool photo_test_rectangular = false;    ///< PhotoOptions::rectangular of the test split.
  /// Normalise by find_photo_normalization() of the training split, not as ImageNet.
  bool photo_own_normalization = false;
  bool photo_index =
      true;  ///< Keep lists of files, and what was found out of them, in the folder of the data.
};
/// What load_data() takes for a synthetic set at its peak; 0 for one of files.
[[nodiscard]] double synthetic_bytes(const DataSource& source);
/// Polls the caller's WaitWatches (core/wait_watch.h), which may end it.
[[nodiscard]] DataSplits load_data(const DataSource& source);
/// The folder that load_data() would read; empty for a synthetic one. Throws alike.
[[nodiscard]] std::filesystem::path data_folder(const DataSource& source);
/// The name of the set whose files are in `path`, or in a folder of its name below it: the folder's
/// own name where that is one, else "cifar-10" or "mnist" by the names of the files. Throws
/// MissingInput when it holds none.
[[nodiscard]] std::string data_name_at(const std::filesystem::path& path);
[[nodiscard]] std::vector<std::string> data_names();

/// Moves the last `count` samples of `train` to `test`, replacing it: a held-out set for choosing
/// hyper-parameters without looking at the test set. Of photographs, which are sorted by class, it
/// takes samples at equal distances, and shows them as those of the test set were.
/// 0 < count < train.count.
void hold_out(DataSplits& data, std::int64_t count);

/// 64-bit hash of pixels, labels and shape, to compare what ranks have read.
[[nodiscard]] std::uint64_t fingerprint(const Dataset& data);

/// Mean and standard deviation of pixel values / 255 per channel; 1 for the deviation of a channel
/// that is constant. Of photographs what PhotoData says.
struct Normalization {
  std::vector<double> mean, stddev;
};
[[nodiscard]] Normalization normalization_of(const Dataset& train);

}  // namespace dkfac::data
