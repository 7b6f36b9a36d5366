#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/step_flags.h"
#include "dkfac/core/tensor_view.h"

/// Encoding of the flags of a step as a few numbers per rank. They are summed over ranks together
/// with other data; every rank decodes the same agreement from the sums.
namespace dkfac::comm {

/// Throws InvalidArgument, in the name of step(), for a loss that StepFlags does not allow.
void check_flags(const StepFlags& flags, Device device);

/// Flags that one rank contributes.
struct FlagMessage {
  StepFlags caller;
  bool nonfinite_gradient = false;
  bool nonfinite_statistic = false;
  /// Numbers of values that are not finite, f32[1] on the device of the gradients and statistics; a
  /// count other than 0 raises the corresponding flag.
  ConstTensorView gradient_count = {}, statistic_count = {};
  /// Index, chosen by the caller, of a statistic beyond max_failed_refreshes; -1 for none.
  int failed_statistic = -1;
  bool lacks_inverse = false;  ///< A layer owned by this rank has not been inverted yet.
  bool no_samples = false;     ///< This rank's statistics of the step contain no sample.
  std::uint64_t hash = 0;      ///< Hash of the issued collectives and the arguments of the step.
};

/// Agreement decoded from the sums.
struct AgreedFlags {
  StepAgreement flags;
  bool ranks_agree = true;  ///< Every rank had the same hash.
  int failed_rank = -1;     ///< Set if exactly one rank reports a failed statistic.
  int failed_statistic = -1;
  bool lacks_inverse = false;  ///< Raised by any rank.
  int without_samples = 0;     ///< Ranks with no_samples.
};

/// Elements of a message: six flags; the failed rank and statistic; h and h*h for each of the 16
/// hexadecimal digits h of the hash; lacks_inverse and no_samples.
inline constexpr std::int64_t kFlagElements = 8 + 2 * 16 + 2;
/// Sums of messages are exact in f32 up to this many ranks: 15 * 15 * 65536 < 2^24.
inline constexpr int kMaxFlagRanks = 65536;

/// Encodes a message, without the counts, into out[kFlagElements]; every element is an integer
/// below 2^24.
void encode_flags(const FlagMessage& message, int rank, std::span<double> out);

/// Raises the flags of the counts and of the loss in values[kFlagElements] (f64), on the context's
/// device.
void add_counts(Context& ctx, const FlagMessage& message, TensorView values);

/// Decodes sums[kFlagElements] over world_size ranks. Digits are equal on all ranks exactly if
/// their variance is zero: world_size * sum(h*h) == (sum h)^2.
[[nodiscard]] AgreedFlags decode_flags(std::span<const double> sums, int world_size);

/// Combines a hash with a value that must be equal on all ranks.
[[nodiscard]] std::uint64_t mix_hash(std::uint64_t hash, double value);

}  // namespace dkfac::comm
