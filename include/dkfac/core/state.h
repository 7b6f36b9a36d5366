#pragma once

#include <cstdint>
#include <string>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// Distribution of a value over ranks. It determines how a checkpoint restores the value on another
/// number of ranks.
enum class StateKind : std::uint8_t {
  replicated,  ///< Equal on every rank; one copy is saved.
  owned,       ///< Only on the rank that owns the layer; the owner may change between runs.
  owner_copy,  ///< Equal to the value that the owner of the layer holds under this name.
  averaged,    ///< Different on each rank; other ranks start from the mean.
  summed,      ///< A partial sum on each rank; the value is the sum over ranks.
  any_rank,    ///< Different on each rank; the value of any rank may be used.
  sharded      ///< Consecutive rows of one tensor on each rank, as in data::batch_share().
};

/// Visitor over the state that an object needs to resume exactly. Saving reads the values and
/// loading writes them through the same traversal. Names are unique within an object:
/// "<layer>.<what>", or one word for a value of the whole object.
class DKFAC_API StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const std::string& name, StateKind kind, TensorView view) = 0;
  virtual void integer(const std::string& name, StateKind kind, std::int64_t& value) = 0;
  virtual void real(const std::string& name, StateKind kind, double& value) = 0;

  /// Visits a value of another integral type or a bool as an integer.
  template <class T>
  void number(const std::string& name, StateKind kind, T& value) {
    auto wide = static_cast<std::int64_t>(value);
    integer(name, kind, wide);
    value = static_cast<T>(wide);
  }

 protected:
  StateVisitor() = default;
  StateVisitor(const StateVisitor&) = default;
  StateVisitor& operator=(const StateVisitor&) = default;
};

}  // namespace dkfac
