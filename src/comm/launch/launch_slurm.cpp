#include "comm/launch/launch_slurm.h"

namespace dkfac::comm {

std::string first_host(std::string_view node_list) {
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    // The first number of "[003-007,9]", with its leading zeros.
    const std::size_t close = node_list.find(']', i);
    const std::string_view range = node_list.substr(i + 1, close - i - 1);
    host += range.substr(0, range.find_first_of("-,"));
    if (close == std::string_view::npos) break;
    i = close;
  }
  return host;
}

}  // namespace dkfac::comm
