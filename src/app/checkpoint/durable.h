#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

/// Durable file operations: the data is on disk when a call returns. All functions throw IoError
/// with the path, the system's message and a remedy; MissingInput when a file to read does not
/// exist.
namespace dkfac::app {

/// Size and checksum of a file in a manifest.
struct FileSum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const FileSum&) const = default;
};

/// Sequential writer of a new file that computes its checksum.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Syncs and closes the file, which is incomplete before.
  [[nodiscard]] FileSum finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  FileSum sum_;
};

/// Writes a new file with this content.
[[nodiscard]] FileSum write_durable(const std::filesystem::path& path, std::string_view text);
/// Atomically creates or replaces the file `path`: a reader finds the old content or the new one.
void write_file(const std::filesystem::path& path, std::string_view text);
/// The same with what `write` writes to the path that it gets, a new file in the same folder. That
/// file is removed when `write` throws.
void put_file(const std::filesystem::path& path,
              const std::function<void(const std::filesystem::path&)>& write);
/// Removes the files that killed processes left in the course of put_file(). No other process may
/// be writing there.
void remove_temporaries(const std::filesystem::path& folder);
/// Syncs the directory entries of a folder.
void sync_folder(const std::filesystem::path& folder);
/// Atomically replaces `to` by `from`. An earlier folder `to` is then called `from` or is removed.
void put_in_place(const std::filesystem::path& from, const std::filesystem::path& to);
/// Reads a whole file.
[[nodiscard]] std::vector<std::byte> read_bytes(const std::filesystem::path& path);
[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace dkfac::app
