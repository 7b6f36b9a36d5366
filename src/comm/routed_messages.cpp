#include "comm/routed_messages.h"

#include <map>

namespace dkfac::comm {

std::vector<RoutedMessage> messages_of(std::span<const Route> routes, int rank) {
  std::map<int, RoutedCounts> next;  // By rank.
  std::vector<RoutedMessage> messages;
  for (const Route& route : routes) {
    std::int64_t &sent = next[route.from].sent, &received = next[route.to].received;
    if (route.from == rank || route.to == rank) messages.push_back({route, sent, received});
    sent += route.count;
    received += route.count;
  }
  return messages;
}

RoutedCounts routed_counts(std::span<const Route> routes, int rank) {
  RoutedCounts counts;
  for (const Route& route : routes) {
    if (route.from == rank) counts.sent += route.count;
    if (route.to == rank) counts.received += route.count;
  }
  return counts;
}

}  // namespace dkfac::comm
