#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/transport/handshake.h"
#include "comm/transport/notice.h"
#include "fuzz/attempt.h"

namespace dkfac::fuzz {

void handshake(Bytes bytes) {
  for (const char* secret : {"", "0123456789abcdef"}) {
    if (*secret != '\0' && !comm::has_crypto()) continue;
    const comm::Member self{1, 4, secret};
    comm::Answer answer;
    Bytes left = bytes;
    while (!left.empty() && !comm::room(answer).empty()) {
      const std::size_t count = std::min(left.size(), comm::room(answer).size());
      std::memcpy(comm::room(answer).data(), left.data(), count);
      left = left.subspan(count);
      (void)comm::take(answer, count, self);
    }
    // No bytes that are made without the secret are a proof.
    if (*secret != '\0' && answer.state == comm::Answer::State::accepted) __builtin_trap();
  }
}

void notices(Bytes bytes) {
  const std::span<const std::byte> sent = std::as_bytes(bytes);
  std::vector<std::byte> received(sent.begin(), sent.end());
  comm::Notice notice;
  while (comm::take_notice(received, notice) == comm::Notice::Found::one) {
    if (notice.reason.size() > comm::Notice::kMost) __builtin_trap();
  }
}

}  // namespace dkfac::fuzz
