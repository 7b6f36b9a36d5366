#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dkfac::comm {

/// Message of the control connection, which tells the peers that a rank is leaving, and why.
struct Notice {
  static constexpr std::size_t kMost = 1024;  ///< Bytes of a reason.
  enum Kind : std::uint32_t { abort = 1, farewell = 2 };
  struct Head {
    std::uint32_t kind = 0;
    std::uint32_t bytes = 0;  ///< That follow: the reason, or the number of the last call, 64 bits.
  };
  enum class Found : std::uint8_t { none, one, strange };
  Kind kind = abort;
  std::string reason;
  std::uint64_t last = 0;
};

/// Removes the first notice from the received bytes. none: it is not complete; strange: no notice
/// begins so.
[[nodiscard]] Notice::Found take_notice(std::vector<std::byte>& received, Notice& notice);

}  // namespace dkfac::comm
