#include "comm/call_info.h"

#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace dkfac::comm {

namespace {

CallInfo example() { return {12, "reduce_scatter_v", "factors A", 4096, 99, "f32"}; }

}  // namespace

TEST(CallInfo, DescribesItself) {
  EXPECT_EQ(example().describe(), "#12 reduce_scatter_v f32 x 4096 'factors A'");
  EXPECT_EQ((CallInfo{3, "barrier", "", 0, 0, ""}).describe(), "#3 barrier");
}

TEST(CallInfo, HashIsTheOneOfFnv1a) {
  // Test vectors of the algorithm: the empty string, "a" and "foobar".
  EXPECT_EQ(hash_bytes(kHashSeed, "", 0), 0xcbf29ce484222325ULL);
  EXPECT_EQ(hash_bytes(kHashSeed, "a", 1), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(hash_bytes(kHashSeed, "foobar", 6), 0x85944171f73967e8ULL);
}

TEST(CallInfo, HashDependsOnEveryField) {
  const std::uint64_t base = hash_call(kHashSeed, example());
  EXPECT_EQ(hash_call(kHashSeed, example()), base);
  std::array<CallInfo, 6> others;
  others.fill(example());
  others[0].sequence = 13;
  others[1].op = "all_gather_v";
  others[2].name = "factors G";
  others[3].count = 4095;
  others[4].detail = 98;
  others[5].dtype = "f64";
  for (const CallInfo& other : others) EXPECT_NE(hash_call(kHashSeed, other), base);
}

TEST(CallInfo, TextsDoNotRunIntoEachOther) {
  CallInfo one = example(), two = example();
  one.op = "ab";
  one.name = "c";
  two.op = "a";
  two.name = "bc";
  EXPECT_NE(hash_call(kHashSeed, one), hash_call(kHashSeed, two));
}

TEST(Disagreement, IsEmptyWhenAllAgree) {
  const std::vector<CallDigest> digests(3, digest_of(example()));
  EXPECT_EQ(disagreement(digests), "");
}

TEST(Disagreement, NamesWhoIssuedWhat) {
  std::vector<CallDigest> digests(4, digest_of(example()));
  CallInfo other = example();
  other.name = "factors G";
  digests[2] = digest_of(other);
  const std::string text = disagreement(digests);
  EXPECT_NE(text.find("ranks 0, 1, 3 issued #12 reduce_scatter_v f32 x 4096 'factors A', but rank "
                      "2 issued #12 reduce_scatter_v f32 x 4096 'factors G'"),
            std::string::npos)
      << text;
}

TEST(Disagreement, NamesRanksByTheGivenNumbers) {
  std::vector<CallDigest> digests(3, digest_of(example()));
  CallInfo other = example();
  other.name = "factors G";
  digests[1] = digest_of(other);
  const std::string text = disagreement(digests, std::vector<int>{4, 6, 5});
  EXPECT_NE(text.find("ranks 4, 5 issued"), std::string::npos) << text;
  EXPECT_NE(text.find("but rank 6 issued"), std::string::npos) << text;
}

TEST(RankList, IsCutWhenLong) {
  std::vector<int> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(rank_list(std::vector<int>{5}), "rank 5");
  EXPECT_EQ(rank_list(std::vector<int>{1, 3}), "ranks 1, 3");
  EXPECT_EQ(rank_list(ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
}

}  // namespace dkfac::comm
