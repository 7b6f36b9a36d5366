#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// The MPI state of one communicator: two private duplicates (data; checks and failure notices),
/// the failure if there is one, and scratch memory that is kept between collectives.
class MpiGroup {
 public:
  /// Collective over `comm`; fails after options.timeout_s.
  static std::shared_ptr<MpiGroup> duplicate(MPI_Comm comm, const Options& options,
                                             std::shared_ptr<MpiGroup> parent);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] MPI_Comm data() const { return data_; }
  [[nodiscard]] MPI_Comm checks() const { return checks_; }
  /// Message tag of phase 0, 1 or 2 of a call.
  [[nodiscard]] int tag(std::uint64_t sequence, int phase) const;

  [[nodiscard]] bool failed() const { return !failure().empty(); }
  /// Looks for a peer's failure notice, then throws the failure of this group or of one above.
  void throw_if_failed();
  /// Keeps the first failure and tells the peers, without waiting for them.
  void fail(std::string_view text) noexcept;

  /// At least `bytes` of memory for the running collective; there is one at a time.
  [[nodiscard]] std::byte* scratch(std::size_t bytes);

 private:
  MpiGroup() = default;
  void look_for_notice();
  [[nodiscard]] const std::string& failure() const;
  void send_notice() noexcept;

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm checks_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int tag_limit_ = 0;
  std::string failure_;
  std::vector<std::byte> scratch_;
  std::shared_ptr<MpiGroup> parent_;
};

}  // namespace dkfac::comm
