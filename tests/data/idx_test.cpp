// Readers of idx files: what is right is read exactly, what is wrong is named.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "support/temp_folder.h"

namespace dkfac::data {
namespace {

using Bytes = std::vector<unsigned char>;

void append(Bytes& out, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<unsigned char>(word >> shift));
}

Bytes header(std::initializer_list<std::uint32_t> words) {
  Bytes out;
  for (const std::uint32_t word : words) append(out, word);
  return out;
}

/// Three images of 2 x 3 pixels with values 0, 1, ..., 17.
Bytes images() {
  Bytes out = header({0x803, 3, 2, 3});
  for (int p = 0; p < 18; ++p) out.push_back(static_cast<unsigned char>(p));
  return out;
}

Bytes labels() {
  Bytes out = header({0x801, 3});
  out.insert(out.end(), {4, 0, 9});
  return out;
}

Bytes gzip(const Bytes& content) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(deflateBound(&z, content.size()) + 64);
  z.next_in = const_cast<unsigned char*>(content.data());
  z.avail_in = static_cast<uInt>(content.size());
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

Bytes first(Bytes bytes, std::size_t n) {
  bytes.resize(n);
  return bytes;
}

Dataset read(const testing::TempFolder& folder, const Bytes& image_file, const Bytes& label_file,
             std::int64_t classes = 10) {
  return read_idx(folder.write("images", image_file), folder.write("labels", label_file), classes,
                  "tiny");
}

/// The message of the DataError that reading these files gives.
std::string complaint(const Bytes& image_file, const Bytes& label_file, std::int64_t classes = 10) {
  const testing::TempFolder folder;
  try {
    (void)read(folder, image_file, label_file, classes);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

void expect_parts(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" is not in: " << message;
  }
}

class IdxForm : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] Bytes packed(const Bytes& content) const {
    return GetParam() ? gzip(content) : content;
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, IdxForm, ::testing::Bool(),
                         [](const auto& form) { return form.param ? "gzip" : "plain"; });

TEST_P(IdxForm, ReadsEveryByteInOrder) {
  const testing::TempFolder folder;
  const Dataset data = read(folder, packed(images()), packed(labels()));
  EXPECT_EQ(data.name, "tiny");
  EXPECT_EQ(data.count, 3);
  EXPECT_EQ(data.height, 2);
  EXPECT_EQ(data.width, 3);
  EXPECT_EQ(data.channels, 1);
  EXPECT_EQ(data.classes, 10);
  EXPECT_EQ(data.image_size(), 6);
  EXPECT_EQ(data.labels, (std::vector<std::int32_t>{4, 0, 9}));
  ASSERT_EQ(data.pixels.size(), 18U);
  for (std::size_t p = 0; p < 18; ++p) EXPECT_EQ(data.pixels[p], p);
}

TEST_P(IdxForm, NamesFileAndCountsOfTruncatedContent) {
  expect_parts(complaint(packed(first(images(), 30)), packed(labels())),
               {"[read_idx]", "/images", "expected 18", "truncated"});
  expect_parts(complaint(packed(images()), packed(first(labels(), 10))),
               {"/labels", "expected 3", "truncated"});
}

TEST_P(IdxForm, NamesFileAndLengthOfTruncatedHeader) {
  for (const std::size_t n : {0U, 1U, 3U, 15U}) {
    expect_parts(complaint(packed(first(images(), n)), packed(labels())),
                 {"/images", "header of 16 bytes", ("found " + std::to_string(n)).c_str()});
  }
}

TEST_P(IdxForm, SaysWhatTheMagicIsAndShouldBe) {
  Bytes wrong = images();
  wrong[3] = 0x0D;
  expect_parts(complaint(packed(wrong), packed(labels())),
               {"/images", "at byte 0", "expected magic 0x00000803", "found 0x0000080d"});
}

TEST_P(IdxForm, SeesThatImagesAndLabelsAreExchanged) {
  Bytes long_labels = header({0x801, 20});
  long_labels.resize(28);
  expect_parts(complaint(packed(long_labels), packed(images())), {"/images", "exchanged"});
}

TEST_P(IdxForm, SaysWhichLabelIsOutOfRange) {
  Bytes wrong = labels();
  wrong[9] = 10;
  expect_parts(complaint(packed(images()), packed(wrong)),
               {"/labels", "at byte 9", "from 0 to 9", "found 10"});
  expect_parts(complaint(packed(images()), packed(labels()), 9), {"at byte 10", "found 9"});
}

TEST_P(IdxForm, SaysThatCountsDiffer) {
  Bytes two = header({0x801, 2});
  two.insert(two.end(), {1, 2});
  expect_parts(complaint(packed(images()), packed(two)),
               {"/labels", "at byte 4", "expected 3 labels", "found 2"});
}

TEST_P(IdxForm, RefusesBytesAfterTheEnd) {
  Bytes longer = images();
  longer.push_back(7);
  expect_parts(complaint(packed(longer), packed(labels())),
               {"/images", "at byte 34", "more bytes"});
}

TEST_P(IdxForm, RefusesAHeaderThatPromisesMoreThanTheFileCanHold) {
  // 2^31 - 1 images of 2^16 x 2^16 pixels: 2^63 bytes, which must not be allocated first.
  const Bytes lying = header({0x803, 0x7FFFFFFF, 0x10000, 0x10000});
  expect_parts(complaint(packed(lying), packed(labels())),
               {"/images", "at byte 16", "expected 9223372032559808512"});
}

TEST_P(IdxForm, RefusesSidesAndCountsOutOfRange) {
  expect_parts(complaint(packed(header({0x803, 0, 2, 3})), packed(labels())), {"images, found 0"});
  expect_parts(complaint(packed(header({0x803, 0xFFFFFFFF, 2, 3})), packed(labels())),
               {"found 4294967295"});
  expect_parts(complaint(packed(header({0x803, 3, 0, 3})), packed(labels())), {"found 0 x 3"});
  expect_parts(complaint(packed(header({0x803, 3, 2, 0x10001})), packed(labels())),
               {"found 2 x 65537"});
}

TEST_P(IdxForm, SaysThatAFileIsMissing) {
  const testing::TempFolder folder;
  const auto file = folder.write("labels", packed(labels()));
  try {
    (void)read_idx(folder.path() / "nowhere", file, 10, "tiny");
    FAIL() << "no exception";
  } catch (const MissingInput& error) {
    expect_parts(error.what(), {"/nowhere does not exist"});
  }
  EXPECT_THROW((void)read_idx(folder.path(), file, 10, "tiny"), MissingInput) << "a folder";
}

TEST(Gzip, ReadsSeveralMembers) {
  const testing::TempFolder folder;
  const Bytes whole = images();
  Bytes members = gzip(first(whole, 20));
  const Bytes rest = gzip(Bytes(whole.begin() + 20, whole.end()));
  members.insert(members.end(), rest.begin(), rest.end());
  EXPECT_EQ(read(folder, members, labels()).pixels.back(), 17);
}

TEST(Gzip, SaysThatAStreamIsCut) {
  const Bytes packed = gzip(images());
  for (std::size_t n = 2; n < packed.size(); ++n) {
    const std::string message = complaint(first(packed, n), labels());
    expect_parts(message, {"/images"});
  }
  expect_parts(complaint(first(packed, packed.size() - 4), labels()), {"/images", "truncated"});
}

TEST(Gzip, SeesAFlippedBitAnywhereInTheContent) {
  const Bytes packed = gzip(images());
  int unnoticed = 0;
  for (std::size_t n = 10; n < packed.size(); ++n) {  // The first 10 bytes hold names and times.
    Bytes flipped = packed;
    flipped[n] = static_cast<unsigned char>(flipped[n] ^ 0x10);
    const std::string message = complaint(flipped, labels());
    if (message == "no DataError") {
      ++unnoticed;
    } else {
      expect_parts(message, {"/images"});
    }
  }
  EXPECT_LE(unnoticed, 1) << "deflate has unused bits in the byte before the checksum, no others";
}

TEST(Gzip, RefusesGarbage) {
  Bytes garbage{0x1f, 0x8b};
  for (int i = 0; i < 500; ++i) garbage.push_back(static_cast<unsigned char>(37 * i + i / 7));
  expect_parts(complaint(garbage, labels()), {"/images", "damaged gzip"});
  Bytes trailing = gzip(images());
  trailing.insert(trailing.end(), {'j', 'u', 'n', 'k'});
  expect_parts(complaint(trailing, labels()), {"/images"});
}

TEST(Gzip, StopsABombAtWhatTheHeaderPromises) {
  // 64 MB of zeros behind a header that promises 18 bytes: refused after the 19th.
  Bytes bomb = header({0x803, 3, 2, 3});
  bomb.resize(std::size_t{64} << 20);
  expect_parts(complaint(gzip(bomb), labels()), {"/images", "at byte 34", "more bytes"});
}

TEST(Idx, RefusesNumbersOfClassesThatABytesCannotHold) {
  const testing::TempFolder folder;
  EXPECT_THROW((void)read(folder, images(), labels(), 0), InvalidArgument);
  EXPECT_THROW((void)read(folder, images(), labels(), 257), InvalidArgument);
  EXPECT_EQ(read(folder, images(), labels(), 256).classes, 256);
}

}  // namespace
}  // namespace dkfac::data
