#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace dkfac::data {

/// Small files beside a data set that keep what took long to find out: a mark that says what they
/// are and in which version, a checksum, the content.

/// The content. Throws MissingInput and IoError as read_file(), DataError for another mark or a
/// wrong checksum.
[[nodiscard]] std::vector<std::uint8_t> read_kept(const std::filesystem::path& path,
                                                  std::string_view mark);
/// Written aside and renamed, so that any number of processes of any hosts may do so, and there is
/// a whole file or what was there before. Returns whether it could be written.
bool write_kept(const std::filesystem::path& path, std::string_view mark,
                std::span<const std::uint8_t> content);

}  // namespace dkfac::data
