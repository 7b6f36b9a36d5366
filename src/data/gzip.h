#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace dkfac::data {

/// Sequential reader of a file, which decompresses it when it starts with gzip's magic 1f 8b. Its
/// input buffer has a fixed size. Errors name the file: MissingInput, IoError, and DataError for a
/// damaged or truncated gzip stream.
///
/// It does not use zlib's gzread(), which silently ignores trailing bytes after the last member;
/// such a file is refused here.
class ByteReader {
 public:
  explicit ByteReader(std::filesystem::path path);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Fills `out` and returns the number of bytes, less than out.size() only at the end of the
  /// content.
  std::size_t read(std::span<std::uint8_t> out);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_gzip() const { return inflater_ != nullptr; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  /// Returns an upper bound on the content of a file of this size, available before reading.
  [[nodiscard]] std::uint64_t max_content_bytes() const;

 private:
  struct Inflater;
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::size_t read_file(std::span<std::uint8_t> out);
  std::size_t read_gzip(std::span<std::uint8_t> out);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t file_bytes_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace dkfac::data
