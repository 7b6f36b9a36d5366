#pragma once

#include <cstdint>
#include <span>

#include "comm/transport/host_communicator.h"

namespace dkfac::comm {

/// Elements that `rank` has to produce in `call`: over all ranks every result element once (of an
/// all_reduce), or those of its own output.
[[nodiscard]] std::int64_t elements_of_share(const HostCall& call, int rank);

/// Produces elements [first, first + count) of the share of `rank`, out of all ranks' calls. Shares
/// of different ranks touch different memory, so ranks may move at the same time.
void move_share(std::span<const HostCall* const> calls, int rank, std::int64_t first,
                std::int64_t count);

/// The whole share of `rank` on its CUDA stream, which has to follow the streams of all ranks.
void move_share_on_device(std::span<const HostCall* const> calls, int rank);

}  // namespace dkfac::comm
