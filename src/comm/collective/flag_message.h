#pragma once

#include <cstdint>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/step_flags.h"
#include "dkfac/core/tensor_view.h"

/// The vote of a step: a few numbers per rank that are summed over ranks together with other data.
/// From the sums alone every rank learns the same outcome.
namespace dkfac::comm {

/// Throws InvalidArgument, in the name of step(), for a loss that is not what StepFlags asks for.
void check_flags(const StepFlags& flags, Device device);

/// What one rank says.
struct FlagMessage {
  StepFlags caller;
  bool nonfinite_gradient = false;
  bool nonfinite_statistic = false;
  /// f32[1] where the gradients resp. statistics are: raise these flags too where they are not 0.
  ConstTensorView gradient_count = {}, statistic_count = {};
  /// Past max_failed_refreshes, or -1: an index that the caller gives meaning to.
  int failed_statistic = -1;
  bool lacks_inverse = false;  ///< A layer that this rank owns has not been inverted yet.
  bool no_samples = false;     ///< All statistics of this step are of this rank's 0 samples.
  std::uint64_t hash = 0;      ///< Of the collectives issued and the arguments of the step.
};

/// What the sums say.
struct AgreedFlags {
  StepAgreement flags;
  bool ranks_agree = true;  ///< Every rank had the same hash.
  int failed_rank = -1;     ///< Set when exactly one rank reports one.
  int failed_statistic = -1;
  bool lacks_inverse = false;  ///< Of any rank.
  bool no_samples = false;     ///< Of all ranks: the statistics would be 0.
};

/// Elements of a message: six flags, the failed rank and statistic, for each of the 16 hexadecimal
/// digits h of the hash h and h*h, and the flags of a layer without an inverse and of no samples.
inline constexpr std::int64_t kFlagElements = 8 + 2 * 16 + 2;
/// Sums of messages are exact in f32 up to this many ranks: 15 * 15 * 65536 < 2^24.
inline constexpr int kMaxFlagRanks = 65536;

/// out[kFlagElements], without the counts; every element is an integer below 2^24.
void encode_flags(const FlagMessage& message, int rank, std::span<double> out);

/// Raises the flags of the counts and of the loss in values[kFlagElements] (f64), in the memory
/// of the context.
void add_counts(Context& ctx, const FlagMessage& message, TensorView values);

/// sums[kFlagElements] over world_size ranks. Digits are equal on all ranks exactly when their
/// variance is zero: world_size * sum(h*h) == (sum h)^2.
[[nodiscard]] AgreedFlags decode_flags(std::span<const double> sums, int world_size);

/// Combines a hash with a value that must be equal on all ranks.
[[nodiscard]] std::uint64_t mix_hash(std::uint64_t hash, double value);

}  // namespace dkfac::comm
