#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {

namespace {

constexpr std::size_t kContext = 120;  ///< Characters of a line shown in a message.

std::int64_t length(std::size_t n) { return static_cast<std::int64_t>(n); }

/// Gathers `mine` of every rank, in rank order.
std::vector<std::int32_t> gather(Communicator& comm, std::span<const std::int32_t> mine,
                                 std::span<const std::int64_t> counts, std::string_view name) {
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::int32_t> all(static_cast<std::size_t>(total));
  comm.all_gather_v(view_of(mine.data(), {length(mine.size())}), counts,
                    view_of(all.data(), {total}), Stream::cpu(), name);
  return all;
}

std::vector<std::int64_t> equal_counts(const Communicator& comm, std::int64_t count) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(comm.size()), count);
}

std::vector<int> ranks_unlike_first(Communicator& comm, std::string_view text,
                                    std::string_view name) {
  const std::uint64_t hash = hash_text(kHashSeed, text);
  std::array<std::int32_t, 2> words;
  std::memcpy(words.data(), &hash, sizeof(hash));
  const std::vector<std::int32_t> all = gather(comm, words, equal_counts(comm, 2), name);
  std::vector<int> unlike;
  for (std::size_t r = 0; r < all.size() / 2; ++r)
    if (all[2 * r] != all[0] || all[2 * r + 1] != all[1]) unlike.push_back(static_cast<int>(r));
  return unlike;
}

/// Returns the line around `at`, from its beginning if that is near.
std::string excerpt(std::string_view text, std::size_t at) {
  const std::size_t begin = text.substr(0, at).rfind('\n') + 1;
  text.remove_prefix(std::max(begin, at - std::min(at, kContext / 2)));
  return std::string(text.substr(0, std::min(text.find('\n'), kContext)));
}

}  // namespace

std::vector<std::string> all_gather_strings(Communicator& comm, std::string_view mine) {
  DKFAC_CHECK(mine.size() <= std::numeric_limits<std::int32_t>::max(),
              "[all_gather_strings] a string of ", mine.size(), " bytes; at most 2^31 - 1");
  const auto size = static_cast<std::int32_t>(mine.size());
  const std::vector<std::int32_t> sizes =
      gather(comm, {&size, 1}, equal_counts(comm, 1), "string lengths");
  std::vector<std::int64_t> words;
  for (const std::int32_t bytes : sizes) words.push_back((std::int64_t{bytes} + 3) / 4);

  std::vector<std::int32_t> packed((mine.size() + 3) / 4);
  if (!mine.empty()) std::memcpy(packed.data(), mine.data(), mine.size());
  const std::vector<std::int32_t> all = gather(comm, packed, words, "strings");

  std::vector<std::string> strings;
  std::size_t offset = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto* bytes = reinterpret_cast<const char*>(all.data() + offset);
    strings.emplace_back(bytes, static_cast<std::size_t>(sizes[r]));
    offset += static_cast<std::size_t>(words[r]);
  }
  return strings;
}

void require_equal(Communicator& comm, std::string_view text, std::string_view what) {
  const std::string name = detail::concat("equal ", what);
  const std::vector<int> unlike = ranks_unlike_first(comm, text, name);
  if (unlike.empty()) return;
  // All ranks take this branch together, so they can still gather the texts.
  const std::vector<std::string> texts = all_gather_strings(comm, text);
  const std::string& first = texts.front();
  const std::string& other = texts[static_cast<std::size_t>(unlike.front())];
  const auto end = std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first;
  const auto at = static_cast<std::size_t>(end - first.begin());
  throw InvalidArgument(detail::concat("[require_equal] ", what, " of ", rank_list(unlike),
                                       " differs from rank 0's: rank ", unlike.front(), " has '",
                                       excerpt(other, at), "', rank 0 has '", excerpt(first, at),
                                       "'; give every rank the same"));
}

}  // namespace dkfac::comm
