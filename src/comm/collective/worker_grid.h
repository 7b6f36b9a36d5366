#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"

/// Grid of the ranks that precondition each layer: the gradient workers of KAISA (Pauloski et al.
/// 2021).
namespace dkfac::comm {

/// Grid of P ranks with w rows and P/w columns; rank r is in row r / (P/w), column r % (P/w). The w
/// ranks of a column are the workers of the layers that one of them owns: they hold the inverses
/// and update these layers. A row has one rank of each column, so an all-gather within a row
/// suffices.
struct WorkerGrid {
  std::shared_ptr<Communicator> world;
  std::shared_ptr<Communicator> row;     ///< Ranks of this row; the world if w is 1.
  std::shared_ptr<Communicator> column;  ///< Ranks of this column; the world if w is P > 1.
  int workers = 1;                       ///< w, the number of ranks of a column.

  [[nodiscard]] int columns() const { return world->size() / workers; }
  [[nodiscard]] int column_of(int rank) const { return rank % columns(); }
  [[nodiscard]] int row_of(int rank) const { return rank / columns(); }
  /// Whether this rank preconditions the layers of `owner`.
  [[nodiscard]] bool is_worker_of(int owner) const {
    return column_of(owner) == column_of(world->rank());
  }
  /// Bytes passed to the communicators so far.
  [[nodiscard]] std::uint64_t bytes() const;
  void progress() const;  ///< Advances pending work without blocking.
  /// Hash of the calls in the world and in rows so far; equal on ranks that made the same calls.
  [[nodiscard]] std::uint64_t contract_hash() const;
};

/// Returns w for `fraction` = w/P; 0 means 1/P. Throws InvalidArgument that lists the possible
/// fractions.
[[nodiscard]] int workers_of(double fraction, int world_size);
/// Makes the grid for a grad_worker_fraction; collective if 1 < w < P. With one rank all three
/// communicators are the world.
[[nodiscard]] WorkerGrid make_worker_grid(std::shared_ptr<Communicator> comm, double fraction);

/// Computations that several ranks repeat and that must be bitwise identical on all of them.
enum class Repeated : std::uint8_t {
  nothing,  ///< Owners update, and all ranks receive the results.
  updates,  ///< Every rank updates all parameters from one sum of gradients.
  products  ///< The workers of a layer apply its inverse and update it.
};
/// Describes, as text to compare, what the bits of `repeated` depend on. Updates on the host are
/// bitwise identical on every processor, backend and number of threads; on a device they are
/// assumed to depend on its model. Products also depend on backend, threads and libraries, and on a
/// device on tf32.
[[nodiscard]] std::string arithmetic_text(const Context& ctx, const BackendInfo& info,
                                          Repeated repeated);
/// Throws InvalidArgument unless all ranks have the same version of this library, the same kind of
/// device, and the same arithmetic_text(). That is the text for products if layers have more than
/// one worker, else for `otherwise`. Collective.
void require_equal_arithmetic(const WorkerGrid& grid, const Context& ctx,
                              Repeated otherwise = Repeated::nothing);

}  // namespace dkfac::comm
