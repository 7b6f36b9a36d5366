#include "data/shard.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <zlib.h>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"
#include "data/field_io.h"

namespace dkfac::data {
namespace {

constexpr std::string_view kMagic = "dkfacph1";  // Changes with the layout.
constexpr std::size_t kPrefix = kMagic.size() + sizeof(std::uint32_t) + sizeof(std::uint64_t);
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

[[noreturn]] void cannot_read(const std::filesystem::path& path, int why) {
  const std::string text =
      detail::concat("[photo_shards] cannot read ", path.string(), ": ", std::strerror(why));
  if (why == ENOENT) throw MissingInput(text);
  throw IoError(text);
}

void put_photo(FieldWriter& out, const ShardPhoto& photo, std::uint64_t first) {
  out.put_text(photo.name);
  out.put(photo.label);
  out.put(static_cast<std::uint32_t>(photo.height));
  out.put(static_cast<std::uint32_t>(photo.width));
  out.put(photo.place + first);
  out.put(photo.sum);
}

/// Serializes the header without the fields that depend on its own length; offsets count from
/// `first`.
FieldWriter body_of(const ShardHeader& header, std::uint64_t first) {
  FieldWriter out;
  out.put(static_cast<std::uint64_t>(header.classes.size()));
  for (const std::string& name : header.classes) out.put_text(name);
  out.put(header.set);
  out.put(header.number);
  out.put(header.shards);
  out.put(static_cast<std::uint64_t>(header.photos.size()));
  for (const ShardPhoto& photo : header.photos) put_photo(out, photo, first);
  return out;
}

ShardPhoto get_photo(FieldReader& in) {
  ShardPhoto photo;
  photo.name = in.get_text();
  photo.label = in.get<std::int32_t>();
  photo.height = in.get<std::uint32_t>();
  photo.width = in.get<std::uint32_t>();
  photo.place = in.get<std::uint64_t>();
  photo.sum = in.get<std::uint32_t>();
  return photo;
}

void check_photo(const ShardPhoto& photo, std::size_t classes, std::uint64_t begin,
                 std::uint64_t end) {
  const bool sane =
      photo.height > 0 && photo.width > 0 && photo.height <= kMostPixels / photo.width;
  if (!sane || photo.place < begin || photo.place > end || photo.bytes() > end - photo.place)
    throw DataError(detail::concat("photograph '", printable(photo.name), "' of ", photo.height,
                                   "x", photo.width, " at byte ", photo.place,
                                   " does not lie in a file of ", end, " bytes"));
  if (photo.label < 0 || static_cast<std::size_t>(photo.label) >= classes)
    throw DataError(detail::concat("photograph '", printable(photo.name), "' has label ",
                                   photo.label, " of ", classes, " classes"));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // Of a pipe, too.
  if (file < 0) cannot_read(path, errno);
  struct stat about {};
  int why = ::fstat(file, &about) != 0 ? errno : S_ISREG(about.st_mode) ? 0 : EISDIR;
  if (why == 0 && about.st_size > 0) {
    size_ = static_cast<std::size_t>(about.st_size);
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
      why = errno;
    else
      data_ = static_cast<const std::uint8_t*>(data);
  }
  ::close(file);
  if (why != 0) cannot_read(path, why);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

std::uint32_t sum_of(std::span<const std::uint8_t> bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, bytes.data(), bytes.size()));
}

std::vector<std::uint8_t> shard_bytes(const ShardHeader& header) {
  const std::uint64_t length = body_of(header, 0).bytes().size();
  const FieldWriter body = body_of(header, kPrefix + length);
  FieldWriter out;
  for (const char c : kMagic) out.put(c);
  out.put(sum_of(body.bytes()));
  out.put(length);
  std::vector<std::uint8_t> bytes(out.bytes().begin(), out.bytes().end());
  bytes.insert(bytes.end(), body.bytes().begin(), body.bytes().end());
  return bytes;
}

ShardHeader parse_shard(std::span<const std::uint8_t> file) {
  FieldReader prefix(file);
  for (const char c : kMagic)
    if (prefix.get<char>() != c) throw DataError("it is no file of packed photographs");
  const auto sum = prefix.get<std::uint32_t>();
  const auto length = prefix.get<std::uint64_t>();
  if (length > prefix.rest().size())
    throw DataError(detail::concat("its header has ", length, " bytes and the file only ",
                                   prefix.rest().size(), " more"));
  const std::span<const std::uint8_t> body = prefix.rest().first(length);
  if (sum_of(body) != sum) throw DataError("the checksum of its header is wrong");
  FieldReader in(body);
  ShardHeader header;
  header.classes.resize(in.get_count(sizeof(std::uint32_t)));
  for (std::string& name : header.classes) name = in.get_text();
  header.set = in.get<std::uint64_t>();
  header.number = in.get<std::uint32_t>();
  header.shards = in.get<std::uint32_t>();
  constexpr std::size_t kLeastPhoto = 28;
  header.photos.resize(in.get_count(kLeastPhoto));
  for (ShardPhoto& photo : header.photos) {
    photo = get_photo(in);
    check_photo(photo, header.classes.size(), kPrefix + length, file.size());
  }
  if (!in.rest().empty()) throw DataError("its header has trailing bytes");
  return header;
}

std::string shard_name(std::uint32_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "shard-%05u.photos", number);
  return text;
}

}  // namespace dkfac::data
