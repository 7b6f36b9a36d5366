#pragma once

#include <cstdint>
#include <string>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// How a value relates to that of the other ranks, and so what becomes of it when a run goes on
/// with another number of them.
enum class StateKind : std::uint8_t {
  replicated,  ///< Equal on every rank; one copy is enough.
  owned,       ///< On the one rank that owns its layer; which one that is may change between runs.
  owner_copy,  ///< Equal to the value that the owner of the layer holds under this name.
  averaged,    ///< Each rank's own; other ranks start from the mean.
  summed,      ///< Each rank's own part of a sum over ranks.
  any_rank,    ///< Each rank's own; that of another rank will do.
  sharded      ///< Consecutive rows of one tensor over all ranks, shared out as data::batch_share()
               ///< does.
};

/// Goes over everything that an object has to keep to go on as if it had never stopped. Saving
/// reads the values, loading writes them: one traversal serves both, so that they cannot differ.
/// Names are unique within an object: "<layer>.<what>", or a word for the whole.
class DKFAC_API StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const std::string& name, StateKind kind, TensorView view) = 0;
  virtual void integer(const std::string& name, StateKind kind, std::int64_t& value) = 0;
  virtual void real(const std::string& name, StateKind kind, double& value) = 0;

  /// Of other integral types, and of a bool.
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
