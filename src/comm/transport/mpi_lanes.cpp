#include "comm/transport/mpi_lanes.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "comm/transport/mpi_error.h"

namespace dkfac::comm {

namespace {

constexpr auto kSlots = static_cast<std::size_t>(kPiecesInFlight);

std::size_t slot_of(std::int64_t piece) { return static_cast<std::size_t>(piece) % kSlots; }

}  // namespace

MpiLanes::~MpiLanes() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (lanes_[i / kSlots].way == Lane::Way::receive) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

void MpiLanes::start() {
  arrived_.resize(lanes_.size());
  requests_.resize(lanes_.size() * kSlots, MPI_REQUEST_NULL);
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const std::int64_t last = std::min({lane.allowed, lane.pieces(), lane.done + kPiecesInFlight});
    for (; lane.started < last; ++lane.started) {
      const std::int64_t k = lane.started;
      MPI_Request* request = &requests_[i * kSlots + slot_of(k)];
      const auto bytes = static_cast<int>(lane.bytes_of(k));
      const bool sends = lane.way == Lane::Way::send;
      const int peer = ranks_[static_cast<std::size_t>(lane.peer)];
      check_mpi(sends ? MPI_Isend(lane.memory_of(k), bytes, MPI_BYTE, peer, tag_, comm_, request)
                      : MPI_Irecv(lane.memory_of(k), bytes, MPI_BYTE, peer, tag_, comm_, request),
                sends ? "MPI_Isend" : "MPI_Irecv");
    }
  }
}

void MpiLanes::finish(std::size_t request, const MPI_Status& status) {
  Lane& lane = lanes_[request / kSlots];
  Arrived& arrived = arrived_[request / kSlots];
  const std::size_t slot = request % kSlots;
  // The slot's piece is the only one of [done, done + kPiecesInFlight) that lives there.
  std::int64_t piece = lane.done;
  while (slot_of(piece) != slot) ++piece;
  if (lane.way == Lane::Way::receive) {
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != lane.bytes_of(piece)) {
      throw CommError(detail::concat("[receive] rank ", lane.peer, " sent a piece of ", bytes,
                                     " bytes where ", lane.bytes_of(piece),
                                     " were expected: the ranks' collectives differ; "
                                     "Check::full names them"));
    }
  }
  arrived[slot] = true;
  while (lane.done < lane.started && arrived[slot_of(lane.done)])
    arrived[slot_of(lane.done++)] = false;
}

bool MpiLanes::collect() {
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

bool MpiLanes::advance() {
  if (complete()) return true;
  start();
  // One more start after a success keeps pieces flowing without a loop that could run for long.
  if (collect()) start();
  return complete();
}

bool MpiLanes::busy() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
}

}  // namespace dkfac::comm
