#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <jpeglib.h>
#include <vector>

/// JPEG files made in memory.
namespace dkfac::testing {

using Bytes = std::vector<std::uint8_t>;

struct JpegFile {
  int height = 16, width = 24, channels = 3;
  J_COLOR_SPACE colors = JCS_RGB;
  int quality = 95;
  bool progressive = false;
  int across = 0, down = 0;  ///< Columns and rows that share one pair of colours; 0: libjpeg's.
  int restart_rows = 0;      ///< Rows of blocks between restart markers; 0: no markers.
};

/// Smooth values of [height,width,channels].
inline Bytes smooth_pixels(const JpegFile& file) {
  Bytes pixels;
  for (int y = 0; y < file.height; ++y)
    for (int x = 0; x < file.width; ++x)
      for (int c = 0; c < file.channels; ++c)
        pixels.push_back(static_cast<std::uint8_t>((3 * y + 5 * x + 60 * c) % 200 + 20));
  return pixels;
}

inline Bytes encode_jpeg(const JpegFile& file, const Bytes& pixels) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(file.height);
  info.image_width = static_cast<JDIMENSION>(file.width);
  info.input_components = file.channels;
  info.in_color_space = file.colors;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, file.quality, TRUE);
  if (file.across > 0) info.comp_info[0].h_samp_factor = file.across;
  if (file.down > 0) info.comp_info[0].v_samp_factor = file.down;
  info.restart_in_rows = file.restart_rows;
  if (file.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const std::size_t stride = static_cast<std::size_t>(file.width * file.channels);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.data() + info.next_scanline * stride);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes out(memory, memory + size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return out;
}

inline Bytes encode_jpeg(const JpegFile& file) { return encode_jpeg(file, smooth_pixels(file)); }

}  // namespace dkfac::testing
