// Data sets as a whole: where they are found, synthetic ones, splits, fingerprints, normalisation.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "support/short_runs.h"
#include "support/temp_folder.h"

namespace dkfac::data {
namespace {

/// Sets or unsets DKFAC_DATA and puts it back.
class WithDataFolder {
 public:
  explicit WithDataFolder(const std::string& value) {
    if (const char* old = std::getenv("DKFAC_DATA")) old_ = old;
    value.empty() ? ::unsetenv("DKFAC_DATA") : ::setenv("DKFAC_DATA", value.c_str(), 1);
  }
  ~WithDataFolder() { old_ ? ::setenv("DKFAC_DATA", old_->c_str(), 1) : ::unsetenv("DKFAC_DATA"); }
  WithDataFolder(const WithDataFolder&) = delete;
  WithDataFolder& operator=(const WithDataFolder&) = delete;

 private:
  std::optional<std::string> old_;
};

/// One training and one test image of 1 x 1 pixel with different values.
void write_tiny_set(const std::filesystem::path& folder, unsigned char pixel,
                    const std::string& ending) {
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, std::vector<unsigned char> bytes) {
    std::ofstream out(folder / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  };
  for (const std::string split : {"train", "t10k"}) {
    write(split + "-images" + ending + "idx3-ubyte",
          {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, pixel});
    write(split + "-labels" + ending + "idx1-ubyte", {0, 0, 8, 1, 0, 0, 0, 1, 3});
  }
}

std::string missing_message(const DataSource& source) {
  try {
    (void)load_data(source);
  } catch (const MissingInput& error) {
    return error.what();
  }
  return "no MissingInput";
}

TEST(LoadData, FindsTheEmbeddedSet) {
  const WithDataFolder unset("");
  const DataSplits data = load_data({});
  EXPECT_EQ(data.train.count, 12000);
  EXPECT_EQ(data.test.count, 2000);
  EXPECT_EQ(data.train.height, 28);
  EXPECT_EQ(data.train.width, 28);
  // The published order: an ankle boot is first in both files.
  EXPECT_EQ(data.train.labels[0], 9);
  EXPECT_EQ(data.test.labels[0], 9);
  std::vector<int> of_class(10, 0);
  for (const std::int32_t label : data.train.labels) ++of_class[static_cast<std::size_t>(label)];
  EXPECT_GT(*std::ranges::min_element(of_class), 1000);
  const Normalization n = normalization_of(data.train);
  EXPECT_NEAR(n.mean[0], 0.286, 0.003);  // Of the full set: 0.2860 and 0.3530.
  EXPECT_NEAR(n.stddev[0], 0.353, 0.003);
}

TEST(LoadData, ReadsTheFullSet) {
  const char* root = std::getenv("DKFAC_DATA");
  if (root == nullptr) GTEST_SKIP() << "set DKFAC_DATA to a folder that holds fashion-mnist/";
  if (!std::filesystem::exists(std::filesystem::path(root) / "fashion-mnist")) {
    GTEST_SKIP() << root << " has no fashion-mnist/";
  }
  const DataSplits data = load_data({.name = "fashion-mnist"});
  EXPECT_EQ(data.train.count, 60000);
  EXPECT_EQ(data.test.count, 10000);
  std::vector<int> of_class(10, 0);
  for (const std::int32_t label : data.train.labels) ++of_class[static_cast<std::size_t>(label)];
  EXPECT_EQ(of_class, std::vector<int>(10, 6000));
}

TEST(LoadData, PrefersThePathToTheEnvironmentToTheEmbeddedCopy) {
  const testing::TempFolder folder;
  write_tiny_set(folder.path() / "env/fashion-mnist-small", 1, "-");
  write_tiny_set(folder.path() / "own", 2, "-");
  const WithDataFolder set((folder.path() / "env").string());
  EXPECT_EQ(load_data({}).train.pixels[0], 1);
  EXPECT_EQ(load_data({.path = folder.path() / "own"}).train.pixels[0], 2);
  EXPECT_EQ(load_data({.path = folder.path() / "env"}).train.pixels[0], 1) << "<path>/<name>";
}

TEST(LoadData, KnowsTheSpellingWithADot) {
  const testing::TempFolder folder;
  write_tiny_set(folder.path(), 5, ".");
  EXPECT_EQ(load_data({.name = "mnist", .path = folder.path()}).test.pixels[0], 5);
}

TEST(LoadData, ListsEveryPlaceItLookedAt) {
  const WithDataFolder set("/nowhere");
  const std::string message = missing_message({.name = "mnist"});
  EXPECT_NE(message.find("/nowhere/mnist"), std::string::npos) << message;
  EXPECT_NE(message.find("share/dkfac/data/mnist"), std::string::npos) << message;
  EXPECT_NE(message.find("DKFAC_DATA"), std::string::npos) << message;
  const std::string with_path = missing_message({.name = "mnist", .path = "/elsewhere"});
  EXPECT_NE(with_path.find("/elsewhere"), std::string::npos) << with_path;
  EXPECT_EQ(with_path.find("/nowhere"), std::string::npos) << "a given path is the only place";
}

TEST(LoadData, NamesTheFileThatAFolderLacks) {
  const testing::TempFolder folder;
  write_tiny_set(folder.path(), 5, "-");
  std::filesystem::remove(folder.path() / "t10k-labels-idx1-ubyte");
  const std::string message = missing_message({.name = "mnist", .path = folder.path()});
  EXPECT_NE(message.find("t10k-labels-idx1-ubyte"), std::string::npos) << message;
}

TEST(LoadData, RefusesSplitsOfDifferentShape) {
  const testing::TempFolder folder;
  write_tiny_set(folder.path(), 5, "-");
  const std::vector<unsigned char> wide{0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2};
  (void)folder.write("t10k-images-idx3-ubyte", wide);
  EXPECT_THROW((void)load_data({.name = "mnist", .path = folder.path()}), DataError);
}

TEST(LoadData, RefusesUnknownNames) {
  EXPECT_THROW((void)load_data({.name = "fashion-mnits"}), InvalidArgument);
}

TEST(Synthetic, IsEqualForEqualSeedsOnly) {
  const Dataset a = synthetic_images(50, {8, 6, 3}, 4, 7);
  EXPECT_EQ(fingerprint(a), fingerprint(synthetic_images(50, {8, 6, 3}, 4, 7)));
  EXPECT_NE(fingerprint(a), fingerprint(synthetic_images(50, {8, 6, 3}, 4, 8)));
  EXPECT_EQ(a.pixels.size(), 50U * 8 * 6 * 3);
  EXPECT_EQ(a.image_size(), 8 * 6 * 3);
}

TEST(Synthetic, SampleDoesNotDependOnTheirNumber) {
  const Dataset few = synthetic_images(10, {8, 8, 1}, 4, 7);
  const Dataset many = synthetic_images(30, {8, 8, 1}, 4, 7);
  EXPECT_TRUE(std::equal(few.pixels.begin(), few.pixels.end(), many.pixels.begin()));
  EXPECT_TRUE(std::equal(few.labels.begin(), few.labels.end(), many.labels.begin()));
}

TEST(Synthetic, RefusesEmptySets) {
  EXPECT_THROW((void)synthetic_images(0, {8, 8, 1}, 4, 7), InvalidArgument);
  EXPECT_THROW((void)synthetic_images(5, {8, 8}, 4, 7), InvalidArgument);
  EXPECT_THROW((void)synthetic_images(5, {8, 0, 1}, 4, 7), InvalidArgument);
  EXPECT_THROW((void)synthetic_images(5, {8, 8, 1}, 0, 7), InvalidArgument);
  EXPECT_THROW((void)load_data({.name = "synthetic", .synthetic_train = 0}), InvalidArgument);
}

/// Mean image of each class, centred on the mean of all: what a linear classifier can use.
std::vector<std::vector<double>> class_means(const Dataset& data) {
  const auto size = static_cast<std::size_t>(data.image_size());
  std::vector<std::vector<double>> means(static_cast<std::size_t>(data.classes),
                                         std::vector<double>(size, 0.0));
  std::vector<double> counts(means.size(), 0.0);
  for (std::size_t i = 0; i < data.labels.size(); ++i) {
    const auto label = static_cast<std::size_t>(data.labels[i]);
    ++counts[label];
    for (std::size_t j = 0; j < size; ++j) means[label][j] += data.pixels[i * size + j];
  }
  for (std::size_t k = 0; k < means.size(); ++k) {
    for (double& value : means[k]) value /= counts[k];
  }
  return means;
}

std::size_t nearest(const std::uint8_t* image, const std::vector<std::vector<double>>& points) {
  std::size_t best = 0;
  double best_distance = INFINITY;
  for (std::size_t k = 0; k < points.size(); ++k) {
    double distance = 0;
    for (std::size_t j = 0; j < points[k].size() && distance < best_distance; ++j) {
      const double d = image[j] - points[k][j];
      distance += d * d;
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = k;
    }
  }
  return best;
}

TEST(Synthetic, IsLearnableByALinearModelOnlyPartly) {
  if (dkfac::testing::kShortRuns) GTEST_SKIP() << "one thread alone learns: see the other builds";
  const DataSplits data = load_data({.name = "synthetic"});
  const auto size = static_cast<std::size_t>(data.train.image_size());
  const auto means = class_means(data.train);
  std::vector<std::vector<double>> neighbours;
  for (std::size_t i = 0; i < data.train.labels.size(); ++i) {
    const auto* image = data.train.pixels.data() + i * size;
    neighbours.emplace_back(image, image + size);
  }
  constexpr std::size_t kTested = 200;
  double linear = 0, nonlinear = 0;
  for (std::size_t i = 0; i < kTested; ++i) {
    const auto* image = data.test.pixels.data() + i * size;
    const auto label = static_cast<std::size_t>(data.test.labels[i]);
    linear += nearest(image, means) == label ? 1.0 / kTested : 0.0;
    const auto voted = data.train.labels[nearest(image, neighbours)];
    nonlinear += static_cast<std::size_t>(voted) == label ? 1.0 / kTested : 0.0;
  }
  RecordProperty("linear", std::to_string(linear));
  RecordProperty("nonlinear", std::to_string(nonlinear));
  EXPECT_GT(linear, 0.25) << "chance is 0.1";
  EXPECT_LT(linear, 0.75);
  EXPECT_GT(nonlinear, 0.85);
}

TEST(HoldOut, MovesTheLastSamples) {
  DataSplits data{synthetic_images(20, {3, 2, 2}, 3, 1), {}};
  const Dataset whole = data.train;
  hold_out(data, 6);
  EXPECT_EQ(data.train.count, 14);
  EXPECT_EQ(data.test.count, 6);
  EXPECT_EQ(data.test.classes, 3);
  EXPECT_EQ(data.test.image_size(), 12);
  auto pixels = data.train.pixels;
  pixels.insert(pixels.end(), data.test.pixels.begin(), data.test.pixels.end());
  EXPECT_EQ(pixels, whole.pixels);
  auto labels = data.train.labels;
  labels.insert(labels.end(), data.test.labels.begin(), data.test.labels.end());
  EXPECT_EQ(labels, whole.labels);
  EXPECT_THROW(hold_out(data, 0), InvalidArgument);
  EXPECT_THROW(hold_out(data, 14), InvalidArgument);
}

TEST(Fingerprint, ChangesWithEveryPart) {
  const Dataset base = synthetic_images(11, {3, 3, 1}, 3, 1);
  const std::uint64_t hash = fingerprint(base);
  for (std::size_t i = 0; i < base.pixels.size(); ++i) {
    Dataset other = base;
    other.pixels[i] = static_cast<std::uint8_t>(other.pixels[i] ^ 1);
    EXPECT_NE(fingerprint(other), hash) << "pixel " << i;
  }
  for (std::size_t i = 0; i < base.labels.size(); ++i) {
    Dataset other = base;
    ++other.labels[i];
    EXPECT_NE(fingerprint(other), hash) << "label " << i;
  }
  Dataset other = base;
  std::swap(other.pixels[0], other.pixels[98]);
  ASSERT_NE(base.pixels[0], base.pixels[98]) << "choose another seed";
  EXPECT_NE(fingerprint(other), hash) << "order";
  other = base;
  other.height = 9;
  other.width = 1;
  EXPECT_NE(fingerprint(other), hash) << "shape";
  other = base;
  other.name = "renamed";
  EXPECT_EQ(fingerprint(other), hash) << "the name is no content";
}

TEST(NormalizationOf, GivesMeanAndDeviationPerChannel) {
  Dataset data;
  data.count = 2;
  data.height = data.width = 1;
  data.channels = 2;
  data.pixels = {0, 51, 255, 51};
  const Normalization n = normalization_of(data);
  EXPECT_DOUBLE_EQ(n.mean[0], 0.5);
  EXPECT_DOUBLE_EQ(n.stddev[0], 0.5);
  EXPECT_DOUBLE_EQ(n.mean[1], 0.2);
  EXPECT_DOUBLE_EQ(n.stddev[1], 1.0) << "a constant channel";
  EXPECT_THROW((void)normalization_of(Dataset{}), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::data
