#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/durable.h"

namespace dkfac::app {

inline constexpr const char* kManifestFile = "manifest.json";

/// What a checkpoint consists of: size and CRC-32C of every file but this one, which carries a sum
/// of itself.
struct Manifest {
  std::int64_t step = 0;
  int ranks = 1;
  std::string library;  ///< Version that wrote it.
  std::map<std::string, FileSum> files;
};

[[nodiscard]] std::string to_text(const Manifest& manifest);
/// Parses the text of to_text(). Throws DataError for any other text and for another format.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& source);
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& checkpoint);

/// A file of the checkpoint, compared with its manifest. Throws DataError naming the file, what it
/// should have and what it has.
[[nodiscard]] std::vector<std::byte> read_listed(const std::filesystem::path& checkpoint,
                                                 const Manifest& manifest, const std::string& file);
/// Reads all of it. Throws MissingInput, DataError, IoError.
Manifest verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace dkfac::app
