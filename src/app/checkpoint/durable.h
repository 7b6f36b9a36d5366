#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

/// Files that are on the disk when a call returns. Everything throws IoError with the path, what
/// the system said and what to do; MissingInput for a file to read that is not there.
namespace dkfac::app {

/// What a manifest keeps of a file.
struct FileSum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const FileSum&) const = default;
};

/// A new file, written front to back and summed on the way.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Syncs and closes; without it the file is no good.
  [[nodiscard]] FileSum finish();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  FileSum sum_;
};

/// A new file with this content.
[[nodiscard]] FileSum write_durable(const std::filesystem::path& path, std::string_view text);
/// The same, of a file that is there or not: whoever looks finds the old content or the new one,
/// never a part.
void write_file(const std::filesystem::path& path, std::string_view text);
/// Makes names in the folder durable.
void sync_folder(const std::filesystem::path& folder);
/// `from` takes the place of `to`, in one step for everyone who looks; a folder that was there
/// before is then called `from` or is gone.
void put_in_place(const std::filesystem::path& from, const std::filesystem::path& to);
/// The whole file.
[[nodiscard]] std::vector<std::byte> read_bytes(const std::filesystem::path& path);
[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace dkfac::app
