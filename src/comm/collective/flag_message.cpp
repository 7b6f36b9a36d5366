#include "comm/collective/flag_message.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "dkfac/core/error.h"

#include "comm/collective/backend_collective.h"

namespace dkfac::comm {
namespace {

constexpr int kDigits = 16;
constexpr std::size_t kGradientAt = 1, kStatisticAt = 2, kHashAt = 8;
constexpr std::size_t kLacksInverseAt = kHashAt + 2 * kDigits, kNoSamplesAt = kLacksInverseAt + 1;

int count_of(double sum) { return static_cast<int>(std::lround(sum)); }

}  // namespace

void check_flags(const StepFlags& flags, Device device) {
  const ConstTensorView& loss = flags.loss;
  if (loss.empty()) return;
  DKFAC_CHECK(loss.raw() != nullptr && loss.numel() == 1 && loss.dtype() == DType::f64 &&
                  loss.device() == device,
              "[step] StepFlags::loss is ", loss.dtype(), loss.shape(), " on ", loss.device(),
              loss.raw() == nullptr ? " (null)" : "", "; it must be f64[1] on ", device);
}

void encode_flags(const FlagMessage& message, int rank, std::span<double> out) {
  DKFAC_CHECK(out.size() == static_cast<std::size_t>(kFlagElements),
              "[step] a message of flags has ", kFlagElements, " elements, not ", out.size());
  const bool failed = message.failed_statistic >= 0;
  out[0] = message.caller.loss_nonfinite ? 1 : 0;
  out[kGradientAt] = message.nonfinite_gradient ? 1 : 0;
  out[kStatisticAt] = message.nonfinite_statistic ? 1 : 0;
  out[3] = message.caller.data_error ? 1 : 0;
  out[4] = failed ? 1 : 0;
  out[5] = message.caller.stop ? 1 : 0;
  out[6] = failed ? rank : 0;
  out[7] = failed ? message.failed_statistic : 0;
  out[kLacksInverseAt] = message.lacks_inverse ? 1 : 0;
  for (int i = 0; i < kDigits; ++i) {
    const auto digit = static_cast<double>((message.hash >> (4 * i)) & 0xF);
    const std::size_t at = kHashAt + 2 * static_cast<std::size_t>(i);
    out[at] = digit;
    out[at + 1] = digit * digit;
  }
  out[kNoSamplesAt] = message.no_samples ? 1 : 0;
}

void add_counts(Context& ctx, const FlagMessage& message, TensorView values) {
  const auto raise = [&](ConstTensorView count, std::int64_t flag) {
    if (!count.empty()) kernels::raise_flag(ctx, count, values.slice(0, flag, 1));
  };
  raise(message.gradient_count, kGradientAt);
  if (const ConstTensorView loss = message.caller.loss; !loss.empty())
    kernels::raise_nonfinite(ctx, loss, values.slice(0, 0, 1));
  raise(message.statistic_count, kStatisticAt);
}

AgreedFlags decode_flags(std::span<const double> sums, int world_size) {
  DKFAC_CHECK(sums.size() == static_cast<std::size_t>(kFlagElements),
              "[step] a message of flags has ", kFlagElements, " elements, not ", sums.size());
  AgreedFlags agreed;
  agreed.flags = {.nonfinite_loss = count_of(sums[0]),
                  .nonfinite_gradient = count_of(sums[1]),
                  .nonfinite_statistic = count_of(sums[2]),
                  .data_error = count_of(sums[3]),
                  .numeric_failure = count_of(sums[4]),
                  .stop = count_of(sums[5])};
  if (agreed.flags.numeric_failure == 1) {
    agreed.failed_rank = count_of(sums[6]);
    agreed.failed_statistic = count_of(sums[7]);
  }
  agreed.lacks_inverse = count_of(sums[kLacksInverseAt]) > 0;
  for (std::size_t i = 0; i < kDigits; ++i) {
    const double sum = sums[kHashAt + 2 * i], squares = sums[kHashAt + 2 * i + 1];
    if (world_size * squares != sum * sum) agreed.ranks_agree = false;
  }
  agreed.without_samples = count_of(sums[kNoSamplesAt]);
  return agreed;
}

std::uint64_t mix_hash(std::uint64_t hash, double value) {
  // The finalizer of splitmix64 propagates a difference in any bit to all digits.
  std::uint64_t z = hash + 0x9E3779B97F4A7C15ULL + std::bit_cast<std::uint64_t>(value);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace dkfac::comm
