#include "kfac/schedule/notes.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"

#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {
namespace {

void check_size(std::size_t size) {
  DKFAC_CHECK(size == static_cast<std::size_t>(kNumbersPerNote), "[notes] a note has ",
              kNumbersPerNote, " numbers, not ", size);
}

}  // namespace

void encode_note(const StatisticNote& note, std::span<double> out) {
  check_size(out.size());
  const std::int64_t interval = std::clamp<std::int64_t>(note.interval, 1, kMaxInterval);
  out[0] = static_cast<double>(interval / kIntervalBase);
  out[1] = static_cast<double>(interval % kIntervalBase);
  out[2] = static_cast<double>(
      to_float(to_f16(std::clamp(note.drift, -1.0, static_cast<double>(kMaxF16)))));
  out[3] = note.exponent;
}

StatisticNote decode_note(std::span<const double> numbers) {
  check_size(numbers.size());
  StatisticNote note;
  note.interval = kIntervalBase * std::llround(numbers[0]) + std::llround(numbers[1]);
  note.drift = numbers[2];
  note.exponent = static_cast<int>(std::lround(numbers[3]));
  return note;
}

}  // namespace dkfac::kfac
