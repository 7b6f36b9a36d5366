#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// FNV-1a hashes, continued from `seed`; the same on every host, so ranks may compare them.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325ULL;
[[nodiscard]] std::uint64_t hash_bytes(std::uint64_t seed, const void* data,
                                       std::size_t bytes) noexcept;
[[nodiscard]] std::uint64_t hash_number(std::uint64_t seed, std::uint64_t value) noexcept;
/// Hashes text including its length, so that ("ab", "c") and ("a", "bc") differ.
[[nodiscard]] std::uint64_t hash_text(std::uint64_t seed, std::string_view text) noexcept;
[[nodiscard]] std::uint64_t hash_counts(std::uint64_t seed,
                                        std::span<const std::int64_t> counts) noexcept;
[[nodiscard]] std::uint64_t hash_call(std::uint64_t seed, const CallInfo& info) noexcept;

/// Digest of a call of one rank, for comparison over ranks and for messages.
struct CallDigest {
  std::uint64_t hash = 0;
  std::string text;
};
[[nodiscard]] CallDigest digest_of(const CallInfo& info);

/// Compares the digests of all ranks: empty if they agree, else a message that names each rank's
/// call. `names`: the numbers by which the message names the ranks; empty: 0, 1, 2 and so on.
[[nodiscard]] std::string disagreement(std::span<const CallDigest> by_rank,
                                       std::span<const int> names = {});

/// Failure of a group whose rank, `rank` in messages, destroyed the task of a call before its end.
/// While an exception is on its way the message points to that, not to the order of destruction.
[[nodiscard]] std::string dropped_text(const CallInfo& info, int rank);

/// Lists ranks as "rank 1" or "ranks 1, 3"; long lists are truncated.
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

}  // namespace dkfac::comm
