#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace dkfac::data {

/// Bytes of a file, front to back, decompressed when the file starts with gzip's magic 1f 8b. Holds
/// one fixed block of input whatever the file promises. Errors name the file: MissingInput,
/// IoError, and DataError for a damaged or truncated gzip stream.
///
/// Not by zlib's gzread(), which would be shorter: it passes over whatever follows the last member
/// without a word, and a file with something behind its end is refused here.
class ByteReader {
 public:
  explicit ByteReader(std::filesystem::path path);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Fills `out` as far as there are bytes; less than out.size() only at the end of the content.
  std::size_t read(std::span<std::uint8_t> out);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_gzip() const { return inflater_ != nullptr; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  /// The most content that a file of this size can hold, known before anything is read.
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
