#pragma once

#include <cstdint>
#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"

/// Which ranks precondition a layer: the gradient workers of KAISA (Pauloski et al. 2021).
namespace dkfac::kfac {

/// P ranks as a grid of w rows and P/w columns: rank r stands in row r / (P/w), column r % (P/w).
/// The w ranks of a column hold the inverses of the layers that one of them owns, and update them;
/// a row has one rank of each column, and so gets everything from within itself.
struct WorkerGrid {
  std::shared_ptr<comm::Communicator> world;
  std::shared_ptr<comm::Communicator> row;     ///< The world where w is 1.
  std::shared_ptr<comm::Communicator> column;  ///< The world where w is P > 1.
  int workers = 1;                             ///< w: ranks of a column.

  [[nodiscard]] int columns() const { return world->size() / workers; }
  [[nodiscard]] int column_of(int rank) const { return rank % columns(); }
  [[nodiscard]] int row_of(int rank) const { return rank / columns(); }
  /// This rank preconditions the layers of `owner`.
  [[nodiscard]] bool works(int owner) const { return column_of(owner) == column_of(world->rank()); }
  /// Handed to the communicators so far.
  [[nodiscard]] std::uint64_t bytes() const;
  void progress() const;  ///< Advances what is under way, never blocks.
  /// Of the calls in the world and in rows so far; equal on all ranks while they keep the contract.
  [[nodiscard]] std::uint64_t contract_hash() const;
};

/// w of `fraction` = w/P; 0 means 1/P. Throws InvalidArgument naming the possible fractions.
[[nodiscard]] int workers_of(double fraction, int world_size);
/// Collective where 1 < w < P. One rank: all three are the world.
[[nodiscard]] WorkerGrid make_worker_grid(std::shared_ptr<comm::Communicator> comm,
                                          double fraction);
/// Throws InvalidArgument unless all ranks compute on the same kind of device and, where several of
/// them make the same update, with what its bits depend on: the same backend and number of threads;
/// on devices also tf32, model and capability of the device, and versions of the libraries.
/// Collective.
void require_equal_arithmetic(const WorkerGrid& grid, const Context& ctx);

}  // namespace dkfac::kfac
