#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/patch_shapes.h"

/// Operation counts of the methods of patch_gram on a device. Nothing here needs a device.
namespace dkfac::cuda {

/// Cost of a method. A multiply-add counts as two operations. Bytes are those that kernels and
/// products have to read or write at least once, without the result.
struct PatchCost {
  double operations = 0, bytes = 0;
};

/// Rows of the panels of the lower triangle of a 16-bit product of width n. A narrow product is one
/// panel: its upper half costs less than more launches.
[[nodiscard]] inline std::int64_t triangle_panel(std::int64_t n) { return n < 1024 ? n : 512; }

/// Rounds n up to whole tiles of a matrix product: narrower ones are not cheaper.
[[nodiscard]] inline double in_tiles(std::int64_t n) {
  constexpr std::int64_t kTile = 64;
  return static_cast<double>((n + kTile - 1) / kTile * kTile);
}

/// Elements computed for the lower triangle of width n: its panels for 16-bit values, half of the
/// square where the library has symmetric products.
[[nodiscard]] inline double triangle_elements(std::int64_t n, DType dtype) {
  const double width = in_tiles(n);
  if (dtype == DType::f64 || dtype == DType::f32) return width * (width + in_tiles(1)) / 2;
  double elements = 0;
  const std::int64_t most = triangle_panel(n);
  for (std::int64_t first = 0; first < n; first += most) {
    const std::int64_t rows = std::min(most, n - first);
    elements += in_tiles(rows) * in_tiles(first + rows);
  }
  return elements;
}

/// Cost of patches in memory and their products.
[[nodiscard]] inline PatchCost cost_of_panels(const ops::PatchSpec& s, DType dtype) {
  const double rows = static_cast<double>(s.rows()), size = static_cast<double>(size_of(dtype));
  const double image = static_cast<double>(s.n * s.h * s.w * s.c) * size;
  PatchCost cost{2 * rows * triangle_elements(s.width(), dtype), image};
  // Patches that are pixels or images are used in place.
  if (!dkfac::detail::is_plain(s) && !dkfac::detail::is_whole(s))
    cost.bytes += 2 * rows * static_cast<double>(s.width()) * size;
  return cost;
}

/// Cost of 13 products of the padded image, 12 of its border lines and 4 of its corners, for
/// kernels 3x3 with stride 1 and padding 1.
[[nodiscard]] inline PatchCost cost_of_offsets(const ops::PatchSpec& s, DType dtype) {
  const double n = static_cast<double>(s.n), size = static_cast<double>(size_of(dtype));
  const double h = static_cast<double>(s.h + 2), w = static_cast<double>(s.w + 2);
  const double width = in_tiles(s.c), channels = static_cast<double>(s.c);
  const double image = static_cast<double>(s.n * s.h * s.w * s.c) * size;
  const double padded = n * h * w, borders = 2 * n * (h + w) + 4 * n;
  return {2 * width * width * (13 * padded + 6 * n * (h + w) + 4 * n),
          image + 2 * (padded + borders) * channels * size};
}

/// Whether a method supports this factor on a device.
[[nodiscard]] inline bool applies(const ops::PatchSpec& s, ops::PatchMethod method) {
  if (method == ops::PatchMethod::offsets) return dkfac::detail::is_three_by_three(s);
  return method == ops::PatchMethod::automatic || method == ops::PatchMethod::panels;
}

/// Returns the method with fewer operations.
[[nodiscard]] inline ops::PatchMethod cheapest_method(const ops::PatchSpec& s, DType dtype) {
  const bool offsets = dkfac::detail::is_three_by_three(s) &&
                       cost_of_offsets(s, dtype).operations < cost_of_panels(s, dtype).operations;
  return offsets ? ops::PatchMethod::offsets : ops::PatchMethod::panels;
}

}  // namespace dkfac::cuda
