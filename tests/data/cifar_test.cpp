// CIFAR-10 in binary form: generated files, broken files, and the published set where it is.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "support/temp_folder.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<unsigned char>;

constexpr std::size_t kRecord = 3073, kPlane = 1024;

/// Sample i of a file has label (first + i) % 10; its value in plane c at position p follows from
/// all of them.
unsigned char pixel(std::size_t sample, std::size_t c, std::size_t p) {
  return static_cast<unsigned char>((31 * sample + 101 * c + 7 * p) % 251);
}

Bytes records(std::size_t first, std::size_t count) {
  Bytes out;
  for (std::size_t i = first; i < first + count; ++i) {
    out.push_back(static_cast<unsigned char>(i % 10));
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t p = 0; p < kPlane; ++p) out.push_back(pixel(i, c, p));
    }
  }
  return out;
}

/// Six batches of two images, numbered 0 to 11.
void write_set(const testing::TempFolder& folder, const std::string& below = "") {
  fs::create_directories(folder.path() / below);
  for (std::size_t i = 0; i < 5; ++i) {
    (void)folder.write(below + "data_batch_" + std::to_string(i + 1) + ".bin", records(2 * i, 2));
  }
  (void)folder.write(below + "test_batch.bin", records(10, 2));
}

template <class Exception, class Body>
std::string refusal_message(Body&& body) {
  try {
    (void)body();
  } catch (const Exception& error) {
    return error.what();
  }
  return "not thrown";
}

void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(ReadCifar10, TurnsPlanesIntoPixels) {
  const testing::TempFolder folder;
  const std::vector<fs::path> files{folder.write("a", records(0, 3)),
                                    folder.write("b", records(3, 1))};
  const Dataset data = read_cifar10(files, "tiny");
  EXPECT_EQ(data.name, "tiny");
  EXPECT_EQ(data.count, 4);
  EXPECT_EQ(data.height, 32);
  EXPECT_EQ(data.width, 32);
  EXPECT_EQ(data.channels, 3);
  EXPECT_EQ(data.classes, 10);
  EXPECT_EQ(data.labels, (std::vector<std::int32_t>{0, 1, 2, 3}));
  ASSERT_EQ(data.pixels.size(), 4 * 3 * kPlane);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t p = 0; p < kPlane; ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        ASSERT_EQ(data.pixels[(i * kPlane + p) * 3 + c], pixel(i, c, p)) << i << ' ' << p;
      }
    }
  }
}

TEST(ReadCifar10, RefusesAnySizeThatIsNoMultipleOfARecord) {
  const testing::TempFolder folder;
  const Bytes whole = records(0, 2);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kRecord - 1, kRecord + 1, 2 * kRecord - 1}) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const std::vector<fs::path> file{folder.write("cut.bin", part)};
    const auto message = refusal_message<DataError>([&] { return read_cifar10(file, ""); });
    expect_has(message, {"[read_cifar10]", "cut.bin", "3073", "; "});
  }
}

TEST(ReadCifar10, NamesTheFileAndByteOfABadLabel) {
  const testing::TempFolder folder;
  Bytes bytes = records(0, 3);
  bytes[2 * kRecord] = 10;
  const std::vector<fs::path> file{folder.write("bad.bin", bytes)};
  expect_has(refusal_message<DataError>([&] { return read_cifar10(file, ""); }),
             {"bad.bin", "at byte 6146", "0 to 9", "found 10"});
}

TEST(ReadCifar10, RefusesACompressedFileAndAMissingOne) {
  const testing::TempFolder folder;
  Bytes bytes = records(0, 1);
  bytes[0] = 0x1f;
  bytes[1] = 0x8b;
  const std::vector<fs::path> zipped{folder.write("zipped.bin", bytes)};
  expect_has(refusal_message<DataError>([&] { return read_cifar10(zipped, ""); }), {"decompress"});
  const std::vector<fs::path> missing{folder.path() / "none.bin"};
  expect_has(refusal_message<MissingInput>([&] { return read_cifar10(missing, ""); }),
             {"none.bin"});
  EXPECT_THROW((void)read_cifar10({}, ""), InvalidArgument);
}

TEST(LoadCifar10, ReadsFiveTrainingBatchesAndTheTestBatch) {
  for (const std::string below : {"", "cifar-10/", "cifar-10-batches-bin/"}) {
    const testing::TempFolder folder;
    write_set(folder, below);
    const DataSplits data = load_data({.name = "cifar-10", .path = folder.path()});
    EXPECT_EQ(data.train.labels, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(data.test.labels, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(data.test.pixels[0], pixel(10, 0, 0));
    EXPECT_EQ(data.train.name, "cifar-10");
    EXPECT_EQ(data.test.name, "cifar-10 test");
  }
}

TEST(LoadCifar10, NamesAllPlacesOrTheFileThatIsMissing) {
  const testing::TempFolder folder;
  const DataSource source{.name = "cifar-10", .path = folder.path()};
  const auto load = [&] { return load_data(source); };
  expect_has(refusal_message<MissingInput>(load),
             {"data_batch_1.bin", folder.path().string() + "\n",
              (folder.path() / "cifar-10").string() + "\n",
              (folder.path() / "cifar-10-batches-bin").string() + "\n", "DKFAC_DATA"});
  write_set(folder);
  fs::remove(folder.path() / "data_batch_4.bin");
  expect_has(refusal_message<MissingInput>(load), {"data_batch_4.bin"});
}

/// The published files, or the reason why they are not here.
std::string absent() {
  const char* root = std::getenv("DKFAC_DATA");
  if (root == nullptr) return "set DKFAC_DATA to a folder that holds cifar-10-batches-bin/";
  for (const char* name : {"cifar-10", "cifar-10-batches-bin"}) {
    if (fs::exists(fs::path(root) / name / "data_batch_1.bin")) return "";
  }
  return std::string(root) + " has no cifar-10/ or cifar-10-batches-bin/";
}

TEST(LoadCifar10, ReadsThePublishedSet) {
  if (const std::string reason = absent(); !reason.empty()) GTEST_SKIP() << reason;
  const DataSplits data = load_data({.name = "cifar-10"});
  ASSERT_EQ(data.train.count, 50000);
  ASSERT_EQ(data.test.count, 10000);
  // Frog, truck, truck, deer, automobile; cat, ship, ship, airplane, frog.
  const auto first = [](const Dataset& d) {
    return std::vector<std::int32_t>(d.labels.begin(), d.labels.begin() + 5);
  };
  EXPECT_EQ(first(data.train), (std::vector<std::int32_t>{6, 9, 9, 4, 1}));
  EXPECT_EQ(first(data.test), (std::vector<std::int32_t>{3, 8, 8, 0, 6}));
  // The first pixel of the first training image is (59, 62, 63).
  EXPECT_EQ(std::vector<int>(data.train.pixels.begin(), data.train.pixels.begin() + 3),
            (std::vector<int>{59, 62, 63}));
  std::vector<int> of_class(10, 0);
  for (const std::int32_t label : data.train.labels) ++of_class[static_cast<std::size_t>(label)];
  EXPECT_EQ(of_class, std::vector<int>(10, 5000));
  const Normalization n = normalization_of(data.train);
  const double mean[] = {0.4914, 0.4822, 0.4465}, stddev[] = {0.2470, 0.2435, 0.2616};
  for (std::size_t c = 0; c < 3; ++c) {  // Published with four digits.
    EXPECT_NEAR(n.mean[c], mean[c], 6e-5);
    EXPECT_NEAR(n.stddev[c], stddev[c], 6e-5);
  }
  EXPECT_EQ(fingerprint(data.train), 0xde87f7422e6021dfU);
  EXPECT_EQ(fingerprint(data.test), 0xe9d23b39a8d5cc83U);
}

}  // namespace
}  // namespace dkfac::data
