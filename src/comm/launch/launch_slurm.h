#pragma once

#include <string>
#include <string_view>

namespace dkfac::comm {

/// Returns the first name of a Slurm node list: "gpu[003-007,9],login" gives "gpu003".
[[nodiscard]] std::string first_host(std::string_view node_list);

}  // namespace dkfac::comm
