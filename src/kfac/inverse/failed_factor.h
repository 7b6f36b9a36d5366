#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/layer_curvature.h"

/// Evidence of a factor that could not be inverted.
namespace dkfac::kfac {

/// What a statistic has done too often.
enum class FailedAt : std::uint8_t {
  inversion,  ///< No stage of the ladder gave an inverse.
  statistic,  ///< The sum over ranks was not finite.
  scales      ///< That of EKFAC's scales was not.
};
/// "could not be inverted"
[[nodiscard]] const char* what_failed(FailedAt failed);
/// "raise the damping", and what else has not been done yet.
[[nodiscard]] std::string remedy(const CurvatureOptions& options, FailedAt failed);

/// Saves the average of a factor that has failed too often as a NumPy array in
/// InverseOptions::failure_folder: <layer>.<kind>.damping-<shift>.npy with kind "a" or "g", [d,d]
/// (both triangles), [groups,d,d], or rows [rows,d] of the low-rank form. Of several groups the
/// name tells the first that failed, with its damping:
/// <layer>.<kind>.group-<i>.damping-<shift>.npy. Of a factor that failed before its state was
/// loaded neither is known: <layer>.<kind>.npy. Bytes of the layer's name that are not letters,
/// digits, '.', '-' or '_' become '_', and a name with such bytes is followed by "-" and a hash of
/// it in hexadecimal, since others may become the same. Returns the path, or an empty string when
/// there is no folder or it cannot be written: the failure that is reported is another one. Waits
/// for a device that the factor is on.
[[nodiscard]] std::string save_failed_factor(Context& ctx, const CurvatureOptions& options,
                                             std::string_view layer_name, std::string_view kind,
                                             const Factor& factor) noexcept;

/// Writes a contiguous f32 or f64 host tensor as .npy (format 1.0). False when that fails.
[[nodiscard]] bool write_npy(const std::string& path, ConstTensorView x) noexcept;

}  // namespace dkfac::kfac
