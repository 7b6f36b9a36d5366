#include "comm/transport/secret.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <future>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <optional>

#include "dkfac/core/error.h"

#include "comm/conformance.h"
#include "comm/transport/crypto.h"
#include "comm/transport/tcp_mesh.h"
#include "support/tcp_ranks.h"
#include "support/temp_folder.h"

// Ranks that have one secret, others or none, and where they meet.
namespace dkfac::comm::testing {

namespace {

const std::string kOurs = "of-this-job-0123456789", kTheirs = "of-other-job-0123456789";

/// Sets a variable of the environment, or removes it, within a scope.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value)
      setenv(name_, value->c_str(), 1);
    else
      unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

std::string complaint(const Secret& secret) {
  try {
    (void)find_secret(secret);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// What make_tcp() throws on two ranks with these secrets.
std::array<std::string, 2> meet(const std::string& of_0, const std::string& of_1, double limit_s) {
  std::array<std::string, 2> messages;
  on_threads(2, [&](int rank, std::uint16_t port) {
    try {
      const auto comm = make_tcp(rank, 2, "127.0.0.1", port, {.timeout_s = limit_s},
                                 {.text = rank == 0 ? of_0 : of_1});
      comm->barrier();
    } catch (const CommError& error) {
      messages[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return messages;
}

}  // namespace

class TcpSecret : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_crypto()) GTEST_SKIP() << "this build has no libcrypto";
  }
};

TEST_F(TcpSecret, OneOnAllRanksConnectsThemAndTheirGroups) {
  on_threads(4, [](int rank, std::uint16_t port) {
    const auto comm = make_tcp(rank, 4, "127.0.0.1", port, {}, {.text = kOurs, .required = true});
    const auto part = comm->split(rank / 2, -rank);
    std::vector<double> x{1};
    part->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x[0], 8);
    EXPECT_EQ(secret_warning(*comm), "");
  });
}

TEST_F(TcpSecret, AnotherOneOrNoneIsAnErrorOnBothSides) {
  struct Case {
    std::string of_0, of_1, at_0, at_1;
  };
  const std::vector<Case> cases = {
      {kOurs, kOurs, "", ""},  // Control.
      {"", "", "", ""},
      {kOurs, kTheirs, "rank 1 and has another secret", "rank 0 at 127.0.0.1:"},
      {kOurs, "", "rank 1 and has no secret", "has a secret, and this rank has none"},
      {"", kOurs, "rank 1 and has a secret", "has no secret, and this rank has one"}};
  std::vector<std::future<std::array<std::string, 2>>> all;
  for (const Case& c : cases)  // Rank 0 waits until its limit.
    all.push_back(std::async(std::launch::async,
                             [&c] { return meet(c.of_0, c.of_1, c.at_0.empty() ? 20 : 2); }));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const auto messages = all[i].get();
    EXPECT_EQ(messages[0].empty(), c.at_0.empty()) << messages[0];
    EXPECT_EQ(messages[1].empty(), c.at_1.empty()) << messages[1];
    EXPECT_TRUE(contains(messages[0], c.at_0)) << messages[0];
    EXPECT_TRUE(contains(messages[1], c.at_1)) << messages[1];
    EXPECT_FALSE(contains(messages[0], "MASTER_ADDR")) << messages[0];
    for (const std::string& message : messages)
      EXPECT_FALSE(contains(message, kOurs) || contains(message, kTheirs)) << message;
  }
}

TEST_F(TcpSecret, AStrangerWithAnotherOneDoesNotEndTheJob) {
  on_threads(2, [](int rank, std::uint16_t port) {
    if (rank == 1) {
      const std::string message = message_of<CommError>(
          [&] { (void)make_tcp(1, 2, "127.0.0.1", port, {.timeout_s = 20}, {.text = kTheirs}); });
      EXPECT_TRUE(contains(message, "has another secret than this rank")) << message;
    }
    const auto comm = make_tcp(rank, 2, "127.0.0.1", port, {.timeout_s = 20}, {.text = kOurs});
    comm->barrier();
  });
}

TEST_F(TcpSecret, IsReadFromTheEnvironmentOrAFile) {
  const dkfac::testing::TempFolder folder;
  const std::string path = (folder.path() / "secret").string();
  std::ofstream(path) << kOurs << "\r\n";
  const Variable no_file("DKFAC_SECRET_FILE", {}), text("DKFAC_SECRET", kTheirs);
  EXPECT_EQ(find_secret({}), kTheirs);
  EXPECT_EQ(find_secret({.text = kOurs}), kOurs);
  const Variable file("DKFAC_SECRET_FILE", path);
  EXPECT_TRUE(contains(complaint({}), "both set"));
  const Variable no_text("DKFAC_SECRET", {});
  EXPECT_EQ(find_secret({.required = true}), kOurs);
  const Variable nowhere("DKFAC_SECRET_FILE", path + "s");
  EXPECT_TRUE(contains(complaint({}), "cannot be read"));
}

TEST(TcpSecretRefusals, NameWhatIsMissingAndNeverTheSecret) {
  const Variable no_file("DKFAC_SECRET_FILE", {}), no_text("DKFAC_SECRET", {});
  EXPECT_EQ(complaint({}), "");
  EXPECT_TRUE(contains(complaint({.required = true}), "(require_secret)"));
  EXPECT_TRUE(contains(complaint({.text = "too short"}), "16 to 4096"));
  EXPECT_FALSE(contains(complaint({.text = "too short"}), "too short"));
  const Variable empty("DKFAC_SECRET", "");
  EXPECT_TRUE(contains(complaint({}), "DKFAC_SECRET has 0 bytes"));
  EXPECT_EQ(contains(complaint({.text = kOurs}), "DKFAC_CRYPTO=ON"), !has_crypto());
  const Variable blank("DKFAC_SECRET", std::string(20, ' '));
  EXPECT_TRUE(contains(complaint({}), "DKFAC_SECRET is blank"));
  EXPECT_THROW((void)make_tcp(0, 1, "127.0.0.1", 0, {}, {.text = "short"}), InvalidArgument);
  // One rank makes no connection.
  EXPECT_EQ(make_tcp(0, 1, "127.0.0.1", 0, {}, {.required = true})->size(), 1);
  EXPECT_THROW((void)make_tcp(1, 2, "127.0.0.1", 1, {}, {.required = true}), InvalidArgument);
}

namespace {

/// An address of this machine that is no loopback one, or 0.
std::uint32_t outer_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return 0;
  std::uint32_t found = 0;
  for (const ifaddrs* each = list; each != nullptr && found == 0; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto* in = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    if (ntohl(in->sin_addr.s_addr) >> 24 != 127) found = ntohl(in->sin_addr.s_addr);
  }
  freeifaddrs(list);
  return found;
}

/// Joins a job as rank 1 of 2, from this address to another one of the machine.
Socket join_from(std::uint32_t address, std::uint16_t port, const Deadline& deadline) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  SystemAddress own = system_address({ipv4(address), 0});
  SystemAddress master = system_address({ipv4(INADDR_LOOPBACK), port});
  EXPECT_EQ(bind(socket.fd(), own.get(), own.length), 0);
  while (connect(socket.fd(), master.get(), master.length) != 0 && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Handshake handshake;
  handshake.port = 1;
  introduce(socket, handshake, {1, 2, {}}, deadline, "rank 0", [] {});
  return socket;
}

}  // namespace

TEST(TcpWarning, IsOfRanksOnSeveralMachinesWithoutASecret) {
  const std::uint32_t outer = outer_address();
  if (outer == 0) GTEST_SKIP() << "this machine has no address beside 127.0.0.1";
  for (const bool elsewhere : {true, false})
    on_threads(2, [&](int rank, std::uint16_t port) {
      Deadline deadline(20);
      deadline.start();
      if (rank == 1) {
        const Socket socket = join_from(elsewhere ? outer : INADDR_LOOPBACK, port, deadline);
        std::array<char, 16> book{};
        receive_all(socket, book.data(), book.size(), deadline, "rank 0");
        return;
      }
      const Node node({0, 2, {}}, "127.0.0.1", port, deadline);
      EXPECT_EQ(contains(node.warning(), "without a secret"), elsewhere) << node.warning();
    });
}

TEST(TcpIpv6, RanksMeetByAddressAndInGroups) {
  const Socket probe(::socket(AF_INET6, SOCK_STREAM, 0));
  SystemAddress here = system_address({resolve("::1", Deadline(1)), 0});
  if (bind(probe.fd(), here.get(), here.length) != 0) GTEST_SKIP() << "this machine has no IPv6";
  for (const std::string host : {"::1", "[::1]"}) {
    on_threads(3, [&](int rank, std::uint16_t port) {
      const auto comm = make_tcp(rank, 3, host, port, {.timeout_s = 20});
      const auto part = comm->split(rank == 0 ? 0 : 1);
      std::vector<double> x{1};
      part->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
      EXPECT_EQ(x[0], rank == 0 ? 1 : 2);
      comm->barrier();
    });
  }
}

}  // namespace dkfac::comm::testing
