#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <zlib.h>

/// PNG files made in memory, of any kind of pixel.
namespace dkfac::testing {

struct PngFile {
  using Bytes = std::vector<std::uint8_t>;
  int height = 7, width = 11;
  int depth = 8;       ///< Bits of a sample.
  int color = 2;       ///< 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha.
  bool adam7 = false;  ///< Interlaced.
  Bytes palette{};
  Bytes transparency{};

  [[nodiscard]] int channels() const {
    return color == 2 ? 3 : color == 4 ? 2 : color == 6 ? 4 : 1;
  }
  /// Sample c of a pixel, below 2^depth.
  [[nodiscard]] unsigned sample(int y, int x, int c) const {
    const unsigned value = static_cast<unsigned>(9901 * y + 4409 * x + 17011 * c + 77);
    return (depth == 16 ? value : value >> 3U) & ((1U << depth) - 1U);
  }
};

inline void put_be32(std::vector<std::uint8_t>& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<std::uint8_t>(value >> shift));
}

inline void put_chunk(std::vector<std::uint8_t>& out, std::string_view type,
                      const std::vector<std::uint8_t>& data) {
  put_be32(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out.insert(out.end(), type.begin(), type.end());
  out.insert(out.end(), data.begin(), data.end());
  put_be32(out, static_cast<std::uint32_t>(crc32_z(0, out.data() + begin, out.size() - begin)));
}

/// Appends every `dx`-th pixel of a row from `x` on, without a filter.
inline void put_png_row(std::vector<std::uint8_t>& out, const PngFile& file, int y, int x, int dx) {
  out.push_back(0);
  unsigned bits = 0, have = 0;
  for (; x < file.width; x += dx)
    for (int c = 0; c < file.channels(); ++c) {
      const unsigned sample = file.sample(y, x, c);
      if (file.depth == 16) out.push_back(static_cast<std::uint8_t>(sample >> 8U));
      if (file.depth >= 8) {
        out.push_back(static_cast<std::uint8_t>(sample));
        continue;
      }
      bits = bits << file.depth | sample;
      have += static_cast<unsigned>(file.depth);
      if (have == 8) out.push_back(static_cast<std::uint8_t>(bits)), bits = have = 0;
    }
  if (have > 0) out.push_back(static_cast<std::uint8_t>(bits << (8 - have)));
}

inline std::vector<std::uint8_t> png_rows(const PngFile& file) {
  struct Pass {
    int y, x, dy, dx;
  };
  constexpr std::array<Pass, 7> kAdam7{{{0, 0, 8, 8},
                                        {0, 4, 8, 8},
                                        {4, 0, 8, 4},
                                        {0, 2, 4, 4},
                                        {2, 0, 4, 2},
                                        {0, 1, 2, 2},
                                        {1, 0, 2, 1}}};
  std::vector<std::uint8_t> out;
  if (!file.adam7)
    for (int y = 0; y < file.height; ++y) put_png_row(out, file, y, 0, 1);
  else
    for (const Pass& pass : kAdam7)
      for (int y = pass.y; pass.x < file.width && y < file.height; y += pass.dy)
        put_png_row(out, file, y, pass.x, pass.dx);
  return out;
}

/// `rows` in place of those of the file, e.g. too few.
inline std::vector<std::uint8_t> encode_png(const PngFile& file,
                                            const std::vector<std::uint8_t>& rows) {
  std::vector<std::uint8_t> out{0x89, 'P', 'N', 'G', 13, 10, 26, 10}, header;
  put_be32(header, static_cast<std::uint32_t>(file.width));
  put_be32(header, static_cast<std::uint32_t>(file.height));
  for (const int byte : {file.depth, file.color, 0, 0, file.adam7 ? 1 : 0})
    header.push_back(static_cast<std::uint8_t>(byte));
  put_chunk(out, "IHDR", header);
  put_chunk(out, "gAMA", {0, 0, 0x80, 0});  // To be ignored.
  if (!file.palette.empty()) put_chunk(out, "PLTE", file.palette);
  if (!file.transparency.empty()) put_chunk(out, "tRNS", file.transparency);
  uLongf size = compressBound(rows.size());
  std::vector<std::uint8_t> packed(size);
  compress(packed.data(), &size, rows.data(), rows.size());
  packed.resize(size);
  put_chunk(out, "IDAT", packed);
  put_chunk(out, "tEXt", {'a', 0, 'b'});
  put_chunk(out, "IEND", {});
  return out;
}

inline std::vector<std::uint8_t> encode_png(const PngFile& file) {
  return encode_png(file, png_rows(file));
}

}  // namespace dkfac::testing
