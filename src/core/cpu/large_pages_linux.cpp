#include <sys/mman.h>

#include "core/cpu/large_pages.h"

namespace dkfac {

void cpu::prefer_large_pages(void* data, std::size_t bytes) noexcept {
  // Whole pages only; a failure (a kernel without large pages) is harmless.
  (void)::madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
}

}  // namespace dkfac
