#include <array>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "data/gzip.h"

namespace dkfac::data {
namespace {

constexpr std::int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr std::size_t kPlane = std::size_t{kSide} * kSide, kImage = kPlane * kChannels;
constexpr std::size_t kRecord = 1 + kImage;

template <class... Args>
[[noreturn]] void refuse(const ByteReader& reader, std::uint64_t offset, const Args&... args) {
  throw DataError(detail::concat("[read_cifar10] ", reader.path().string(), ": at byte ", offset,
                                 ": ", args...));
}

std::uint64_t records_of(const ByteReader& reader) {
  if (reader.is_gzip()) refuse(reader, 0, "found a gzip stream; decompress the file first");
  const std::uint64_t bytes = reader.file_bytes();
  if (bytes == 0 || bytes % kRecord != 0) {
    refuse(
        reader, bytes - bytes % kRecord, "expected records of ", kRecord, " bytes, found ",
        bytes % kRecord, " at the end of ", bytes,
        "; the file is truncated or no CIFAR-10 batch in binary form, copy or download it again");
  }
  return bytes / kRecord;
}

/// Interleaves the planes R, G, B.
void append_pixels(std::span<const std::uint8_t> planes, std::vector<std::uint8_t>& out) {
  const std::size_t first = out.size();
  out.resize(first + kImage);
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < kPlane; ++i)
      out[first + i * kChannels + c] = planes[c * kPlane + i];
  }
}

void append_file(const std::filesystem::path& path, Dataset& out) {
  ByteReader reader(path);
  const std::uint64_t records = records_of(reader);
  out.pixels.reserve(out.pixels.size() + records * kImage);
  std::array<std::uint8_t, kRecord> record{};
  for (std::uint64_t i = 0; i < records; ++i) {
    const std::size_t n = reader.read(record);
    if (n < kRecord) {
      refuse(reader, i * kRecord + n, "expected a record of ", kRecord, " bytes, found ", n,
             "; the file became shorter while it was read, copy it again");
    }
    if (record[0] >= kClasses) {
      refuse(reader, i * kRecord, "expected a label from 0 to ", kClasses - 1, ", found ",
             int{record[0]}, "; the file is damaged or no CIFAR-10 batch in binary form");
    }
    out.labels.push_back(record[0]);
    append_pixels(std::span(record).subspan(1), out.pixels);
  }
  out.count += static_cast<std::int64_t>(records);
}

}  // namespace

Dataset read_cifar10(std::span<const std::filesystem::path> files, std::string name) {
  DKFAC_CHECK(!files.empty(), "[read_cifar10] no files; give at least one");
  Dataset out;
  out.name = std::move(name);
  out.height = out.width = kSide;
  out.channels = kChannels;
  out.classes = kClasses;
  for (const std::filesystem::path& file : files) append_file(file, out);
  return out;
}

}  // namespace dkfac::data
