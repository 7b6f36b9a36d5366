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

Reply receive_reply(const Socket& socket, const Deadline& deadline, std::string_view peer,
                    const std::function<void()>& check) {
  Reply reply;
  receive_all(socket, &reply, sizeof reply, deadline, peer, check);
  if (reply.magic != Reply::kMagic)
    throw CommError(
        detail::concat("[tcp] ", peer, " is another program's; choose another MASTER_PORT"));
  return reply;
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

void introduce(const Socket& socket, Handshake handshake, const Member& self,
               const Deadline& deadline, std::string_view peer,
               const std::function<void()>& check) {
  handshake.rank = static_cast<std::uint32_t>(self.rank);
  handshake.size = static_cast<std::uint32_t>(self.size);
  handshake.has_secret = self.secret.empty() ? 0 : 1;
  if (!self.secret.empty()) handshake.number = random_digest();
  send_all(socket, &handshake, sizeof handshake, deadline, peer);
  if (self.secret.empty()) return;
  const Reply question = receive_reply(socket, deadline, peer, check);
  if (question.verdict != Reply::Verdict::prove) throw_refused(question.verdict, peer);
  const Digest proof = proof_of(Role::connects, self.secret, handshake, question.digest);
  send_all(socket, proof.data(), proof.size(), deadline, peer);
  const Reply reply = receive_reply(socket, deadline, peer, check);
  if (reply.verdict != Reply::Verdict::accepted) throw_refused(reply.verdict, peer);
  if (!equal_digests(reply.digest,
                     proof_of(Role::listens, self.secret, handshake, question.digest)))
    throw CommError(detail::concat("[tcp] ", peer,
                                   " does not prove that it has the secret of this rank, so it may "
                                   "be of another job; choose another MASTER_PORT"));
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
