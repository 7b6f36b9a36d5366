#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// A message of Communicator::exchange() and its first element in the buffers of both ranks.
struct RoutedMessage {
  Route route;
  std::int64_t sent_at = 0, received_at = 0;
};

/// The messages of `routes` that `rank` sends or receives, in their order.
[[nodiscard]] std::vector<RoutedMessage> messages_of(std::span<const Route> routes, int rank);

/// Elements that `rank` sends, and that it receives.
struct RoutedCounts {
  std::int64_t sent = 0, received = 0;
};
[[nodiscard]] RoutedCounts routed_counts(std::span<const Route> routes, int rank);

}  // namespace dkfac::comm
