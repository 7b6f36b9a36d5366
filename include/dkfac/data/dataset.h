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

/// Mean over pictures of each pixel / 255, [height,width,channels] row-major. Of a mean image that
/// is larger than the images, the upper left part is used, as in the code of Osawa et al.
struct MeanImage {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<double> values{};
};

/// Labelled data set: 8-bit images [n,h,w,c] in memory, or photographs, which loaders decode to
/// images of that shape on the fly.
struct Dataset {
  std::string name;
  std::int64_t count = 0;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> pixels{};
  std::vector<std::int32_t> labels{};
  std::shared_ptr<const PhotoData> photos{};      ///< If set, `pixels` is empty.
  std::shared_ptr<const MeanImage> mean_image{};  ///< If set, normalization_of() is of it.
  bool unit_range = false;                        ///< normalization_of() leaves values in [0, 1].
  [[nodiscard]] std::int64_t image_size() const { return height * width * channels; }
};

struct DataSplits {
  Dataset train, test;
  std::vector<std::string> remarks{};  ///< Sentences about files that are left out.
};

/// Reads one pair of idx files (LeCun's MNIST format), plain or gzip by content, e.g.
/// train-images-idx3-ubyte[.gz]. Lengths are checked before anything is allocated.
///
/// Throws MissingInput for a missing file. Throws DataError with file, offset, expected and actual
/// value for a bad magic, a size that does not match the header, counts that differ, or a label
/// outside [0, classes).
[[nodiscard]] Dataset read_idx(const std::filesystem::path& images,
                               const std::filesystem::path& labels, std::int64_t classes,
                               std::string name);

/// Reads and concatenates CIFAR-10 batches in the binary format (records of a label and 32x32 bytes
/// of each red, green, blue) into [n,32,32,3]. A file may have any number of records; its size is
/// checked before anything is allocated. Throws MissingInput for a missing file, DataError for a
/// size that is no multiple of 3073 or a label above 9.
[[nodiscard]] Dataset read_cifar10(std::span<const std::filesystem::path> files, std::string name);

/// Generates images of shape `image` [h,w,c] from random smooth patterns plus noise. Each class has
/// a weak pattern that is always added and a stronger one of random sign, which no linear model can
/// separate. Sample i depends on (seed, i) alone. Labels are uniformly random.
[[nodiscard]] Dataset synthetic_images(std::int64_t count, Shape image, std::int64_t classes,
                                       std::uint64_t seed);

/// Name, location and options of a data set.
///
/// It is searched in `path` or `path`/<name> when a path is given, else in $DKFAC_DATA/<name>, else
/// in the copy in ../share/dkfac of the running program, in the installation, or in the source
/// tree, which comes first for programs of its build.
///
/// Known names: "fashion-mnist-small", "fashion-mnist", "mnist", "cifar-10" (its folder may also be
/// called cifar-10-batches-bin), "image-folder" (photographs: a PhotoSet in train/
/// and one in val/ or test/, or packed files there), "synthetic" and "synthetic-photos" (some
/// hundred synthetic pictures as any number of photographs).
struct DataSource {
  std::string name = "fashion-mnist-small";
  std::filesystem::path path{};
  std::int64_t synthetic_train = 2048, synthetic_test = 512;
  Shape synthetic_image{28, 28, 1};
  std::int64_t synthetic_classes = 10;
  std::uint64_t seed = 1;
  PhotoOptions photos{};  ///< Options of the training split; the test split's differ in the crop.
  PhotoCrop photo_test_crop = PhotoCrop::centre;
  std::int64_t photo_test_resized = 256;  ///< PhotoOptions::resized of the test split.
  std::int64_t photo_test_size = 0;       ///< PhotoOptions::size of the test split; 0: the same.
  bool photo_test_rectangular = false;    ///< PhotoOptions::rectangular of the test split.
  /// Normalise by find_photo_normalization() of the training split instead of ImageNet's values.
  bool photo_own_normalization = false;
  bool unit_range = false;  ///< Dataset::unit_range of both splits.
  bool photo_index = true;  ///< Cache file lists and photo facts in the folder of the data.
};
/// Returns the peak memory of load_data() in bytes for a synthetic set; 0 for one of files.
[[nodiscard]] double synthetic_bytes(const DataSource& source);
/// Reads or generates the data set. Polls the communicators of the calling thread, which may
/// end it. Throws MissingInput listing every searched location, InvalidArgument for an unknown
/// name.
[[nodiscard]] DataSplits load_data(const DataSource& source);
/// Returns the folder that load_data() would read; empty for a synthetic set. Throws as
/// load_data().
[[nodiscard]] std::filesystem::path data_folder(const DataSource& source);
/// Returns the name of the data set whose files are in `path`, or in a folder of its name below it:
/// the folder's own name if it is a known one, else "cifar-10" or "mnist" by the names of the
/// files. Throws MissingInput if there is none.
[[nodiscard]] std::string data_name_at(const std::filesystem::path& path);
[[nodiscard]] std::vector<std::string> data_names();

/// Replaces `test` by the last `count` samples of `train`: a held-out set for choosing
/// hyper-parameters without using the test set. Photographs are sorted by class, so there it
/// selects samples at equal distances, which keep the view of the test split. 0 < count <
/// train.count.
void hold_out(DataSplits& data, std::int64_t count);

/// Returns a 64-bit hash of pixels, labels, shape and mean image, to compare the data of ranks.
[[nodiscard]] std::uint64_t fingerprint(const Dataset& data);

/// How pixel values become those of the network: (value / 255 - mean) / stddev of each channel.
/// With a mean image, the mean of each channel is 0 and its deviation 1, and the value of the mean
/// image at the same place of the image, after crop and flip, is subtracted. Padding and holes are
/// 0.
struct Normalization {
  std::vector<double> mean{}, stddev{};
  std::shared_ptr<const MeanImage> mean_image{};
};
/// Returns that of the data set's mean image if it has one; none with Dataset::unit_range; else
/// mean and deviation of its pixels, where the deviation of a constant channel is 1, or
/// PhotoData::normalization of photographs.
[[nodiscard]] Normalization normalization_of(const Dataset& train);

/// Mean image of a training set.
struct FoundMeanImage {
  MeanImage image;
  std::int64_t pictures = 0, bad = 0;  ///< Pictures in the mean, damaged photographs left out.
};

/// Computes the mean over the images of a data set; of photographs over all undamaged ones, each
/// resized as a whole to [size,size]. It sums integers, so the result is the same everywhere and
/// for any number of `workers`, which is as in PhotoOptions. Polls the communicators of the calling
/// thread. Throws InvalidArgument for an empty set or a size outside 1 to 4096, DataError when all
/// photographs are damaged, MissingInput and IoError when one cannot be read.
[[nodiscard]] FoundMeanImage find_mean_image(const Dataset& train, std::int64_t size = 256,
                                             int workers = 0);

/// Returns a 64-bit hash of shape and values.
[[nodiscard]] std::uint64_t fingerprint(const MeanImage& mean);

}  // namespace dkfac::data
