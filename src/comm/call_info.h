#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// FNV-1a, continued from `seed`. The same on every host, so hashes may be compared over ranks.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325ULL;
[[nodiscard]] std::uint64_t hash_bytes(std::uint64_t seed, const void* data,
                                       std::size_t bytes) noexcept;
[[nodiscard]] std::uint64_t hash_number(std::uint64_t seed, std::uint64_t value) noexcept;
/// Covers the length too, so that ("ab", "c") and ("a", "bc") differ.
[[nodiscard]] std::uint64_t hash_text(std::uint64_t seed, std::string_view text) noexcept;
[[nodiscard]] std::uint64_t hash_counts(std::uint64_t seed,
                                        std::span<const std::int64_t> counts) noexcept;
[[nodiscard]] std::uint64_t hash_call(std::uint64_t seed, const CallInfo& info) noexcept;

/// What a rank says about its call: enough to compare and to name it.
struct CallRecord {
  std::uint64_t hash = 0;
  std::string text;
};
[[nodiscard]] CallRecord record_of(const CallInfo& info);

/// Empty when all records (by rank) agree; else a message that names each rank's call.
[[nodiscard]] std::string disagreement(std::span<const CallRecord> by_rank);

/// "rank 1", "ranks 1, 3"; long lists are cut.
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

}  // namespace dkfac::comm
