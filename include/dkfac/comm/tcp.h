#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/secret.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Makes a communicator of host memory over TCP, without any library: `size` processes (or threads)
/// with a full mesh of connections. Rank 0 listens at `port` until all ranks have connected; the
/// others connect to `host`, which must also be able to reach their addresses: a name, an IPv4 or
/// an IPv6 address, with or without brackets; of a name IPv4 is preferred. Connections between the
/// others use ports that the system chooses. Collective over the ranks; it verifies
/// that piece_bytes and check are the same on every rank. Each stage of the rendezvous (reaching
/// rank 0, connecting pairs, comparing options) has options.timeout_s; past it, CommError names the
/// missing ranks. Every rank has two connections to each other one: where the soft limit of open
/// files does not allow them, it is raised to the hard one, for the whole process; Error where that
/// does not suffice.
///
/// Sums are bitwise identical to those of the other host backends. Data moves only in progress() or
/// a wait. A peer that dies is detected immediately if its system closes its connections, else at
/// the time limit.
///
/// With a secret both sides of each connection prove that they have it, by HMAC-SHA256 over random
/// numbers of both, ranks, world size, group and purpose; where one has another secret or none, a
/// CommError says so on both. InvalidArgument where `secret` requires one and there is none, or it
/// is too short; Error where there is one and the build has no libcrypto. Data are neither
/// encrypted nor authenticated: a host that can change packets on their way needs no secret.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_tcp(int rank, int size,
                                                               const std::string& host,
                                                               std::uint16_t port,
                                                               Options options = {},
                                                               Secret secret = {});

}  // namespace dkfac::comm
