#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/checkpoint/safetensors.h"

namespace dkfac::app {

inline constexpr const char* kManifestFile = "manifest.json";

/// Manifest of a checkpoint: size and CRC-32C of every other file. It contains a checksum of
/// itself.
struct Manifest {
  std::int64_t step = 0;
  int ranks = 1;
  std::string library;  ///< Version of dkfac that wrote it.
  std::map<std::string, FileSum> files;
};

[[nodiscard]] std::string to_text(const Manifest& manifest);
/// Parses the output of to_text(). Throws DataError for any other text and for another format.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& source);
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads a file of the checkpoint and verifies it. Throws DataError naming the file, the expected
/// and the actual size or checksum.
[[nodiscard]] std::vector<std::byte> read_listed(const std::filesystem::path& checkpoint,
                                                 const Manifest& manifest, const std::string& file);
/// The same of a safetensors file.
[[nodiscard]] safetensors::File open_listed(const std::filesystem::path& checkpoint,
                                            const Manifest& manifest, const std::string& file);
/// Verifies all files of a checkpoint. Throws MissingInput, DataError, IoError.
Manifest verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace dkfac::app
