#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/patch_shapes.h"

/// What the methods of patch_gram cost on a device, counted: nothing here needs one.
namespace dkfac::cuda {

/// Operations count a multiplication and an addition as two; bytes are those that a kernel of ours
/// or a product has to move to or from memory at least once, without the result.
struct PatchCost {
  double operations = 0, bytes = 0;
};

/// Rows of the panels in which the lower triangle of a 16-bit product of width n is formed: all of
/// a narrow one, whose upper half costs less than more launches.
[[nodiscard]] inline std::int64_t triangle_panel(std::int64_t n) { return n < 1024 ? n : 512; }

/// n up to whole tiles of a matrix product: narrower ones are not cheaper.
[[nodiscard]] inline double in_tiles(std::int64_t n) {
  constexpr std::int64_t kTile = 64;
  return static_cast<double>((n + kTile - 1) / kTile * kTile);
}

/// Elements of the result that the lower triangle of width n takes: its panels for 16-bit values,
/// half of it where the library knows triangles.
[[nodiscard]] inline double triangle_elements(std::int64_t n, DType dtype) {
  const double width = in_tiles(n);
  if (dtype == DType::f64 || dtype == DType::f32) return width * (width + in_tiles(1)) / 2;
  double elements = 0;
  const std::int64_t step = triangle_panel(n);
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t rows = std::min(step, n - first);
    elements += in_tiles(rows) * in_tiles(first + rows);
  }
  return elements;
}

/// Patches in memory and products of them.
[[nodiscard]] inline PatchCost cost_of_panels(const ops::PatchSpec& s, DType dtype) {
  const double rows = static_cast<double>(s.rows()), size = static_cast<double>(size_of(dtype));
  const double image = static_cast<double>(s.n * s.h * s.w * s.c) * size;
  PatchCost cost{2 * rows * triangle_elements(s.width(), dtype), image};
  // A patch that is a pixel or an image is taken from where it lies.
  if (!dkfac::detail::is_plain(s) && !dkfac::detail::is_whole(s))
    cost.bytes += 2 * rows * static_cast<double>(s.width()) * size;
  return cost;
}

/// 13 products of the padded image, 12 of its border lines and 4 of its corners. For kernels 3x3
/// with stride 1 and padding 1.
[[nodiscard]] inline PatchCost cost_of_offsets(const ops::PatchSpec& s, DType dtype) {
  const double n = static_cast<double>(s.n), size = static_cast<double>(size_of(dtype));
  const double h = static_cast<double>(s.h + 2), w = static_cast<double>(s.w + 2);
  const double width = in_tiles(s.c), channels = static_cast<double>(s.c);
  const double image = static_cast<double>(s.n * s.h * s.w * s.c) * size;
  const double padded = n * h * w, borders = 2 * n * (h + w) + 4 * n;
  return {2 * width * width * (13 * padded + 6 * n * (h + w) + 4 * n),
          image + 2 * (padded + borders) * channels * size};
}

/// Whether a method forms this factor on a device.
[[nodiscard]] inline bool applies(const ops::PatchSpec& s, ops::PatchMethod method) {
  if (method == ops::PatchMethod::offsets) return dkfac::detail::is_three_by_three(s);
  return method == ops::PatchMethod::automatic || method == ops::PatchMethod::panels;
}

/// The one with fewer operations.
[[nodiscard]] inline ops::PatchMethod cheapest_method(const ops::PatchSpec& s, DType dtype) {
  const bool offsets = dkfac::detail::is_three_by_three(s) &&
                       cost_of_offsets(s, dtype).operations < cost_of_panels(s, dtype).operations;
  return offsets ? ops::PatchMethod::offsets : ops::PatchMethod::panels;
}

}  // namespace dkfac::cuda
