#include "comm/call_info.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <vector>

namespace dkfac::comm {

namespace {

constexpr std::uint64_t kHashPrime = 0x100000001b3ULL;
constexpr std::size_t kRanksShown = 8;
constexpr std::size_t kGroupsShown = 4;

struct RankGroup {
  const CallDigest* digest;
  std::vector<int> ranks;
};

std::vector<RankGroup> group_equal(std::span<const CallDigest> by_rank,
                                   std::span<const int> names) {
  std::vector<RankGroup> groups;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const int name = names.empty() ? static_cast<int>(r) : names[r];
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const RankGroup& group) {
      return group.digest->hash == by_rank[r].hash;
    });
    if (same != groups.end()) {
      same->ranks.push_back(name);
    } else {
      groups.push_back({&by_rank[r], {name}});
    }
  }
  return groups;
}

}  // namespace

std::uint64_t hash_bytes(std::uint64_t seed, const void* data, std::size_t bytes) noexcept {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) seed = (seed ^ byte[i]) * kHashPrime;
  return seed;
}

std::uint64_t hash_number(std::uint64_t seed, std::uint64_t value) noexcept {
  for (int i = 0; i < 8; ++i) seed = (seed ^ ((value >> (8 * i)) & 0xffU)) * kHashPrime;
  return seed;
}

std::uint64_t hash_text(std::uint64_t seed, std::string_view text) noexcept {
  return hash_bytes(hash_number(seed, text.size()), text.data(), text.size());
}

std::uint64_t hash_counts(std::uint64_t seed, std::span<const std::int64_t> counts) noexcept {
  seed = hash_number(seed, counts.size());
  for (const std::int64_t count : counts)
    seed = hash_number(seed, static_cast<std::uint64_t>(count));
  return seed;
}

std::uint64_t hash_call(std::uint64_t seed, const CallInfo& info) noexcept {
  seed = hash_text(hash_text(hash_number(seed, info.sequence), info.op), info.name);
  return hash_text(hash_number(hash_number(seed, info.count), info.detail), info.dtype);
}

std::string CallInfo::describe() const {
  std::ostringstream out;
  out << '#' << sequence << ' ' << op;
  if (!dtype.empty()) out << ' ' << dtype << " x " << count;
  if (!name.empty()) out << " '" << name << '\'';
  return std::move(out).str();
}

CallDigest digest_of(const CallInfo& info) { return {hash_call(kHashSeed, info), info.describe()}; }

std::string disagreement(std::span<const CallDigest> by_rank, std::span<const int> names) {
  const std::vector<RankGroup> groups = group_equal(by_rank, names);
  if (groups.size() <= 1) return {};
  std::ostringstream out;
  out << "[collective] the ranks disagree: ";
  bool same_text = true;
  for (std::size_t g = 0; g < std::min(groups.size(), kGroupsShown); ++g) {
    out << (g == 0 ? "" : ", but ") << rank_list(groups[g].ranks) << " issued "
        << groups[g].digest->text;
    same_text = same_text && groups[g].digest->text == groups[0].digest->text;
  }
  if (groups.size() > kGroupsShown)
    out << ", and " << groups.size() - kGroupsShown << " more kinds";
  if (same_text) out << " (with other segment counts)";
  out << "; every rank must issue the same collectives in the same order";
  return std::move(out).str();
}

std::string dropped_text(const CallInfo& info, int rank) {
  std::ostringstream out;
  out << '[' << info.op << "] rank " << rank << " dropped " << info.describe()
      << " before it was complete; "
      << (std::uncaught_exceptions() > 0 ? "an exception was on its way there: look for its message"
                                         : "wait for a stream before destroying it");
  return std::move(out).str();
}

std::string rank_list(std::span<const int> ranks) {
  std::ostringstream out;
  out << (ranks.size() == 1 ? "rank " : "ranks ");
  for (std::size_t i = 0; i < std::min(ranks.size(), kRanksShown); ++i)
    out << (i == 0 ? "" : ", ") << ranks[i];
  if (ranks.size() > kRanksShown) out << " and " << ranks.size() - kRanksShown << " more";
  return std::move(out).str();
}

}  // namespace dkfac::comm
