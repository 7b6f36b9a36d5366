#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/crypto.h"
#include "comm/transport/tcp_socket.h"

/// First messages on every connection of the mesh. The connecting rank sends a Handshake. Where
/// both ranks have a secret, the listening one answers with a random number (Reply), the other
/// proves by a Digest that it has the secret, and the listening one then proves the same (Reply).
/// So a process that merely connects gets no proof with which it could try secrets, and nothing
/// from another connection, rank or direction is a proof.
namespace dkfac::comm {

/// This process within its job.
struct Member {
  int rank = 0, size = 1;
  std::string secret = {};  ///< Empty: none.
};

struct Handshake {
  static constexpr std::uint64_t kMagic = 0x33434b41464b4444ULL;  ///< Changes with what follows.
  enum class Purpose : std::uint32_t { join, data, control };
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;    ///< Chosen by rank 0, so that jobs cannot mix; 0 when joining.
  std::uint32_t group = 0;  ///< Id of the group that the connection is for.
  std::uint32_t rank = 0;   ///< World rank of the connecting process.
  std::uint32_t to = 0;     ///< World rank of the listening one.
  std::uint32_t size = 0;   ///< World size.
  std::uint32_t port = 0;   ///< Listening port of the connecting process.
  Purpose purpose = Purpose::join;
  std::uint32_t has_secret = 0;
  std::uint32_t reserved = 0;
  Digest number{};  ///< Random where there is a secret.
};

struct Reply {
  static constexpr std::uint64_t kMagic = 0x31594c50524b4444ULL;  ///< Differs from Handshake's.
  enum class Verdict : std::uint32_t {
    prove,           ///< `digest` is a random number.
    accepted,        ///< `digest` is the listening rank's proof.
    secret_missing,  ///< The connecting rank has none.
    secret_unknown,  ///< The listening rank has none.
    other_secret
  };
  std::uint64_t magic = kMagic;
  Verdict verdict = Verdict::prove;
  std::uint32_t reserved = 0;
  Digest digest{};
};

/// Proof of the connecting or the listening rank: HMAC-SHA256 over its role, the handshake and the
/// listening rank's random number.
enum class Role : std::uint8_t { connects, listens };
[[nodiscard]] Digest proof_of(Role role, std::string_view secret, const Handshake& handshake,
                              const Digest& number);

/// The listening rank's side of one connection, without the connection.
struct Answer {
  enum class State : std::uint8_t { handshake, proof, accepted, refused };
  State state = State::handshake;
  std::size_t received = 0;  ///< Bytes of the message that is awaited.
  Handshake handshake;       ///< Complete unless State::handshake.
  Digest number{}, proof{};
  Reply::Verdict verdict = Reply::Verdict::accepted;  ///< Why it is refused, unless `accepted`.
};
/// Where the next bytes go; empty when nothing more is awaited.
[[nodiscard]] std::span<std::byte> room(Answer& answer);
/// Takes `bytes` more, which are in room(); returns what is to be sent, if anything.
[[nodiscard]] std::optional<Reply> take(Answer& answer, std::size_t bytes, const Member& self);

/// The connecting rank's side of one connection, without the connection: the handshake is sent, and
/// with a secret two replies are awaited.
struct Introduction {
  Handshake handshake;
  int awaited = 0;           ///< Replies.
  std::size_t received = 0;  ///< Bytes of the next one.
  Reply reply;
  Digest number{};  ///< Of the listening rank.
};
[[nodiscard]] Introduction begin_introduction(Handshake handshake, const Member& self);
/// Where the next bytes go; empty when nothing more is awaited.
[[nodiscard]] std::span<std::byte> room(Introduction& introduction);
/// Takes `bytes` more, which are in room(); returns the proof that is to be sent, if any. Throws
/// CommError where `peer` has another secret or none.
[[nodiscard]] std::optional<Digest> take(Introduction& introduction, std::size_t bytes,
                                         const Member& self, std::string_view peer);

/// Introduces this rank over a connection, and waits until both ranks have proved that they have
/// the secret, if any. check() is called while it waits and may throw. Throws CommError as take().
void introduce(const Socket& socket, Handshake handshake, const Member& self,
               const Deadline& deadline, std::string_view peer, const std::function<void()>& check);
/// Throws CommError that says why `peer` does not accept this rank.
[[noreturn]] void throw_refused(Reply::Verdict verdict, std::string_view peer);
/// "has another secret than this rank", of a process that this one refused.
[[nodiscard]] std::string_view refusal(Reply::Verdict verdict);

}  // namespace dkfac::comm
