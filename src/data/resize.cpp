#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "vectorized.h"

namespace dkfac::data {
namespace {

/// Fractional bits of weights, as in Pillow for 8-bit pixels.
constexpr int kDigits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kDigits - 1);

/// Filter weights along one direction: `taps` per output, applied to the inputs from `first` on.
struct Taps {
  int taps = 0;
  std::vector<std::int32_t> weights;
  std::vector<std::int64_t> first, count;
};

/// Range [begin, begin + length) to resize of a row of `pixels`.
struct Span {
  std::int64_t pixels = 0;
  double begin = 0, length = 0;
};

/// Returns weights that copy, for a direction whose size does not change, as in Pillow.
Taps copying_taps(std::int64_t from, std::int64_t count) {
  Taps taps;
  taps.taps = 1;
  const auto n = static_cast<std::size_t>(count);
  taps.weights.assign(n, 1 << kDigits);
  taps.count.assign(n, 1);
  for (std::int64_t o = from; o < from + count; ++o) taps.first.push_back(o);
  return taps;
}

/// Computes Pillow's weights for outputs [from, from + count) of `out`: a triangle filter around
/// the centre of each output pixel, stretched for a reduction, truncated at the borders and
/// normalised to sum to 1.
Taps make_taps(const Span& of, std::int64_t out, std::int64_t from, std::int64_t count) {
  const std::int64_t in = of.pixels;
  if (of.begin == 0 && of.length == static_cast<double>(in) && in == out)
    return copying_taps(from, count);
  const double scale = of.length / static_cast<double>(out);
  const double support = std::max(scale, 1.0), shrink = 1.0 / support;
  Taps taps;
  taps.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.weights.assign(static_cast<std::size_t>(count) * static_cast<std::size_t>(taps.taps), 0);
  std::vector<double> weights(static_cast<std::size_t>(taps.taps));
  for (std::int64_t o = from; o < from + count; ++o) {
    const double center = of.begin + (static_cast<double>(o) + 0.5) * scale;
    const auto begin = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto end = std::min(in, static_cast<std::int64_t>(center + support + 0.5));
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const double distance = std::abs((static_cast<double>(i) - center + 0.5) * shrink);
      const double weight = distance < 1 ? 1 - distance : 0;
      weights[static_cast<std::size_t>(i - begin)] = weight;
      sum += weight;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      double weight = weights[static_cast<std::size_t>(i - begin)];
      if (sum != 0) weight /= sum;
      taps.weights[static_cast<std::size_t>((o - from) * taps.taps + i - begin)] =
          static_cast<std::int32_t>(0.5 + weight * (1 << kDigits));
    }
    taps.first.push_back(begin);
    taps.count.push_back(end - begin);
  }
  return taps;
}

std::uint8_t rounded(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kDigits, 0, 255));
}

/// Computes the output pixels of one row from the pixels at `row`.
void resize_row(const Taps& taps, const std::uint8_t* row, std::int64_t width, std::uint8_t* out) {
  for (std::int64_t x = 0; x < width; ++x, out += 3) {
    const std::int32_t* weights = taps.weights.data() + x * taps.taps;
    const std::uint8_t* from = row + 3 * taps.first[static_cast<std::size_t>(x)];
    std::int32_t r = kHalf, g = r, b = r;
    for (std::int64_t i = 0; i < taps.count[static_cast<std::size_t>(x)]; ++i, from += 3) {
      r += weights[i] * from[0];
      g += weights[i] * from[1];
      b += weights[i] * from[2];
    }
    out[0] = rounded(r);
    out[1] = rounded(g);
    out[2] = rounded(b);
  }
}

// Compilers do not vectorise three channels by themselves; the fourth lane is unused.
static_assert(std::endian::native == std::endian::little);
using Fours [[gnu::vector_size(16)]] = std::int32_t;
constexpr Fours kShifts = {0, 8, 16, 24};  ///< Shifts of the bytes of a word.
constexpr std::int64_t kRows = 4;          ///< Rows filtered together.

/// Computes the output pixels of kRows rows. It also reads one byte after the last pixel of each.
void resize_rows(const Taps& taps, const std::uint8_t* rows, std::int64_t row_stride,
                 std::int64_t width, std::uint8_t* out, std::int64_t out_stride) {
  for (std::int64_t x = 0; x < width; ++x, out += 3) {
    const std::int32_t* weights = taps.weights.data() + x * taps.taps;
    const std::uint8_t* from = rows + 3 * taps.first[static_cast<std::size_t>(x)];
    const std::int64_t count = taps.count[static_cast<std::size_t>(x)];
    Fours sums[kRows];
    for (Fours& sum : sums) sum = Fours{kHalf, kHalf, kHalf, kHalf};
    for (std::int64_t i = 0; i < count; ++i, from += 3) {
      for (std::int64_t r = 0; r < kRows; ++r) {
        std::int32_t pixel;
        std::memcpy(&pixel, from + r * row_stride, sizeof pixel);
        const Fours bytes = (Fours{pixel, pixel, pixel, pixel} >> kShifts) & 255;
        sums[r] += weights[i] * bytes;
      }
    }
    for (std::int64_t r = 0; r < kRows; ++r) {
      const Fours sum = sums[r] >> kDigits;  // Weights are not negative.
      const Fours most = {255, 255, 255, 255}, pixel = sum < most ? sum : most;
      for (int c = 0; c < 3; ++c) out[r * out_stride + c] = static_cast<std::uint8_t>(pixel[c]);
    }
  }
}

/// Computes one output row from `count` rows of `stride` values, row by row, so that the loops
/// vectorise.
void combine_rows(const std::int32_t* weights, std::int64_t count, const std::uint8_t* rows,
                  std::int64_t stride, std::uint8_t* out) {
  constexpr std::int64_t kBlock = 512;
  std::array<std::int32_t, kBlock> sums;
  for (std::int64_t begin = 0; begin < stride; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, stride - begin);
    std::fill_n(sums.data(), n, kHalf);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t* row = rows + i * stride + begin;
      const std::int32_t weight = weights[i];
      for (std::int64_t x = 0; x < n; ++x) sums[static_cast<std::size_t>(x)] += weight * row[x];
    }
    for (std::int64_t x = 0; x < n; ++x)
      out[begin + x] = rounded(sums[static_cast<std::size_t>(x)]);
  }
}

void check_window(std::int64_t height, std::int64_t width, const Box& window) {
  DKFAC_CHECK(height > 0 && width > 0, "[resize] the result is ", height, "x", width,
              "; both must be > 0");
  DKFAC_CHECK(window.y >= 0 && window.x >= 0 && window.height > 0 && window.width > 0 &&
                  window.y + window.height <= height && window.x + window.width <= width,
              "[resize] the window ", window.height, "x", window.width, " at (", window.y, ", ",
              window.x, ") is not inside of a result of ", height, "x", width);
}

/// Returns the pixels that an area covers at least partly.
Box hull(const Area& area) {
  const auto span = [](double begin, double length) {
    const double first = std::floor(begin);
    return std::pair{static_cast<std::int64_t>(first),
                     static_cast<std::int64_t>(std::ceil(begin + length) - first)};
  };
  const auto [y, height] = span(area.y, area.height);
  const auto [x, width] = span(area.x, area.width);
  return {y, x, height, width};
}

}  // namespace

void resize_bilinear(const ImageView& image, const Area& area, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch) {
  const double rows = static_cast<double>(image.height), columns = static_cast<double>(image.width);
  DKFAC_CHECK(area.y >= 0 && area.x >= 0 && area.height > 0 && area.width > 0 &&
                  area.y + area.height <= rows && area.x + area.width <= columns,
              "[resize] the box ", area.height, "x", area.width, " at (", area.y, ", ", area.x,
              ") is not inside of a picture of ", image.height, "x", image.width);
  check_window(height, width, window);
  const Box box = hull(area);
  const std::int64_t stride = 3 * window.width, row_stride = 3 * image.width;
  const std::uint8_t* from = image.pixels + 3 * (box.y * image.width + box.x);
  const Taps across = make_taps({box.width, area.x - static_cast<double>(box.x), area.width}, width,
                                window.x, window.width);
  const Taps down = make_taps({box.height, area.y - static_cast<double>(box.y), area.height},
                              height, window.y, window.height);
  // Only rows that contribute to the window are filtered.
  const std::int64_t first = down.first.front(), end = down.first.back() + down.count.back();
  if (across.taps == 1 && down.taps == 1) {
    from += first * row_stride + 3 * across.first.front();
    for (std::int64_t y = 0; y < window.height; ++y)
      std::memcpy(out + y * stride, from + y * row_stride, static_cast<std::size_t>(stride));
    return;
  }
  scratch.resize(static_cast<std::size_t>((end - first) * stride));
  const std::int64_t within = std::min(end, image.height - 1 - box.y);  // A row follows.
  cpu::vectorized([&] {
    std::int64_t y = first;
    for (; y + kRows <= within; y += kRows)
      resize_rows(across, from + y * row_stride, row_stride, window.width,
                  scratch.data() + (y - first) * stride, stride);
    for (; y < end; ++y)
      resize_row(across, from + y * row_stride, window.width,
                 scratch.data() + (y - first) * stride);
  });
  cpu::vectorized([&] {
    for (std::int64_t y = 0; y < window.height; ++y) {
      const auto at = static_cast<std::size_t>(y);
      combine_rows(down.weights.data() + y * down.taps, down.count[at],
                   scratch.data() + (down.first[at] - first) * stride, stride, out + y * stride);
    }
  });
}

void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch) {
  const auto real = [](std::int64_t pixels) { return static_cast<double>(pixels); };
  resize_bilinear(image, Area{real(box.y), real(box.x), real(box.height), real(box.width)}, height,
                  width, window, out, scratch);
}

void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, std::uint8_t* out, std::vector<std::uint8_t>& scratch) {
  resize_bilinear(image, box, height, width, {.height = height, .width = width}, out, scratch);
}

}  // namespace dkfac::data
