#include "comm/transport/tcp_mesh.h"

#include <algorithm>
#include <chrono>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"

namespace dkfac::comm {
namespace {

constexpr int kPollMs = 50;
constexpr int kReplyMs = 1;  ///< While replies may come on other connections.
constexpr rlim_t kMostPending = 128;

/// Header of rank 0's reply to a handshake, before `size` entries.
struct BookHead {
  static constexpr std::uint64_t kMagic = 0x314b4f4f424b4444ULL;  ///< Differs from Handshake's.
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;
};
struct BookEntry {
  Address address{};  ///< All zero: that at which the receiver reached rank 0.
  std::uint32_t port = 0;
};

std::uint64_t new_job() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto pid = static_cast<std::uint64_t>(getpid());
  return hash_number(hash_number(kHashSeed, static_cast<std::uint64_t>(now)), pid) | 1U;
}

void check_connection(const Listener::Connection& connection, int size,
                      const std::vector<Socket>& joined) {
  const Handshake& handshake = connection.handshake;
  const std::string from =
      to_string({connection.address, static_cast<std::uint16_t>(handshake.port)});
  if (handshake.size != static_cast<std::uint32_t>(size) || handshake.rank == 0 ||
      handshake.rank >= handshake.size)
    throw CommError(detail::concat("[tcp] a process at ", from, " says that it is rank ",
                                   handshake.rank, " of ", handshake.size, "; rank 0 expects ",
                                   size,
                                   " ranks; give all the same WORLD_SIZE and different RANKs"));
  if (joined[handshake.rank].open())
    throw CommError(detail::concat("[tcp] two processes, one at ", from,
                                   ", say that they are rank ", handshake.rank,
                                   "; every one needs a RANK of its own"));
}

std::vector<int> closed(const std::vector<Socket>& sockets, std::size_t first) {
  std::vector<int> ranks;
  for (std::size_t r = first; r < sockets.size(); ++r)
    if (!sockets[r].open()) ranks.push_back(static_cast<int>(r));
  return ranks;
}

AddressBook gather(const Member& self, std::uint16_t port, std::uint16_t own_port,
                   const Deadline& deadline) {
  Listener listener(port, Listener::usual_most(self.size), self);
  std::vector<Socket> joined(static_cast<std::size_t>(self.size));
  std::vector<BookEntry> entries(joined.size());
  entries[0].port = own_port;
  AddressBook book{new_job(), false, {}};
  for (std::vector<int> missing = closed(joined, 1); !missing.empty();
       missing = closed(joined, 1)) {
    for (Listener::Connection& connection : listener.receive(kPollMs)) {
      if (connection.handshake.purpose != Handshake::Purpose::join) continue;
      check_connection(connection, self.size, joined);
      book.several_machines |= !is_from_here(connection.socket);
      // A loopback address is useless on other machines: that rank is on the machine of rank 0.
      entries[connection.handshake.rank] = {
          is_loopback(connection.address) ? Address{} : connection.address,
          connection.handshake.port};
      joined[connection.handshake.rank] = std::move(connection.socket);
    }
    if (deadline.passed())
      throw CommError(
          detail::concat("[tcp] rank 0 waited ", deadline.seconds(), " s (timeout_s) at port ",
                         port, "; ", rank_list(missing), " did not come",
                         listener.refused().empty()
                             ? "; is each running, with the same MASTER_ADDR and MASTER_PORT?"
                             : listener.refused() + "; give every rank the same one"));
  }
  const BookHead head{BookHead::kMagic, book.job};
  for (const BookEntry& entry : entries)
    book.ranks.push_back({entry.address, static_cast<std::uint16_t>(entry.port)});
  for (std::size_t r = 1; r < joined.size(); ++r) {
    const std::string peer = detail::concat("rank ", r);
    send_all(joined[r], &head, sizeof head, deadline, peer);
    send_all(joined[r], entries.data(), entries.size() * sizeof(BookEntry), deadline, peer);
  }
  return book;
}

AddressBook join(const Member& self, const Endpoint& master, std::uint16_t own_port,
                 const Deadline& deadline) {
  const std::string peer = detail::concat("rank 0 at ", to_string(master));
  const Socket socket = connect_to(master, deadline, peer, [] {});
  Handshake handshake;
  handshake.port = own_port;
  introduce(socket, handshake, self, deadline, peer, [] {});
  BookHead head;
  receive_all(socket, &head, sizeof head, deadline, peer + ", which waits for all ranks,");
  if (head.magic == Reply::kMagic) throw_refused(Reply::Verdict::secret_missing, peer);
  if (head.magic != BookHead::kMagic)
    throw CommError(detail::concat("[tcp] ", to_string(master),
                                   " is another program's; choose another MASTER_PORT"));
  std::vector<BookEntry> entries(static_cast<std::size_t>(self.size));
  receive_all(socket, entries.data(), entries.size() * sizeof(BookEntry), deadline, peer);
  AddressBook book{head.job, false, {}};
  for (const BookEntry& entry : entries)
    book.ranks.push_back({entry.address == Address{} ? master.address : entry.address,
                          static_cast<std::uint16_t>(entry.port)});
  return book;
}

}  // namespace

std::size_t Listener::usual_most(int ranks) {
  const auto least = static_cast<rlim_t>(ranks);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return std::max(kMostPending, least);
  return std::max(least, std::clamp<rlim_t>(files.rlim_cur / 4, 1, kMostPending));
}

std::string Listener::refused() const {
  if (refused_ == 0) return {};
  return detail::concat("; ", refused_, refused_ == 1 ? " connection was" : " connections were",
                        " refused, the last of ", last_refused_,
                        " (secret, DKFAC_SECRET, DKFAC_SECRET_FILE)");
}

bool Listener::read_handshake(PendingConnection& pending) {
  Answer& answer = pending.answer;
  for (std::span<std::byte> next = room(answer); !next.empty(); next = room(answer)) {
    const IoResult moved = receive_some(pending.socket, next.data(), next.size());
    if (moved.lost) pending.socket.close();
    if (moved.bytes == 0) return false;
    const std::optional<Reply> reply = take(answer, moved.bytes, self_);
    // The first bytes on a connection have room in its buffers.
    if (reply &&
        send_some(pending.socket, nullptr, 0, &*reply, sizeof *reply).bytes != sizeof *reply)
      answer.state = Answer::State::refused;
  }
  if (answer.state == Answer::State::accepted) return true;
  if (answer.verdict != Reply::Verdict::accepted) {
    ++refused_;
    last_refused_ = detail::concat(
        "a process at ",
        to_string({pending.address, static_cast<std::uint16_t>(answer.handshake.port)}),
        ", which says that it is rank ", answer.handshake.rank, " and ", refusal(answer.verdict));
  }
  pending.socket.close();
  return false;
}

void Listener::read_handshakes(std::vector<Connection>& connections) {
  for (PendingConnection& pending : pending_)
    if (read_handshake(pending))
      connections.push_back({std::move(pending.socket), pending.address, pending.answer.handshake});
  std::erase_if(pending_, [](const PendingConnection& s) { return !s.socket.open(); });
}

std::vector<Listener::Connection> Listener::receive(int ms) {
  std::vector<pollfd> entries{{socket_.fd(), POLLIN, 0}};
  for (const PendingConnection& pending : pending_)
    entries.push_back({pending.socket.fd(), POLLIN, 0});
  (void)poll(entries.data(), entries.size(), ms);
  std::vector<Connection> connections;
  // Bounded, however many connections arrive: the caller has a deadline.
  for (std::size_t i = 0; i <= most_ && has_pending(socket_); ++i) {
    Accepted accepted;
    const AcceptResult knock = accept_from(socket_, accepted);
    if (knock == AcceptResult::aborted) continue;
    if (knock == AcceptResult::accepted)
      pending_.push_back({std::move(accepted.socket), accepted.address, {}});
    if (knock == AcceptResult::accepted && pending_.size() <= most_) continue;
    if (pending_.empty()) {
      if (connections.empty())
        throw Error("[tcp] no open file is left for a connection; raise the limit (ulimit -n)");
      break;
    }
    const std::size_t before = pending_.size();
    read_handshakes(connections);  // Connections whose handshake has arrived are not dropped.
    if (pending_.size() == before) pending_.erase(pending_.begin());
  }
  read_handshakes(connections);
  return connections;
}

AddressBook rendezvous(const Member& self, const std::string& host, std::uint16_t port,
                       std::uint16_t own_port, const Deadline& deadline) {
  if (self.rank == 0) return gather(self, port, own_port, deadline);
  return join(self, {resolve(host, deadline), port}, own_port, deadline);
}

Node::Node(Member self, const std::string& host, std::uint16_t port, const Deadline& deadline)
    : self_(std::move(self)),
      listener_(0, Listener::usual_most(self_.size), self_),
      book_(rendezvous(self_, host, port, listener_.port(), deadline)) {}

std::string Node::warning() const {
  if (!book_.several_machines || !self_.secret.empty()) return {};
  return "[tcp] ranks on several machines are connected without a secret, so that any process that "
         "reaches their ports could take part; give every rank the same DKFAC_SECRET or "
         "DKFAC_SECRET_FILE";
}

Node::Call Node::call(const Key& key, const Deadline& deadline,
                      const std::function<void()>& check) {
  Handshake handshake;
  handshake.job = book_.job;
  std::tie(handshake.group, handshake.to, handshake.purpose) = key;
  const Endpoint& to = book_.ranks[handshake.to];
  Call call{detail::concat("rank ", handshake.to, " at ", to_string(to)), {}, {}};
  call.socket = connect_to(to, deadline, call.peer, check);
  call.introduction = begin_introduction(handshake, self_);
  send_all(call.socket, &call.introduction.handshake, sizeof(Handshake), deadline, call.peer);
  return call;
}

bool Node::advance(Call& call) const {
  Introduction& mine = call.introduction;
  for (std::span<std::byte> next = room(mine); !next.empty(); next = room(mine)) {
    const IoResult moved = receive_some(call.socket, next.data(), next.size());
    if (moved.lost)
      throw CommError(detail::concat("[tcp] ", call.peer,
                                     " closed the connection before it was made; see its message"));
    if (moved.bytes == 0) return false;
    const std::optional<Digest> proof = take(mine, moved.bytes, self_, call.peer);
    // The first bytes on a connection have room in its buffers.
    if (proof) (void)send_some(call.socket, nullptr, 0, proof->data(), proof->size());
  }
  return true;
}

void Node::accept_pending(int ms) {
  for (Listener::Connection& connection : listener_.receive(ms)) {
    const Handshake& handshake = connection.handshake;
    if (handshake.job == book_.job)
      waiting_[{handshake.group, handshake.rank, handshake.purpose}] = std::move(connection.socket);
  }
}

std::vector<Wanted> Node::reach(std::vector<Wanted> wanted, std::uint32_t group, int ms,
                                const Deadline& deadline, const std::function<void()>& check) {
  accept_pending(ms);
  const auto connects = [&](const Key& key) {
    auto found = calls_.find(key);
    if (found == calls_.end()) found = calls_.emplace(key, call(key, deadline, check)).first;
    return advance(found->second);
  };
  std::erase_if(wanted, [&](const Wanted& other) {
    const auto rank = static_cast<std::uint32_t>(other.rank);
    const Key data{group, rank, Handshake::Purpose::data},
        control{group, rank, Handshake::Purpose::control};
    if (other.rank > self_.rank) {
      if (!waiting_.contains(data) || !waiting_.contains(control)) return false;
      *other.link = {std::move(waiting_.extract(data).mapped()),
                     std::move(waiting_.extract(control).mapped())};
      return true;
    }
    const bool has_data = connects(data), has_control = connects(control);
    if (!has_data || !has_control) return false;
    *other.link = {std::move(calls_.extract(data).mapped().socket),
                   std::move(calls_.extract(control).mapped().socket)};
    return true;
  });
  return wanted;
}

void Node::connect(std::vector<Wanted> wanted, std::uint32_t group, const Deadline& deadline,
                   const std::function<void()>& check) {
  wanted = reach(std::move(wanted), group, 0, deadline, check);
  while (!wanted.empty()) {
    check();
    if (deadline.passed()) {
      std::vector<int> ranks;
      for (const Wanted& other : wanted) ranks.push_back(other.rank);
      throw CommError(detail::concat(
          "[tcp] waited ", deadline.seconds(), " s (timeout_s) for connections; ", rank_list(ranks),
          " of the job did not come", listener_.refused(), "; look there, or raise the limit"));
    }
    wanted = reach(std::move(wanted), group, calls_.empty() ? kPollMs : kReplyMs, deadline, check);
  }
}

}  // namespace dkfac::comm
