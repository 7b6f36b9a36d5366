#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "optim/cuda/update_functors.h"

/// Sums of updates over the elements of chunks (update_functors.h), in f64.
namespace dkfac::optim::cuda {

/// Term of element k of a chunk: of.value(part, i) where of.asks(part); zero for other parts and
/// past the end of one.
template <class T, class Of>
struct ChunkTerm {
  PartTable<T> table;
  Of of = {};
  DKFAC_HD typename Of::Value operator()(std::int64_t chunk, std::int64_t k) const {
    const ChunkEntry& at = table.chunks[chunk];
    const PartEntry<T>& part = table.parts[at.part];
    const std::int64_t i = at.first + k;
    if (!Of::asks(part) || i >= part.numel) return typename Of::Value{};
    return of.value(part, i);
  }
};

/// Squares of weights that have a trust ratio, and of their gradients.
template <class T>
struct OfTrust {
  using Value = Squares;
  LarsForm form = LarsForm::mlperf;
  double weight_decay = 0;
  static DKFAC_HD bool asks(const PartEntry<T>& part) { return part.is_weight; }
  [[nodiscard]] DKFAC_HD Squares value(const PartEntry<T>& part, std::int64_t i) const {
    const double w = static_cast<double>(part.out[i]);
    const double g =
        trust_gradient(form, weight_decay * part.decay, static_cast<double>(part.gradient[i]), w);
    return {w * w, g * g};
  }
};
template <class T>
using TrustSquares = ChunkTerm<T, OfTrust<T>>;

/// Squares of weights to be rescaled.
template <class T>
struct OfRescaled {
  using Value = double;
  static DKFAC_HD bool asks(const PartEntry<T>& part) { return part.d_out > 0; }
  static DKFAC_HD double value(const PartEntry<T>& part, std::int64_t i) {
    const double w = static_cast<double>(part.out[i]);
    return w * w;
  }
};
template <class T>
using RescaledSquares = ChunkTerm<T, OfRescaled<T>>;

/// Whether the wire type holds x as a finite value.
template <class Wire, class T>
DKFAC_HD bool fits_wire(T x) {
  const auto back = element::load<float>(element::store<Wire>(x));
  return back - back == 0;
}

/// 1 for every element of a master out of the range of the wire.
template <class T, class Wire>
struct OfPastWire {
  using Value = double;
  static DKFAC_HD bool asks(const PartEntry<T>& part) { return part.rounded != nullptr; }
  static DKFAC_HD double value(const PartEntry<T>& part, std::int64_t i) {
    return fits_wire<Wire>(part.out[i]) ? 0 : 1;
  }
};
template <class T, class Wire>
using PastWire = ChunkTerm<T, OfPastWire<T, Wire>>;

}  // namespace dkfac::optim::cuda
