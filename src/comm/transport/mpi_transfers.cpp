#include "comm/transport/mpi_transfers.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "comm/transport/mpi_error.h"

namespace dkfac::comm {

namespace {

constexpr auto kRequests = static_cast<std::size_t>(kPiecesInFlight);

std::size_t request_of(std::int64_t piece) { return static_cast<std::size_t>(piece) % kRequests; }

}  // namespace

MpiTransfers::~MpiTransfers() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (transfers_[i / kRequests].direction == Transfer::Direction::receive)
      MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

void MpiTransfers::start() {
  arrived_.resize(transfers_.size());
  requests_.resize(transfers_.size() * kRequests, MPI_REQUEST_NULL);
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    const std::int64_t last =
        std::min({transfer.allowed, transfer.pieces(), transfer.done + kPiecesInFlight});
    for (; transfer.started < last; ++transfer.started) {
      const std::int64_t k = transfer.started;
      MPI_Request* request = &requests_[i * kRequests + request_of(k)];
      const auto bytes = static_cast<int>(transfer.bytes_of(k));
      const bool sends = transfer.direction == Transfer::Direction::send;
      const int peer = ranks_[static_cast<std::size_t>(transfer.peer)];
      check_mpi(sends
                    ? MPI_Isend(transfer.memory_of(k), bytes, MPI_BYTE, peer, tag_, comm_, request)
                    : MPI_Irecv(transfer.memory_of(k), bytes, MPI_BYTE, peer, tag_, comm_, request),
                sends ? "MPI_Isend" : "MPI_Irecv");
    }
  }
}

void MpiTransfers::finish(std::size_t request, const MPI_Status& status) {
  Transfer& transfer = transfers_[request / kRequests];
  Arrived& arrived = arrived_[request / kRequests];
  const std::size_t own = request % kRequests;
  // The request is of the only piece of [done, done + kPiecesInFlight) that maps to it.
  std::int64_t piece = transfer.done;
  while (request_of(piece) != own) ++piece;
  if (transfer.direction == Transfer::Direction::receive) {
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != transfer.bytes_of(piece)) {
      throw CommError(
          detail::concat("[receive] rank ", ranks_[static_cast<std::size_t>(transfer.peer)],
                         " sent a piece of ", bytes, " bytes where ", transfer.bytes_of(piece),
                         " were expected: the ranks' collectives differ; "
                         "Check::full names them"));
    }
  }
  arrived[own] = true;
  while (transfer.done < transfer.started && arrived[request_of(transfer.done)])
    arrived[request_of(transfer.done++)] = false;
}

bool MpiTransfers::collect() {
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i)
      check_mpi(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "receive or send of a piece");
  }
  check_mpi(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED) return false;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    finish(static_cast<std::size_t>(indices_[at]), statuses_[at]);
  }
  return count > 0;
}

bool MpiTransfers::advance() {
  if (complete()) return true;
  start();
  // One more start after a completion keeps pieces in flight without an unbounded loop.
  if (collect()) start();
  return complete();
}

}  // namespace dkfac::comm
