#include <sys/mman.h>

#include "core/cpu/large_pages.h"

namespace dkfac {

void cpu::prefer_large_pages(void* data, std::size_t bytes) noexcept {
  // The pages that the memory fills; a refusal (a kernel without them) changes nothing.
  (void)::madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
}

}  // namespace dkfac
