#include "comm/transport/handshake.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

using State = Answer::State;
using Verdict = Reply::Verdict;

const std::string kSecret = "0123456789abcdef", kOther = "0123456789abcdeg";

template <class Message>
std::span<const std::byte> bytes_of_message(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

/// Gives an answer these bytes, `part` at a time; returns the last reply.
std::optional<Reply> feed(Answer& answer, std::span<const std::byte> bytes, const Member& self,
                          std::size_t part = 1000) {
  std::optional<Reply> reply;
  while (!bytes.empty() && !room(answer).empty()) {
    const std::span<std::byte> to = room(answer);
    const std::size_t count = std::min({part, bytes.size(), to.size()});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes = bytes.subspan(count);
    if (const auto found = take(answer, count, self)) reply = found;
  }
  return reply;
}

Handshake handshake_of(int rank, int to, bool has_secret = true) {
  Handshake handshake;
  handshake.job = 77;
  handshake.group = 5;
  handshake.rank = static_cast<std::uint32_t>(rank);
  handshake.to = static_cast<std::uint32_t>(to);
  handshake.size = 4;
  handshake.port = 1234;
  handshake.purpose = Handshake::Purpose::data;
  handshake.has_secret = has_secret ? 1 : 0;
  if (has_secret) handshake.number = random_digest();
  return handshake;
}

/// A connection in which rank 2 connects to rank 1, until rank 1 has answered the handshake.
struct Begun {
  Member listens{1, 4, kSecret};
  Handshake handshake = handshake_of(2, 1);
  Answer answer;
  Digest number{};

  explicit Begun(std::size_t part = 1000) {
    const auto question = feed(answer, bytes_of_message(handshake), listens, part);
    EXPECT_TRUE(question && question->verdict == Verdict::prove);
    if (question) number = question->digest;
  }
};

class HandshakeSecret : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_crypto()) GTEST_SKIP() << "this build has no libcrypto";
  }
};

TEST_F(HandshakeSecret, IsProvedByBothSidesHoweverTheBytesArrive) {
  for (const std::size_t part : {1U, 7U, 1000U}) {
    Begun begun(part);
    const Digest proof = proof_of(Role::connects, kSecret, begun.handshake, begun.number);
    const auto reply = feed(begun.answer, proof, begun.listens, part);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->verdict, Verdict::accepted);
    EXPECT_EQ(begun.answer.state, State::accepted);
    EXPECT_EQ(reply->digest, proof_of(Role::listens, kSecret, begun.handshake, begun.number));
    EXPECT_NE(reply->digest, proof_of(Role::listens, kOther, begun.handshake, begun.number));
  }
}

/// Gives the connecting side a reply, `part` bytes at a time; returns the last proof.
std::optional<Digest> feed(Introduction& introduction, const Reply& reply, const Member& self,
                           std::size_t part) {
  std::optional<Digest> proof;
  std::span<const std::byte> bytes = bytes_of_message(reply);
  while (!bytes.empty() && !room(introduction).empty()) {
    const std::span<std::byte> to = room(introduction);
    const std::size_t count = std::min({part, bytes.size(), to.size()});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes = bytes.subspan(count);
    if (const auto found = take(introduction, count, self, "rank 1")) proof = found;
  }
  return proof;
}

TEST_F(HandshakeSecret, IsProvedByTheConnectingSideHoweverTheRepliesArrive) {
  const Member connects{2, 4, kSecret}, listens{1, 4, kSecret}, other{1, 4, kOther};
  for (const std::size_t part : {1U, 7U, 1000U})
    for (const Member& listener : {listens, other}) {
      Introduction introduction = begin_introduction(handshake_of(2, 1), connects);
      Answer answer;
      const auto question = feed(answer, bytes_of_message(introduction.handshake), listener);
      ASSERT_TRUE(question.has_value());
      const auto proof = feed(introduction, *question, connects, part);
      ASSERT_TRUE(proof.has_value());
      const auto verdict = feed(answer, *proof, listener);
      ASSERT_TRUE(verdict.has_value());
      if (listener.secret == kOther) {
        EXPECT_THROW((void)feed(introduction, *verdict, connects, part), CommError);
        continue;
      }
      EXPECT_FALSE(feed(introduction, *verdict, connects, part).has_value());
      EXPECT_TRUE(room(introduction).empty());
      EXPECT_EQ(answer.state, State::accepted);
    }
}

TEST_F(HandshakeSecret, OfAListeningRankThatOnlyClaimsToHaveItIsRefused) {
  const Member connects{2, 4, kSecret};
  Introduction introduction = begin_introduction(handshake_of(2, 1), connects);
  EXPECT_TRUE(feed(introduction, {.digest = random_digest()}, connects, 1000).has_value());
  EXPECT_THROW((void)feed(introduction, {.verdict = Verdict::accepted, .digest = random_digest()},
                          connects, 1000),
               CommError);
  // Without a question, or of another program.
  Introduction unasked = begin_introduction(handshake_of(2, 1), connects);
  EXPECT_THROW((void)feed(unasked, {.verdict = Verdict::accepted}, connects, 1000), CommError);
  Introduction other = begin_introduction(handshake_of(2, 1), connects);
  EXPECT_THROW((void)feed(other, {.magic = 1}, connects, 1000), CommError);
}

TEST_F(HandshakeSecret, AnotherOneIsRefusedWithoutAProofInReturn) {
  Begun begun;
  const auto reply = feed(
      begun.answer, proof_of(Role::connects, kOther, begun.handshake, begun.number), begun.listens);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->verdict, Verdict::other_secret);
  EXPECT_EQ(reply->digest, Digest{});
  EXPECT_EQ(begun.answer.state, State::refused);
}

TEST_F(HandshakeSecret, AReplayedConnectionIsRefused) {
  Begun first;
  const Digest proof = proof_of(Role::connects, kSecret, first.handshake, first.number);
  for (const bool same_number : {false, true}) {  // Control: the number alone makes the difference.
    Answer again;
    feed(again, bytes_of_message(first.handshake), first.listens);
    if (same_number) again.number = first.number;
    feed(again, proof, first.listens);
    EXPECT_EQ(again.state, same_number ? State::accepted : State::refused);
  }
}

TEST_F(HandshakeSecret, AReflectedProofIsRefused) {
  Begun begun;
  // What rank 1 would send, had it connected itself with the same numbers, or at the end.
  const Digest reflected = proof_of(Role::listens, kSecret, begun.handshake, begun.number);
  feed(begun.answer, reflected, begun.listens);
  EXPECT_EQ(begun.answer.state, State::refused);
  // Its own random number, and that of the other side.
  for (const Digest& digest : {begun.number, begun.handshake.number}) {
    Begun other;
    feed(other.answer, digest, other.listens);
    EXPECT_EQ(other.answer.state, State::refused);
  }
}

TEST_F(HandshakeSecret, AProofHoldsForItsRanksJobGroupAndPurposeAlone) {
  using Change = std::function<void(Handshake&)>;
  const std::vector<Change> changes = {
      [](Handshake&) {},  // Control.
      [](Handshake& h) { h.job = 78; },
      [](Handshake& h) { h.group = 6; },
      [](Handshake& h) { h.rank = 3; },
      [](Handshake& h) { h.size = 5; },
      [](Handshake& h) { h.port = 1235; },
      [](Handshake& h) { h.purpose = Handshake::Purpose::control; },
      [](Handshake& h) { h.reserved = 1; },
      [](Handshake& h) { h.number[31] ^= std::byte{1}; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Begun begun;
    Handshake other = begun.handshake;
    changes[i](other);
    feed(begun.answer, proof_of(Role::connects, kSecret, other, begun.number), begun.listens);
    EXPECT_EQ(begun.answer.state, i == 0 ? State::accepted : State::refused) << i;
  }
}

TEST_F(HandshakeSecret, WhereOneSideHasNoneBothLearnWhich) {
  const Member with{1, 4, kSecret}, without{1, 4, {}};
  Answer missing, unknown;
  auto reply = feed(missing, bytes_of_message(handshake_of(2, 1, false)), with);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->verdict, Verdict::secret_missing);
  EXPECT_EQ(missing.state, State::refused);
  reply = feed(unknown, bytes_of_message(handshake_of(2, 1)), without);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->verdict, Verdict::secret_unknown);
  EXPECT_EQ(unknown.state, State::refused);
}

TEST_F(HandshakeSecret, TruncatedOrRandomBytesAreNeverAccepted) {
  Begun begun;
  const Digest proof = proof_of(Role::connects, kSecret, begun.handshake, begun.number);
  std::vector<std::byte> whole(bytes_of_message(begun.handshake).begin(),
                               bytes_of_message(begun.handshake).end());
  for (std::size_t count = 0; count < whole.size(); ++count) {
    Answer answer;
    EXPECT_FALSE(feed(answer, std::span(whole).first(count), begun.listens).has_value());
    EXPECT_EQ(answer.state, State::handshake);
  }
  feed(begun.answer, std::span(proof).first(31), begun.listens);
  EXPECT_EQ(begun.answer.state, State::proof);
  std::mt19937 random(1);
  whole.resize(sizeof(Handshake) + sizeof(Digest));
  for (int i = 0; i < 1000; ++i) {
    const bool known = i % 2 == 1;  // It begins as a handshake.
    for (std::size_t b = known ? sizeof begun.handshake.magic : 0; b < whole.size(); ++b)
      whole[b] = static_cast<std::byte>(random());
    if (known) std::copy_n(bytes_of_message(Handshake{}).begin(), 8, whole.begin());
    Answer answer;
    feed(answer, whole, begun.listens);
    EXPECT_EQ(answer.state, State::refused);
  }
}

TEST(HandshakeWithoutSecret, IsAcceptedByTheRankThatItIsForAlone) {
  for (const int to : {1, 0}) {
    Answer answer;
    const auto reply = feed(answer, bytes_of_message(handshake_of(2, to, false)), {1, 4, {}});
    EXPECT_FALSE(reply.has_value());
    EXPECT_EQ(answer.state, to == 1 ? State::accepted : State::refused);
  }
}

}  // namespace
}  // namespace dkfac::comm
