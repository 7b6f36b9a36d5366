#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"

/// Which ranks precondition a layer: the gradient workers of KAISA (Pauloski et al. 2021).
namespace dkfac::comm {

/// P ranks as a grid of w rows and P/w columns: rank r stands in row r / (P/w), column r % (P/w).
/// The w ranks of a column hold the inverses of the layers that one of them owns, and update them;
/// a row has one rank of each column, and so gets everything from within itself.
struct WorkerGrid {
  std::shared_ptr<Communicator> world;
  std::shared_ptr<Communicator> row;     ///< The world where w is 1.
  std::shared_ptr<Communicator> column;  ///< The world where w is P > 1.
  int workers = 1;                       ///< w: ranks of a column.

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
[[nodiscard]] WorkerGrid make_worker_grid(std::shared_ptr<Communicator> comm, double fraction);

/// What several ranks compute for themselves, and have to get the same bits of.
enum class Repeated : std::uint8_t {
  nothing,  ///< Owners update, and everybody takes what they have.
  updates,  ///< Every rank updates all parameters from one sum of gradients.
  products  ///< The workers of a layer apply its inverse, and update it.
};
/// What those bits depend on, as a text to compare. Updates on the host have the same bits whatever
/// the processor, the backend and the number of threads; on a device they are taken for those of
/// its model. Products depend on backend, threads and libraries as well, and on a device on tf32.
[[nodiscard]] std::string arithmetic_text(const Context& ctx, const BackendInfo& info,
                                          Repeated repeated);
/// Throws InvalidArgument unless all ranks have the same version of this library, the same kind of
/// device, and the same arithmetic_text(). With more than one worker to a layer products are
/// repeated, else what `otherwise` says. Collective.
void require_equal_arithmetic(const WorkerGrid& grid, const Context& ctx,
                              Repeated otherwise = Repeated::nothing);

}  // namespace dkfac::comm
