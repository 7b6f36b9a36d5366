#include "dkfac/comm/launch.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "dkfac/core/error.h"

#include "comm/launch/launch_slurm.h"
#include "core/shared/printable.h"

namespace dkfac::comm {

namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
};

constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Launcher kOpenMpi{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK"};
/// Slurm's step variables exist only under srun; a batch script itself is one process.
constexpr Launcher kSlurm{"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};
constexpr Launcher kPmi{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"};

constexpr int kMaxPort = 65535;
constexpr int kSlurmPorts = 20000, kSlurmPortCount = 10000;  ///< Below the ephemeral ports.

std::string_view text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

template <class Number = int>
std::optional<Number> number_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  DKFAC_CHECK(error == std::errc{} && end == text.data() + text.size() && number >= 0,
              "[launch] the environment variable ", variable, " is '", printable(text),
              "'; a number >= 0 was expected");
  return number;
}

std::optional<LaunchInfo> started_by(const Launcher& launcher) {
  const std::optional<int> rank = number_of(launcher.rank), size = number_of(launcher.size);
  if (!rank || !size) return std::nullopt;
  const int local_rank = number_of(launcher.local_rank).value_or(0);
  const auto check = [&](const char* variable, int number) {
    DKFAC_CHECK(number < *size, "[launch] ", variable, " is ", number, ", but ", launcher.size,
                " is ", *size, "; ranks count from 0 and stay below it");
  };
  check(launcher.rank, *rank);
  check(launcher.local_rank, local_rank);
  return LaunchInfo{*rank, *size, launcher.name, local_rank};
}

/// Requires `other` if `variable` is set: such a process is one of several ranks and must not run
/// as a single one.
void require_both(const char* variable, const char* other) {
  DKFAC_CHECK(std::getenv(variable) == nullptr || !text_of(other).empty(), "[launch] ", variable,
              " is '", printable(text_of(variable)), "', but ", other,
              " is not set; set it as well, or unset ", variable, " to run alone");
}

void need_all(const Launcher& launcher) {
  require_both(launcher.rank, launcher.size);
  require_both(launcher.size, launcher.rank);
  require_both(launcher.local_rank, launcher.rank);
}

std::uint16_t port_number(int port, const char* variable) {
  DKFAC_CHECK(port > 0 && port <= kMaxPort, "[launch] the environment variable ", variable, " is ",
              port, "; a port between 1 and ", kMaxPort, " was expected");
  return static_cast<std::uint16_t>(port);
}

/// Returns the port of rank 0; DKFAC_PORT has precedence over MASTER_PORT, which other programs use
/// too.
std::uint16_t port_of_job(int fallback) {
  if (const auto port = number_of("DKFAC_PORT")) return port_number(*port, "DKFAC_PORT");
  if (const auto port = number_of("MASTER_PORT")) {
    // By default torchrun's own store listens at the port that it announces.
    const bool taken = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return port_number(taken ? (*port == kMaxPort ? *port - 1 : *port + 1) : *port, "MASTER_PORT");
  }
  return static_cast<std::uint16_t>(fallback);
}

std::optional<LaunchInfo> by_torchrun() {
  if (text_of("MASTER_ADDR").empty()) return std::nullopt;
  std::optional<LaunchInfo> launch = started_by(kTorchrun);
  if (!launch) return std::nullopt;
  if (text_of("MASTER_PORT").empty() && text_of("DKFAC_PORT").empty()) {
    DKFAC_CHECK(launch->size == 1,
                "[launch] RANK, WORLD_SIZE and MASTER_ADDR are set, but neither "
                "MASTER_PORT nor DKFAC_PORT; name a port that is free where rank 0 runs");
    return std::nullopt;
  }
  launch->host = text_of("MASTER_ADDR");
  launch->port = port_of_job(0);
  return launch;
}

/// Whether srun runs with --mpi=pmix or pmi2, which gives MPI its ranks; without it every process
/// would be an MPI job of one rank.
bool slurm_serves_mpi() {
  for (const char* variable : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

std::optional<LaunchInfo> by_slurm() {
  std::optional<LaunchInfo> launch = started_by(kSlurm);
  if (!launch) return launch;
  if (slurm_serves_mpi()) {
    // mpiexec of MPICH may start its ranks by srun, whose variables they inherit.
    const std::optional<LaunchInfo> pmi = started_by(kPmi);
    return pmi ? pmi : launch;
  }
  // Rank 0 is on the first node of the step; srun itself may run elsewhere, e.g. on a login node.
  launch->host = text_of("MASTER_ADDR");
  if (launch->host.empty()) launch->host = first_host(text_of("SLURM_STEP_NODELIST"));
  if (launch->host.empty()) launch->host = text_of("SLURM_LAUNCH_NODE_IPADDR");
  DKFAC_CHECK(!launch->host.empty() || launch->size == 1, "[launch] SLURM_STEP_NUM_TASKS is ",
              launch->size, ", but neither SLURM_STEP_NODELIST nor SLURM_LAUNCH_NODE_IPADDR says ",
              "where rank 0 runs; set MASTER_ADDR");
  // The step of an interactive shell has a number near 2^32.
  const auto job = number_of<std::int64_t>("SLURM_JOB_ID").value_or(0) % kSlurmPortCount;
  const auto step = number_of<std::int64_t>("SLURM_STEP_ID").value_or(0) % kSlurmPortCount;
  launch->port = port_of_job(kSlurmPorts + static_cast<int>((job * 7 + step) % kSlurmPortCount));
  return launch;
}

std::optional<LaunchInfo> innermost() {
  // torchrun runs inside of other launchers. Its variables may also be set by hand for another
  // program while mpirun starts this one. mpirun in turn runs inside of Slurm jobs.
  const bool torchrun = !text_of("TORCHELASTIC_RUN_ID").empty();
  if (torchrun)
    if (auto launch = by_torchrun()) return launch;
  if (auto launch = started_by(kOpenMpi)) return launch;
  if (auto launch = by_torchrun()) return launch;
  if (auto launch = by_slurm()) return launch;
  return started_by(kPmi);
}

/// Throws if variables of a launcher are only partly set, given that no complete set was found.
void refuse_half_a_launcher() {
  need_all(kOpenMpi);
  need_all(kPmi);
  require_both(kSlurm.size, kSlurm.rank);
  // A batch script has process number 0, but no step.
  if (number_of(kSlurm.rank).value_or(0) > 0) require_both(kSlurm.rank, kSlurm.size);
  DKFAC_CHECK(text_of("PMIX_RANK").empty(), "[launch] PMIX_RANK is '",
              printable(text_of("PMIX_RANK")), "', but nothing says how many ranks there are; ",
              "start them by mpirun or srun, or unset PMIX_RANK to run alone");
}

/// Throws if torchrun's variables are only partly set by hand, possibly in a shell inside of Slurm.
void refuse_half_by_hand() {
  need_all(kTorchrun);
  const std::optional<LaunchInfo> launch = started_by(kTorchrun);
  if (launch && launch->size > 1) require_both(kTorchrun.size, "MASTER_ADDR");
}

}  // namespace

LaunchInfo detect_launch() {
  const std::optional<LaunchInfo> launch = innermost();
  if (!launch) refuse_half_a_launcher();
  if (!launch || (launch->launcher == kSlurm.name && launch->size == 1)) refuse_half_by_hand();
  return launch.value_or(LaunchInfo{0, 1, "none"});
}

}  // namespace dkfac::comm
