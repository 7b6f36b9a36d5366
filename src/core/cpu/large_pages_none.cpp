#include "core/cpu/large_pages.h"

namespace dkfac {

void cpu::prefer_large_pages(void*, std::size_t) noexcept {}

}  // namespace dkfac
