#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "dkfac/data/image.h"

namespace dkfac::data {

/// Formats of photographs.
enum class PhotoFormat : std::uint8_t { other, jpeg, png, webp };

inline constexpr std::size_t kFormatBytes = 12;  ///< The first bytes of a file, which tell it.

/// Returns the format by the first bytes.
[[nodiscard]] PhotoFormat format_of(std::span<const std::uint8_t> file);
/// Returns the format that the ending of a name stands for: .jpg, .jpeg, .png, .webp in any case.
[[nodiscard]] PhotoFormat format_of_name(const std::filesystem::path& name);
/// Returns whether this build has the library of a format.
[[nodiscard]] bool can_decode(PhotoFormat format);
/// Lists the formats that this build reads, and those that it does not: "JPEG, PNG; WebP needs a
/// build with libwebp".
[[nodiscard]] std::string readable_formats();

/// Throws DataError with the actual format, unless the file is of the given one.
void require_format(std::span<const std::uint8_t> file, PhotoFormat format,
                    std::string_view function);
/// Throws DataError for a picture above options.max_pixels.
void check_pixels(const ImageSize& size, const DecodeOptions& options, std::string_view function);

/// Decoders of the other formats, as jpeg_size() and decode_jpeg(); stubs without the library.
[[nodiscard]] bool have_jpeg();
[[nodiscard]] bool have_png();
[[nodiscard]] bool have_webp();
[[nodiscard]] ImageSize png_size(std::span<const std::uint8_t> file);
void decode_png(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out);
[[nodiscard]] ImageSize webp_size(std::span<const std::uint8_t> file);
void decode_webp(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out);

}  // namespace dkfac::data
