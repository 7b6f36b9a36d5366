#include "dkfac/comm/tcp.h"

#include "dkfac/core/error.h"

#include "comm/transport/peer_communicator.h"
#include "comm/transport/secret.h"
#include "comm/transport/tcp_group.h"

namespace dkfac::comm {

std::shared_ptr<Communicator> make_tcp(int rank, int size, const std::string& host,
                                       std::uint16_t port, Options options, Secret secret) {
  options.validate();
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[make_tcp] rank ", rank, " of ", size,
              " ranks does not exist");
  DKFAC_CHECK(port != 0 || size == 1, "[make_tcp] port is 0; all ranks have to know one port");
  Member self{rank, size};
  if (size > 1)
    self.secret = find_secret(secret);
  else
    check_secret(secret);
  return make_peers("tcp", TcpGroup::world(self, host, port, options), options);
}

}  // namespace dkfac::comm
