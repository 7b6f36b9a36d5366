#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/layer_curvature.h"

/// Error messages and files about factors that failed too often.
namespace dkfac::kfac {

/// What failed too often for a statistic.
enum class FailedAt : std::uint8_t {
  inversion,  ///< No fallback stage gave an inverse.
  statistic,  ///< The sum over ranks was not finite.
  scales      ///< The sum of EKFAC's scales was not finite.
};
/// Describes the failure, e.g. "could not be inverted".
[[nodiscard]] const char* what_failed(FailedAt failed);
/// Advice for the error message: "raise the damping", and other options that are not set yet.
[[nodiscard]] std::string remedy(const CurvatureOptions& options, FailedAt failed);

/// Saves the average of a factor that has failed too often as a NumPy array in
/// InverseOptions::failure_folder.
///
/// The file is <layer>.<kind>.damping-<shift>.npy with kind "a" or "g": [d,d] (both triangles),
/// [groups,d,d], or rows [rows,d] of the low-rank form. With several groups the name contains the
/// first that failed, with its damping: <layer>.<kind>.group-<i>.damping-<shift>.npy. If the factor
/// failed before its state was loaded, neither is known: <layer>.<kind>.npy.
///
/// Bytes of the layer's name other than letters, digits, '.', '-' or '_' become '_'. Such a name is
/// followed by "-" and its hash in hexadecimal, to keep names distinct. Returns the path, or an
/// empty string without a folder or when writing fails; it never throws, so as not to hide the
/// error being reported. Waits for the device of the factor.
[[nodiscard]] std::string save_failed_factor(Context& ctx, const CurvatureOptions& options,
                                             std::string_view layer_name, std::string_view kind,
                                             const Factor& factor) noexcept;

/// Writes a contiguous f32 or f64 host tensor as .npy (format 1.0). Returns false on failure.
[[nodiscard]] bool write_npy(const std::string& path, ConstTensorView x) noexcept;

}  // namespace dkfac::kfac
