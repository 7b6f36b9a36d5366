#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// `size` processes (or threads) over TCP, without any library: a full mesh of connections over
/// IPv4. Rank 0 listens at `port` until all have come; the others find it at `host`, from which
/// their own addresses must be reachable too. Connections between the others use ports that the
/// system chooses. Host memory. Collective over the ranks: piece_bytes and check have to be the
/// same on every rank, which is compared here. Throws CommError, naming who is missing, unless each
/// part of the meeting (finding rank 0, connecting in pairs, comparing) is done within
/// options.timeout_s.
///
/// Sums have the bits of the other host backends. Data moves only while progress() or a wait is
/// running. A peer that dies is noticed at once where its system closes its connections, else at
/// the time limit. Nothing is encrypted or authenticated: for networks that are trusted.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_tcp(int rank, int size,
                                                               const std::string& host,
                                                               std::uint16_t port,
                                                               Options options = {});

}  // namespace dkfac::comm
