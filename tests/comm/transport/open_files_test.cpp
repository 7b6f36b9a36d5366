#include "comm/transport/open_files.h"

#include <gtest/gtest.h>

#include "comm/file_limit.h"
#include "support/tensors.h"

namespace dkfac::comm {
namespace {

rlimit file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

TEST(OpenFiles, RaisesTheSoftLimitToTheHardOne) {
  const FileLimit limit(90);
  const rlimit before = file_limit();
  ASSERT_LT(before.rlim_cur + 200, before.rlim_max) << "the hard limit is too low for this test";
  reserve_files(2);
  EXPECT_EQ(file_limit().rlim_cur, before.rlim_cur) << "control: there is room";
  reserve_files(200);
  EXPECT_EQ(file_limit().rlim_cur, before.rlim_max);
}

TEST(OpenFiles, NamesAHardLimitThatIsTooLow) {
  const std::string message = final_error([] { reserve_files(2'000'000'000); });
  for (const char* part : {"need 2000000", "ulimit -Hn", "fewer ranks"})
    EXPECT_TRUE(testing::contains(message, part)) << message;
}

}  // namespace
}  // namespace dkfac::comm
