#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "dkfac/core/device.h"

// Without a device all tests are skipped, or fail when DKFAC_REQUIRE_GPU requires one.
int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of dkfac_gpu_test()
  ::testing::InitGoogleTest(&argc, argv);
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  if (dkfac::available_devices().size() < 2) {
    const char* required = std::getenv("DKFAC_REQUIRE_GPU");
    if (required != nullptr && std::string_view(required) == "1") {
      std::puts("FAILED: there is no CUDA device, and DKFAC_REQUIRE_GPU=1");
      return EXIT_FAILURE;
    }
    std::puts("SKIPPED: there is no CUDA device");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
