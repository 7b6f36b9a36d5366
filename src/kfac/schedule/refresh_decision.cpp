#include "kfac/schedule/refresh_decision.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"

#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {
namespace {

void check_size(std::size_t size) {
  DKFAC_CHECK(size == static_cast<std::size_t>(kNumbersPerDecision), "[decisions] a decision has ",
              kNumbersPerDecision, " numbers, not ", size);
}

}  // namespace

void encode_decision(const RefreshDecision& decision, std::span<double> out) {
  check_size(out.size());
  const std::int64_t interval = std::clamp<std::int64_t>(decision.interval, 1, kMaxInterval);
  out[0] = static_cast<double>(interval / kIntervalBase);
  out[1] = static_cast<double>(interval % kIntervalBase);
  out[2] = static_cast<double>(
      to_float(to_f16(std::clamp(decision.drift, -1.0, static_cast<double>(kMaxF16)))));
  out[3] = decision.exponent;
}

RefreshDecision decode_decision(std::span<const double> numbers) {
  check_size(numbers.size());
  RefreshDecision decision;
  decision.interval = kIntervalBase * std::llround(numbers[0]) + std::llround(numbers[1]);
  decision.drift = numbers[2];
  decision.exponent = static_cast<int>(std::lround(numbers[3]));
  return decision;
}

}  // namespace dkfac::kfac
