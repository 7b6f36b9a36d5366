#include "comm/transport/notice.h"

#include <cstring>

namespace dkfac::comm {

Notice::Found take_notice(std::vector<std::byte>& received, Notice& notice) {
  Notice::Head head;
  if (received.size() < sizeof head) return Notice::Found::none;
  std::memcpy(&head, received.data(), sizeof head);
  const bool is_abort = head.kind == Notice::abort && head.bytes <= Notice::kMost;
  const bool is_farewell = head.kind == Notice::farewell && head.bytes == sizeof notice.last;
  if (!is_abort && !is_farewell) return Notice::Found::strange;
  if (received.size() < sizeof head + head.bytes) return Notice::Found::none;
  const std::byte* body = received.data() + sizeof head;
  notice = {};
  notice.kind = static_cast<Notice::Kind>(head.kind);
  if (is_abort)
    notice.reason.assign(reinterpret_cast<const char*>(body), head.bytes);
  else
    std::memcpy(&notice.last, body, sizeof notice.last);
  received.erase(received.begin(),
                 received.begin() + static_cast<std::ptrdiff_t>(sizeof head + head.bytes));
  return Notice::Found::one;
}

}  // namespace dkfac::comm
