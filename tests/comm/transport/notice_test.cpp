#include "comm/transport/notice.h"

#include <cstring>

#include <gtest/gtest.h>

namespace dkfac::comm {
namespace {

std::vector<std::byte> notice_bytes(std::uint32_t kind, std::uint32_t length,
                                    const std::string& body) {
  const Notice::Head head{kind, length};
  std::vector<std::byte> bytes(sizeof head + body.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, body.data(), body.size());
  return bytes;
}

TEST(Notice, IsTakenWholeAndRefusedWhereItIsTooLong) {
  Notice notice;
  std::vector<std::byte> received;
  for (const std::byte byte : notice_bytes(Notice::abort, 9, "disk full")) {
    EXPECT_EQ(take_notice(received, notice), Notice::Found::none);
    received.push_back(byte);
  }
  EXPECT_EQ(take_notice(received, notice), Notice::Found::one);
  EXPECT_EQ(notice.reason, "disk full");
  EXPECT_TRUE(received.empty());
  for (std::vector<std::byte> strange :
       {notice_bytes(Notice::abort, Notice::kMost + 1, ""),
        notice_bytes(Notice::abort, 0xffffffffU, ""), notice_bytes(Notice::farewell, 7, ""),
        notice_bytes(3, 0, ""), notice_bytes(0, 0, "")})
    EXPECT_EQ(take_notice(strange, notice), Notice::Found::strange);
  std::vector<std::byte> longest =
      notice_bytes(Notice::abort, Notice::kMost, std::string(Notice::kMost, 'a'));
  EXPECT_EQ(take_notice(longest, notice), Notice::Found::one);
}

}  // namespace
}  // namespace dkfac::comm
