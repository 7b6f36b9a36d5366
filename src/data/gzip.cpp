#include "data/gzip.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include <zlib.h>

#include "dkfac/core/error.h"

#include "core/shared/wait_watch.h"

namespace dkfac::data {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
constexpr int kGzipWindow = 15 + 16;        // Largest window; gzip wrapper only.
constexpr std::uint64_t kMaxRatio = 1032;   // Deflate cannot pack 258 bytes into less than 2 bits.
constexpr std::uint64_t kRatioSlack = 258;  // One unfinished match.

std::uint64_t checked_size(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw MissingInput(detail::concat("[read_data] ", path.string(),
                                      " does not exist; check the path or set DKFAC_DATA"));
  }
  if (error) {
    throw IoError(detail::concat("[read_data] cannot examine ", path.string(), ": ",
                                 error.message(), "; check the permissions of its folders"));
  }
  if (status.type() != std::filesystem::file_type::regular) {
    throw MissingInput(
        detail::concat("[read_data] ", path.string(), " is not a file; give the file itself"));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    throw IoError(detail::concat("[read_data] cannot examine ", path.string(), ": ",
                                 error.message(), "; check the storage"));
  }
  return size;
}

}  // namespace

struct ByteReader::Inflater {
  z_stream stream{};
  std::array<std::uint8_t, kBlockBytes> input;
  std::uint64_t content_bytes = 0;  ///< Decompressed so far.
  bool member_ended = false;

  Inflater() {
    if (inflateInit2(&stream, kGzipWindow) != Z_OK) {
      throw Error("[read_data] zlib could not be initialised; is there free memory?");
    }
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ByteReader::ByteReader(std::filesystem::path path)
    : path_(std::move(path)), file_bytes_(checked_size(path_)) {
  file_.reset(std::fopen(path_.c_str(), "rb"));
  if (!file_) {
    throw IoError(detail::concat("[read_data] cannot open ", path_.string(), ": ",
                                 std::strerror(errno), "; check its permissions"));
  }
  std::array<std::uint8_t, 2> magic{};
  const std::size_t n = read_file(magic);
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0) {
    throw IoError(detail::concat("[read_data] cannot seek in ", path_.string(), ": ",
                                 std::strerror(errno), "; give a regular file"));
  }
  if (n == 2 && magic[0] == 0x1f && magic[1] == 0x8b) inflater_ = std::make_unique<Inflater>();
}

ByteReader::~ByteReader() = default;

std::uint64_t ByteReader::max_content_bytes() const {
  if (!is_gzip()) return file_bytes_;
  constexpr std::uint64_t kLimit = std::numeric_limits<std::uint64_t>::max() / kMaxRatio - 1;
  return std::min(file_bytes_, kLimit) * kMaxRatio + kRatioSlack;
}

std::size_t ByteReader::read(std::span<std::uint8_t> out) {
  constexpr std::size_t kPart = std::size_t{1} << 20;  // Between two polls of the watches.
  std::size_t done = 0, n = kPart;
  for (; n == kPart && done < out.size(); done += n) {
    poll_wait_watches();
    const auto part = out.subspan(done, std::min(kPart, out.size() - done));
    n = is_gzip() ? read_gzip(part) : read_file(part);
  }
  return done;
}

std::size_t ByteReader::read_file(std::span<std::uint8_t> out) {
  const std::size_t n = std::fread(out.data(), 1, out.size(), file_.get());
  if (n < out.size() && std::ferror(file_.get()) != 0) {
    throw IoError(detail::concat("[read_data] reading ", path_.string(),
                                 " failed: ", std::strerror(errno), "; check the storage"));
  }
  return n;
}

std::size_t ByteReader::read_gzip(std::span<std::uint8_t> out) {
  Inflater& inflater = *inflater_;
  z_stream& z = inflater.stream;
  std::size_t done = 0;
  while (done < out.size()) {
    if (z.avail_in == 0) {
      z.next_in = inflater.input.data();
      z.avail_in = static_cast<uInt>(read_file(inflater.input));
    }
    if (z.avail_in == 0) {
      if (inflater.member_ended) break;
      throw DataError(detail::concat("[read_data] ", path_.string(),
                                     ": the gzip stream ends after ", inflater.content_bytes,
                                     " bytes of content without its end mark; the file is "
                                     "truncated, copy or download it again"));
    }
    if (std::exchange(inflater.member_ended, false)) inflateReset(&z);  // Members may follow.
    const auto room = std::min(out.size() - done, std::size_t{1} << 30);
    z.next_out = out.data() + done;
    z.avail_out = static_cast<uInt>(room);
    const int code = inflate(&z, Z_NO_FLUSH);
    const std::size_t n = room - z.avail_out;
    done += n;
    inflater.content_bytes += n;
    inflater.member_ended = code == Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      throw DataError(detail::concat("[read_data] ", path_.string(), ": damaged gzip stream after ",
                                     inflater.content_bytes, " bytes of content (",
                                     z.msg != nullptr ? z.msg : "unknown zlib error",
                                     "); copy or download the file again"));
    }
  }
  return done;
}

}  // namespace dkfac::data
