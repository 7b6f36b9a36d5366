#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "data/gzip.h"

namespace dkfac::data {
namespace {

constexpr std::uint32_t kImagesMagic = 0x00000803;
constexpr std::uint32_t kLabelsMagic = 0x00000801;
constexpr std::uint32_t kMaxSide = 1U << 16;

struct Hex {
  std::uint32_t value;
};
std::ostream& operator<<(std::ostream& out, Hex hex) {
  out << "0x";
  for (int shift = 28; shift >= 0; shift -= 4) out << "0123456789abcdef"[(hex.value >> shift) & 15];
  return out;
}

template <class... Args>
[[noreturn]] void fail(const ByteReader& reader, std::uint64_t offset, const Args&... args) {
  throw DataError(detail::concat("[read_idx] ", reader.path().string(), ": at byte ", offset,
                                 reader.is_gzip() ? " of the decompressed content: " : ": ",
                                 args...));
}

/// Reads the big-endian words of the header. Checks the length and the first word.
template <std::size_t N>
std::array<std::uint32_t, N> read_header(ByteReader& reader, std::uint32_t magic,
                                         std::string_view kind) {
  std::array<std::uint8_t, 4 * N> bytes{};
  const std::size_t n = reader.read(bytes);
  if (n < bytes.size()) {
    fail(reader, n, "expected a header of ", bytes.size(), " bytes, found ", n,
         "; the file is truncated, copy or download it again");
  }
  std::array<std::uint32_t, N> words{};
  for (std::size_t i = 0; i < bytes.size(); ++i) words[i / 4] = (words[i / 4] << 8) | bytes[i];
  if (words[0] != magic) {
    const bool swapped = words[0] == kImagesMagic || words[0] == kLabelsMagic;
    fail(reader, 0, "expected magic ", Hex{magic}, " (idx ", kind, "), found ", Hex{words[0]},
         swapped ? "; images and labels are exchanged" : "; this is not such a file");
  }
  return words;
}

/// Reads exactly the `promised` bytes after the header. They are compared with the capacity of the
/// file before memory is allocated, so a forged header costs nothing.
std::vector<std::uint8_t> read_payload(ByteReader& reader, std::uint64_t header,
                                       std::uint64_t promised) {
  if (header + promised > reader.max_content_bytes()) {
    fail(reader, header, "expected ", promised, " bytes as the header says, found ",
         reader.is_gzip() ? "a compressed file of " : "",
         reader.is_gzip() ? reader.file_bytes() : reader.file_bytes() - header,
         reader.is_gzip() ? " bytes, which cannot hold them" : "",
         "; the file is truncated or its header is wrong, copy or download it again");
  }
  std::vector<std::uint8_t> payload(promised);
  const std::size_t n = reader.read(payload);
  if (n < promised) {
    fail(reader, header + n, "expected ", promised, " bytes as the header says, found ", n,
         "; the file is truncated, copy or download it again");
  }
  std::array<std::uint8_t, 1> extra{};
  if (reader.read(extra) != 0) {
    fail(reader, header + promised, "expected the end of the file, found more bytes",
         "; the header and the content do not belong together, copy or download it again");
  }
  return payload;
}

Dataset read_images(const std::filesystem::path& path) {
  ByteReader reader(path);
  constexpr std::uint64_t kHeader = 16;
  const auto [magic, count, height, width] = read_header<4>(reader, kImagesMagic, "images");
  if (count == 0 || count > std::uint32_t{std::numeric_limits<std::int32_t>::max()}) {
    fail(reader, 4, "expected 1 to 2147483647 images, found ", count, "; the header is wrong");
  }
  if (height == 0 || height > kMaxSide || width == 0 || width > kMaxSide) {
    fail(reader, 8, "expected sides of 1 to ", kMaxSide, " pixels, found ", height, " x ", width,
         "; the header is wrong");
  }
  // At most 2^31 * 2^16 * 2^16 = 2^63: no overflow.
  const std::uint64_t promised = std::uint64_t{count} * height * width;
  Dataset out;
  out.count = count;
  out.height = height;
  out.width = width;
  out.channels = 1;
  out.pixels = read_payload(reader, kHeader, promised);
  return out;
}

std::vector<std::int32_t> read_labels(const std::filesystem::path& path, std::int64_t expected,
                                      std::int64_t classes) {
  ByteReader reader(path);
  constexpr std::uint64_t kHeader = 8;
  const auto [magic, count] = read_header<2>(reader, kLabelsMagic, "labels");
  if (count != expected) {
    fail(reader, 4, "expected ", expected, " labels, one for each image, found ", count,
         "; the two files do not belong together");
  }
  const std::vector<std::uint8_t> bytes = read_payload(reader, kHeader, count);
  const auto bad = std::ranges::find_if(bytes, [&](std::uint8_t b) { return b >= classes; });
  if (bad != bytes.end()) {
    fail(reader, kHeader + static_cast<std::uint64_t>(bad - bytes.begin()),
         "expected a label from 0 to ", classes - 1, ", found ", int{*bad},
         "; the file is damaged or the number of classes is wrong");
  }
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Dataset read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                 std::int64_t classes, std::string name) {
  DKFAC_CHECK(classes > 0 && classes <= 256, "[read_idx] classes is ", classes,
              "; it must be from 1 to 256");
  Dataset out = read_images(images);
  out.labels = read_labels(labels, out.count, classes);
  out.classes = classes;
  out.name = std::move(name);
  return out;
}

}  // namespace dkfac::data
