#include "comm/transport/tcp_mesh.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {
namespace {

constexpr int kPollMs = 50;
constexpr rlim_t kMostStrangers = 128;

/// What rank 0 answers to a hello, before `size` entries.
struct BookHead {
  static constexpr std::uint64_t kMagic = 0x314b4f4f424b4444ULL;  ///< Not that of a hello.
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;
};
struct BookEntry {
  std::uint32_t address = 0;  ///< 0: the host at which the reader found rank 0.
  std::uint32_t port = 0;
};

std::uint64_t new_job() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto pid = static_cast<std::uint64_t>(getpid());
  return hash_number(hash_number(kHashSeed, static_cast<std::uint64_t>(now)), pid) | 1U;
}

void check_guest(const Reception::Guest& guest, int size, const std::vector<Socket>& joined) {
  const Hello& hello = guest.hello;
  const std::string from = to_string({guest.address, static_cast<std::uint16_t>(hello.port)});
  if (hello.size != static_cast<std::uint32_t>(size) || hello.rank == 0 || hello.rank >= hello.size)
    throw CommError(detail::concat("[tcp] a process at ", from, " says that it is rank ",
                                   hello.rank, " of ", hello.size, "; rank 0 expects ", size,
                                   " ranks; give all the same WORLD_SIZE and different RANKs"));
  if (joined[hello.rank].open())
    throw CommError(detail::concat("[tcp] two processes, one at ", from,
                                   ", say that they are rank ", hello.rank,
                                   "; every one needs a RANK of its own"));
}

std::vector<int> closed(const std::vector<Socket>& sockets, std::size_t first) {
  std::vector<int> ranks;
  for (std::size_t r = first; r < sockets.size(); ++r)
    if (!sockets[r].open()) ranks.push_back(static_cast<int>(r));
  return ranks;
}

AddressBook gather(int size, std::uint16_t port, std::uint16_t own_port, const Deadline& deadline) {
  Reception door(port);
  std::vector<Socket> joined(static_cast<std::size_t>(size));
  std::vector<BookEntry> entries(joined.size());
  entries[0].port = own_port;
  for (std::vector<int> missing = closed(joined, 1); !missing.empty();
       missing = closed(joined, 1)) {
    for (Reception::Guest& guest : door.receive(kPollMs)) {
      if (guest.hello.purpose != Hello::Purpose::join) continue;
      check_guest(guest, size, joined);
      // A loopback address means nothing elsewhere: that rank lives where rank 0 does.
      entries[guest.hello.rank] = {is_loopback(guest.address) ? 0 : guest.address,
                                   guest.hello.port};
      joined[guest.hello.rank] = std::move(guest.socket);
    }
    if (deadline.passed())
      throw CommError(detail::concat("[tcp] rank 0 waited ", deadline.seconds(),
                                     " s (timeout_s) at port ", port, "; ",
                                     rank_list(closed(joined, 1)),
                                     " did not come; are they running, and do they have the same "
                                     "MASTER_ADDR and MASTER_PORT?"));
  }
  const BookHead head{BookHead::kMagic, new_job()};
  AddressBook book{head.job, {}};
  for (const BookEntry& entry : entries)
    book.ranks.push_back({entry.address, static_cast<std::uint16_t>(entry.port)});
  for (std::size_t r = 1; r < joined.size(); ++r) {
    const std::string peer = detail::concat("rank ", r);
    send_all(joined[r], &head, sizeof head, deadline, peer);
    send_all(joined[r], entries.data(), entries.size() * sizeof(BookEntry), deadline, peer);
  }
  return book;
}

AddressBook join(int rank, int size, const Endpoint& master, std::uint16_t own_port,
                 const Deadline& deadline) {
  const std::string peer = detail::concat("rank 0 at ", to_string(master));
  const Socket socket = connect_to(master, deadline, [] {});
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.port = own_port;
  send_all(socket, &hello, sizeof hello, deadline, peer);
  BookHead head;
  receive_all(socket, &head, sizeof head, deadline, peer);
  if (head.magic != BookHead::kMagic)
    throw CommError(detail::concat("[tcp] ", to_string(master),
                                   " is another program's; choose another MASTER_PORT"));
  std::vector<BookEntry> entries(static_cast<std::size_t>(size));
  receive_all(socket, entries.data(), entries.size() * sizeof(BookEntry), deadline, peer);
  AddressBook book{head.job, {}};
  for (const BookEntry& entry : entries)
    book.ranks.push_back({entry.address == 0 ? master.address : entry.address,
                          static_cast<std::uint16_t>(entry.port)});
  return book;
}

}  // namespace

std::size_t Reception::usual_most() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return kMostStrangers;
  return std::clamp<rlim_t>(files.rlim_cur / 4, 1, kMostStrangers);
}

bool Reception::listen_to(Stranger& stranger) {
  auto* hello = reinterpret_cast<std::byte*>(&stranger.guest.hello);
  const Moved moved =
      receive_some(stranger.guest.socket, hello + stranger.heard, sizeof(Hello) - stranger.heard);
  stranger.heard += moved.bytes;
  const bool complete = stranger.heard == sizeof(Hello);
  if (moved.lost || (complete && stranger.guest.hello.magic != Hello::kMagic))
    stranger.guest.socket.close();
  return complete && stranger.guest.socket.open();
}

void Reception::listen_to_all(std::vector<Guest>& guests) {
  for (Stranger& stranger : strangers_)
    if (listen_to(stranger)) guests.push_back(std::move(stranger.guest));
  std::erase_if(strangers_, [](const Stranger& s) { return !s.guest.socket.open(); });
}

std::vector<Reception::Guest> Reception::receive(int ms) {
  std::vector<pollfd> entries{{door_.fd(), POLLIN, 0}};
  for (const Stranger& stranger : strangers_)
    entries.push_back({stranger.guest.socket.fd(), POLLIN, 0});
  (void)poll(entries.data(), entries.size(), ms);
  std::vector<Guest> guests;
  // Not endless, however many knock: the caller has a deadline.
  for (std::size_t i = 0; i <= most_ && somebody_knocks(door_); ++i) {
    Accepted accepted;
    const Knock knock = accept_from(door_, accepted);
    if (knock == Knock::gone) continue;
    if (knock == Knock::taken)
      strangers_.push_back({{std::move(accepted.socket), accepted.address, {}}, 0});
    if (knock == Knock::taken && strangers_.size() <= most_) continue;
    if (strangers_.empty()) {
      if (guests.empty())
        throw CommError("[tcp] no open file is left for a connection; raise the limit (ulimit -n)");
      break;
    }
    const std::size_t before = strangers_.size();
    listen_to_all(guests);  // Who has said hello by now is no stranger.
    if (strangers_.size() == before) strangers_.erase(strangers_.begin());
  }
  listen_to_all(guests);
  return guests;
}

AddressBook meet(int rank, int size, const std::string& host, std::uint16_t port,
                 std::uint16_t own_port, const Deadline& deadline) {
  AddressBook book = rank == 0 ? gather(size, port, own_port, deadline)
                               : join(rank, size, {resolve(host), port}, own_port, deadline);
  return book;
}

Node::Node(int rank, int size, const std::string& host, std::uint16_t port,
           const Deadline& deadline)
    : rank_(rank),
      reception_(0),
      book_(meet(rank, size, host, port, reception_.port(), deadline)) {}

void Node::call(int rank, std::uint32_t group, Hello::Purpose purpose, const Deadline& deadline,
                const std::function<void()>& check, Socket& socket) {
  Hello hello;
  hello.job = book_.job;
  hello.group = group;
  hello.rank = static_cast<std::uint32_t>(rank_);
  hello.purpose = purpose;
  socket = connect_to(book_.ranks[static_cast<std::size_t>(rank)], deadline, check);
  send_all(socket, &hello, sizeof hello, deadline, detail::concat("rank ", rank));
}

void Node::let_in(int ms) {
  for (Reception::Guest& guest : reception_.receive(ms)) {
    const Hello& hello = guest.hello;
    if (hello.job == book_.job)
      waiting_[{hello.group, hello.rank, hello.purpose}] = std::move(guest.socket);
  }
}

std::vector<Link> Node::connect(const std::vector<int>& members, std::uint32_t group,
                                const Deadline& deadline, const std::function<void()>& check) {
  using Purpose = Hello::Purpose;
  std::vector<Link> links(members.size());
  std::vector<std::size_t> callers;  // the higher of two ranks calls the lower
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (members[m] > rank_) callers.push_back(m);
    if (members[m] >= rank_) continue;
    call(members[m], group, Purpose::data, deadline, check, links[m].data);
    call(members[m], group, Purpose::control, deadline, check, links[m].control);
  }
  const auto take = [&](std::size_t m) {
    const auto rank = static_cast<std::uint32_t>(members[m]);
    const auto data = waiting_.find({group, rank, Purpose::data});
    const auto control = waiting_.find({group, rank, Purpose::control});
    if (data == waiting_.end() || control == waiting_.end()) return false;
    links[m] = {std::move(data->second), std::move(control->second)};
    waiting_.erase(data);
    waiting_.erase(control);
    return true;
  };
  for (std::erase_if(callers, take); !callers.empty(); std::erase_if(callers, take)) {
    check();
    if (deadline.passed()) {
      std::vector<int> ranks;
      for (const std::size_t m : callers) ranks.push_back(members[m]);
      throw CommError(detail::concat("[tcp] waited ", deadline.seconds(),
                                     " s (timeout_s) for connections; ", rank_list(ranks),
                                     " of the job did not come; look there, or raise the limit"));
    }
    let_in(kPollMs);
  }
  return links;
}

}  // namespace dkfac::comm
