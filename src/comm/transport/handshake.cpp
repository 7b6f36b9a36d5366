#include "comm/transport/handshake.h"

#include <cstring>
#include <type_traits>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

static_assert(std::has_unique_object_representations_v<Handshake> &&
                  std::has_unique_object_representations_v<Reply>,
              "they are sent as they are in memory");

constexpr std::string_view kRemedy = "; give every rank the same DKFAC_SECRET or DKFAC_SECRET_FILE";

std::span<std::byte> awaited(Answer& answer) {
  if (answer.state == Answer::State::handshake)
    return std::as_writable_bytes(std::span(&answer.handshake, 1));
  if (answer.state == Answer::State::proof) return answer.proof;
  return {};
}

Reply end_with(Answer& answer, Reply::Verdict verdict) {
  answer.state =
      verdict == Reply::Verdict::accepted ? Answer::State::accepted : Answer::State::refused;
  answer.verdict = verdict;
  return {.verdict = verdict};
}

std::optional<Reply> answer_handshake(Answer& answer, const Member& self) {
  using Verdict = Reply::Verdict;
  const Handshake& handshake = answer.handshake;
  if (handshake.magic != Handshake::kMagic ||
      handshake.to != static_cast<std::uint32_t>(self.rank)) {
    answer.state = Answer::State::refused;  // Of another program: no word of ours would help it.
    return std::nullopt;
  }
  if (handshake.has_secret == 0 && self.secret.empty()) {
    answer.state = Answer::State::accepted;
    return std::nullopt;
  }
  if (handshake.has_secret == 0) return end_with(answer, Verdict::secret_missing);
  if (self.secret.empty()) return end_with(answer, Verdict::secret_unknown);
  answer.state = Answer::State::proof;
  answer.number = random_digest();
  return Reply{.verdict = Verdict::prove, .digest = answer.number};
}

Reply answer_proof(Answer& answer, const Member& self) {
  const Digest expected = proof_of(Role::connects, self.secret, answer.handshake, answer.number);
  if (!equal_digests(answer.proof, expected)) return end_with(answer, Reply::Verdict::other_secret);
  Reply reply = end_with(answer, Reply::Verdict::accepted);
  reply.digest = proof_of(Role::listens, self.secret, answer.handshake, answer.number);
  return reply;
}

void check_verdict(const Reply& reply, Reply::Verdict expected, std::string_view peer) {
  if (reply.magic != Reply::kMagic)
    throw CommError(
        detail::concat("[tcp] ", peer, " is another program's; choose another MASTER_PORT"));
  if (reply.verdict != expected) throw_refused(reply.verdict, peer);
}

}  // namespace

Digest proof_of(Role role, std::string_view secret, const Handshake& handshake,
                const Digest& number) {
  constexpr std::size_t kLabel = 16;
  std::array<std::byte, kLabel + sizeof handshake + sizeof number> message{};
  const std::string_view label = role == Role::connects ? "dkfac connects" : "dkfac listens";
  std::memcpy(message.data(), label.data(), label.size());
  std::memcpy(message.data() + kLabel, &handshake, sizeof handshake);
  std::memcpy(message.data() + kLabel + sizeof handshake, number.data(), number.size());
  return hmac_sha256(secret, message);
}

std::span<std::byte> room(Answer& answer) { return awaited(answer).subspan(answer.received); }

std::optional<Reply> take(Answer& answer, std::size_t bytes, const Member& self) {
  answer.received += bytes;
  if (answer.received < awaited(answer).size()) return std::nullopt;
  answer.received = 0;
  if (answer.state == Answer::State::handshake) return answer_handshake(answer, self);
  if (answer.state == Answer::State::proof) return answer_proof(answer, self);
  return std::nullopt;
}

Introduction begin_introduction(Handshake handshake, const Member& self) {
  handshake.rank = static_cast<std::uint32_t>(self.rank);
  handshake.size = static_cast<std::uint32_t>(self.size);
  handshake.has_secret = self.secret.empty() ? 0 : 1;
  if (!self.secret.empty()) handshake.number = random_digest();
  Introduction introduction;
  introduction.handshake = handshake;
  introduction.awaited = self.secret.empty() ? 0 : 2;
  return introduction;
}

std::span<std::byte> room(Introduction& introduction) {
  if (introduction.awaited == 0) return {};
  return std::as_writable_bytes(std::span(&introduction.reply, 1)).subspan(introduction.received);
}

std::optional<Digest> take(Introduction& introduction, std::size_t bytes, const Member& self,
                           std::string_view peer) {
  introduction.received += bytes;
  if (introduction.received < sizeof(Reply)) return std::nullopt;
  introduction.received = 0;
  const auto& [handshake, awaited, received, reply, number] = introduction;
  if (introduction.awaited-- == 2) {
    check_verdict(reply, Reply::Verdict::prove, peer);
    introduction.number = reply.digest;
    return proof_of(Role::connects, self.secret, handshake, number);
  }
  check_verdict(reply, Reply::Verdict::accepted, peer);
  if (!equal_digests(reply.digest, proof_of(Role::listens, self.secret, handshake, number)))
    throw CommError(detail::concat("[tcp] ", peer,
                                   " does not prove that it has the secret of this rank, so it may "
                                   "be of another job; choose another MASTER_PORT"));
  return std::nullopt;
}

void introduce(const Socket& socket, Handshake handshake, const Member& self,
               const Deadline& deadline, std::string_view peer,
               const std::function<void()>& check) {
  Introduction mine = begin_introduction(handshake, self);
  send_all(socket, &mine.handshake, sizeof mine.handshake, deadline, peer);
  for (std::span<std::byte> next = room(mine); !next.empty(); next = room(mine)) {
    receive_all(socket, next.data(), next.size(), deadline, peer, check);
    if (const std::optional<Digest> proof = take(mine, next.size(), self, peer))
      send_all(socket, proof->data(), proof->size(), deadline, peer);
  }
}

void throw_refused(Reply::Verdict verdict, std::string_view peer) {
  const std::string_view why =
      verdict == Reply::Verdict::secret_missing   ? " has a secret, and this rank has none"
      : verdict == Reply::Verdict::secret_unknown ? " has no secret, and this rank has one"
                                                  : " has another secret than this rank";
  throw CommError(detail::concat("[tcp] ", peer, why, kRemedy));
}

std::string_view refusal(Reply::Verdict verdict) {
  if (verdict == Reply::Verdict::secret_missing) return "has no secret, and this rank has one";
  if (verdict == Reply::Verdict::secret_unknown) return "has a secret, and this rank has none";
  return "has another secret than this rank";
}

}  // namespace dkfac::comm
