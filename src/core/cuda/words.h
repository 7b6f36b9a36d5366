#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "dkfac/core/tensor_view.h"

#include "core/cuda/patch_functors.h"

namespace dkfac::cuda {

/// Calls visit(type of word, elements in one) with the longest Word of at most 16 bytes for copies
/// between `from` and `to` of one dtype: both are aligned to it, and fits(elements) holds.
template <class Fits, class Visit>
void visit_words(ConstTensorView from, TensorView to, Fits&& fits, Visit&& visit) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype()));
  const auto addresses =
      reinterpret_cast<std::uintptr_t>(from.raw()) | reinterpret_cast<std::uintptr_t>(to.raw());
  const auto allowed = [&](std::int64_t bytes) {
    return bytes >= size && addresses % static_cast<std::uintptr_t>(bytes) == 0 &&
           fits(bytes / size);
  };
  if (allowed(16)) return visit(std::type_identity<Word<16>>{}, 16 / size);
  if (allowed(8)) return visit(std::type_identity<Word<8>>{}, 8 / size);
  if (allowed(4)) return visit(std::type_identity<Word<4>>{}, 4 / size);
  visit(std::type_identity<Word<2>>{}, 2 / size);
}

}  // namespace dkfac::cuda
