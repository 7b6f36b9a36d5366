#pragma once

#include <memory>

#include "c/convert.h"
#include "c/handles.h"

namespace dkfac::c {

/// Stores make() in *out.
template <class Make>
int make_comm(const char* operation, dkfac_comm** out, Make make) noexcept {
  return guarded([&] {
    dkfac_comm*& target = required(out, operation, "out");
    target = std::make_unique<dkfac_comm>(dkfac_comm{make()}).release();
  });
}

}  // namespace dkfac::c
