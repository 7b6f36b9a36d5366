#include "core/cpu/patch_method.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/cpu/self_correlation.h"
#include "core/patch_shapes.h"

namespace dkfac::cpu {
namespace {

using detail::is_three_by_three;
using ops::Layout;
using ops::PatchMethod;
using ops::PatchSpec;

/// Measured milliseconds of one factor of `batch` images of extent x extent.
struct Measured {
  std::int64_t channels, extent, batch;
  std::array<double, 3> ms;  ///< Panels, offsets, correlation.
};

/// Measurements for f32, nhwc, on two cores with AVX-512 (Zen 5, 1 MiB of L2 cache each), OpenBLAS
/// 0.3.21 and oneDNN 2.6.3, the fastest of 12 runs. The section "methods" of `dkfac bench factors
/// --model M --input H W 3 --batch N --threads 2` repeats them for the shapes of a model.
constexpr std::array<Measured, 24> kMeasured = {{
    {1, 28, 128, {0.99, 0.32, 0.27}},      {3, 32, 128, {1.59, 0.62, 0.82}},
    {4, 16, 128, {0.50, 0.24, 0.25}},      {4, 32, 128, {1.95, 0.80, 1.02}},
    {8, 32, 128, {4.01, 1.41, 2.39}},      {16, 32, 128, {10.38, 2.74, 3.50}},
    {16, 16, 128, {2.37, 0.77, 0.80}},     {32, 16, 128, {8.29, 2.53, 3.19}},
    {32, 32, 64, {16.17, 4.31, 6.79}},     {64, 8, 128, {6.83, 3.42, 2.92}},
    {64, 16, 32, {6.88, 2.65, 3.20}},      {64, 32, 64, {67.02, 18.22, 26.36}},
    {64, 56, 16, {48.20, 13.19, 22.68}},   {128, 4, 128, {7.16, 5.14, 3.51}},
    {128, 8, 32, {7.08, 3.44, 3.52}},      {128, 16, 64, {67.86, 19.87, 26.18}},
    {128, 28, 32, {98.44, 26.44, 46.27}},  {256, 2, 128, {6.36, 10.88, 7.57}},
    {256, 4, 32, {6.43, 6.54, 5.84}},      {256, 8, 64, {62.40, 31.04, 25.85}},
    {256, 14, 32, {100.41, 37.19, 40.22}}, {512, 2, 32, {6.14, 16.86, 15.35}},
    {512, 4, 64, {52.58, 51.27, 39.92}},   {512, 7, 32, {87.72, 52.28, 54.09}},
}};

/// Distance of two shapes: powers of two between their channels and extents.
double distance(const Measured& m, const PatchSpec& s) {
  const auto powers = [](double a, double b) { return std::abs(std::log2(a / b)); };
  const double extent = std::sqrt(static_cast<double>(s.h * s.w));
  return powers(static_cast<double>(m.channels), static_cast<double>(s.c)) +
         powers(static_cast<double>(m.extent), extent);
}

}  // namespace

bool applies(const PatchSpec& spec, DType dtype, PatchMethod method) {
  switch (method) {
    case PatchMethod::automatic:
    case PatchMethod::panels:
      return true;
    case PatchMethod::offsets:
      return is_three_by_three(spec);
    case PatchMethod::correlation:
      return is_three_by_three(spec) && has_self_correlation() && dtype == DType::f32 &&
             spec.layout == Layout::nhwc && spec.c == spec.x_channels();
  }
  return false;
}

PatchMethod fastest_method(Backend backend, const PatchSpec& spec, DType dtype) {
  constexpr std::array kMethods = {PatchMethod::panels, PatchMethod::offsets,
                                   PatchMethod::correlation};
  if (backend == Backend::reference || !is_three_by_three(spec) || spec.h * spec.w * spec.c == 0) {
    return PatchMethod::panels;
  }
  const Measured& nearest = *std::min_element(
      kMeasured.begin(), kMeasured.end(),
      [&](const Measured& a, const Measured& b) { return distance(a, spec) < distance(b, spec); });
  PatchMethod best = PatchMethod::panels;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < kMethods.size(); ++i) {
    if (!applies(spec, dtype, kMethods[i]) || nearest.ms[i] >= least) continue;
    best = kMethods[i];
    least = nearest.ms[i];
  }
  return best;
}

}  // namespace dkfac::cpu
