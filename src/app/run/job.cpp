#include "app/run/job.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include "dkfac/comm/hierarchical.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/comm/launch.h"
#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "app/run/agreement.h"
#include "core/shared/printable.h"
#include "core/shared/thread_start.h"

namespace dkfac::app {

namespace {

using Body = std::function<void(std::shared_ptr<comm::Communicator>)>;

int print(const Failure& failure, const Terminal& terminal) {
  terminal.out.flush();
  terminal.err << error_line(failure) << std::endl;
  return static_cast<int>(failure.code);
}

// Returns the seconds that a failing rank waits before it reports. The rank where the failure began
// reports first and ends the job; when all fail at once, rank 0 does. A rank that only lost a peer
// waits longer, so that the peer can report the cause. Where no launcher ends the others, the turns
// delay the next start.
double report_delay(const Failure& failure, int rank) {
  const double turn = 0.2 * std::min(rank, 10);
  if (failure.code == ExitCode::try_again) return 3 + turn;
  return rank == 0 ? 0 : 1 + turn;
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

[[noreturn]] void end_job(comm::Communicator& comm, const Failure& failure,
                          const Terminal& terminal) {
  comm.abort(failure.what);
  sleep_for(report_delay(failure, comm.rank()));
  comm::World::terminate(print(failure, terminal));
}

// Reports a failure that all ranks share, while communication still works.
int report_and_agree(comm::Communicator& comm, const Failure& failure, const Terminal& terminal) {
  if (comm.rank() == failure.rank) print(failure, terminal);
  try {
    comm.barrier("report");  // No rank exits before the line is printed.
  } catch (const CommError&) {
  }
  return static_cast<int>(failure.code);
}

std::shared_ptr<comm::Communicator> in_levels(const Job& job,
                                              std::shared_ptr<comm::Communicator> comm) {
  if (job.ranks_per_node == 0) return comm;
  return comm::make_hierarchical(std::move(comm), job.ranks_per_node).comm;
}

int run_launched(const Job& job, int rank, const Terminal& terminal, const Body& body) {
  std::optional<comm::World> world;
  if (const auto failure = attempt(
          "launch", [&] { world.emplace(job.connection.options, job.connection.secret); })) {
    if (job.refused) job.refused(rank, {rank, failure->position, failure->code, failure->what});
    sleep_for(rank == 0 ? 0 : 3);  // Usually all fail alike, and rank 0 ends the job.
    return print({rank, failure->position, failure->code, failure->what}, terminal);
  }
  const std::shared_ptr<comm::Communicator> comm = world->comm();
  if (const std::string warning = comm::secret_warning(*comm); !warning.empty())
    print_warnings({warning}, terminal);
  try {
    agree(*comm, job.early);
    body(in_levels(job, comm));
    return 0;
  } catch (const RunError& error) {
    if (error.scope == RunError::Scope::every_rank)
      return report_and_agree(*comm, error.failure, terminal);
    end_job(*comm, error.failure, terminal);
  } catch (...) {
    end_job(*comm, describe_current_exception(comm->rank(), {}), terminal);
  }
}

/// Runs the ranks as threads. Throws the original failure as far as it can be identified, because a
/// rank that only lost a peer may fail first.
void run_threads(const Job& job, const Body& body) {
  std::mutex mutex;
  std::optional<RunError> echo;
  const auto run_one = [&](std::shared_ptr<comm::Communicator> comm) {
    try {
      body(in_levels(job, std::move(comm)));
    } catch (const RunError& error) {
      if (error.scope == RunError::Scope::every_rank || error.failure.code != ExitCode::try_again)
        throw;
      const std::lock_guard lock(mutex);
      if (!echo) echo = error;
      throw CommError(error.failure.what);  // run_ranks() prefers any other error to this one.
    }
  };
  try {
    comm::run_ranks(job.ranks, run_one, job.connection.options);
  } catch (const CommError&) {
    if (echo) throw RunError(*echo);
    throw;
  }
}

int run_here(const Job& job, const Terminal& terminal, const Body& body) {
  if (job.early) return print(*job.early, terminal);
  try {
    if (job.ranks == 1)
      body(in_levels(job, comm::make_self(job.connection.options)));
    else
      run_threads(job, body);
    return 0;
  } catch (...) {
    return print(describe_current_exception(0, {}), terminal);
  }
}

// Identifies the cores that this process may use: ranks with the same text share them.
std::string cores_text() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return "?";
  std::string text(host.data());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return text;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(static_cast<std::size_t>(i), &set)) text += ' ' + std::to_string(i);
  return text;
}

/// Returns how many threads this rank's share of the cores makes; 0: leave their number as it is.
int share_of_cores(comm::Communicator& comm) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  if (comm.backend() == "in_process") return 1;
  if (comm.size() == 1) return 0;
  const auto all = comm::all_gather_strings(comm, cores_text());
  const auto ranks_on_cores =
      std::count(all.begin(), all.end(), all[static_cast<std::size_t>(comm.rank())]);
  return std::max(1, available_cores() / static_cast<int>(ranks_on_cores));
}

}  // namespace

std::optional<Failure> attempt(const char* activity, const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (...) {
    return describe_current_exception(0, {0, activity});
  }
}

int run_job(const Job& job, const Terminal& terminal, const Body& body) {
  comm::LaunchInfo launch;
  if (const auto failure = attempt("launch", [&] { launch = comm::detect_launch(); }))
    return print(*failure, terminal);
  // Unless the environment sets another mode, CUDA loads kernels before their first launch, which
  // may wait for a collective whose peer waits likewise, a deadlock. This process has one thread
  // yet.
  if (launch.size > 1 || job.ranks > 1) (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (job.early && job.refused) job.refused(launch.rank, *job.early);
  if (launch.size == 1) return run_here(job, terminal, body);
  Job launched = job;
  if (launched.early) launched.early->rank = launch.rank;
  if (!launched.early && job.ranks != 1)
    launched.early =
        Failure{launch.rank,
                {0, "launch"},
                ExitCode::usage,
                "[launch] --ranks is for ranks inside of one process, but " + launch.launcher +
                    " started " + std::to_string(launch.size) + " processes; leave --ranks out"};
  return run_launched(launched, launch.rank, terminal, body);
}

int run_alone(const char* activity, const Terminal& terminal, const std::function<void()>& work) {
  const auto failure = attempt(activity, [&] {
    if (comm::detect_launch().rank == 0) work();
  });
  return failure ? print(*failure, terminal) : 0;
}

void print_warnings(const std::vector<std::string>& warnings, const Terminal& terminal) {
  for (const std::string& warning : warnings) terminal.err << warning_line(warning) << std::endl;
}

void print_remarks(const Config& config, int rank, const Terminal& terminal) {
  if (rank == 0) print_warnings(config.remarks, terminal);
}

void print_processor_warnings(std::span<const Config> configs, int rank, const Terminal& terminal) {
  if (rank != 0 || device_choice(configs.front()).kind == Device::Kind::cuda) return;
  const BackendInfo backend = backend_info();
  if (!backend.warning.empty()) print_warnings({"[run] " + backend.warning}, terminal);
  const bool fast_bf16 = backend.onednn_isa.find("amx") != std::string::npos;
  const auto slow = std::ranges::find_if(configs, [fast_bf16](const Config& config) {
    return config.run.precision == DType::f16 ||
           (config.run.precision == DType::bf16 && !fast_bf16);
  });
  if (slow == configs.end()) return;
  print_warnings({detail::concat("[run] precision = \"", slow->run.precision,
                                 "\" is no faster than f32 on this processor, which converts it "
                                 "to multiply (bf16 needs AMX); it saves memory alone")},
                 terminal);
}

void share_cores(comm::Communicator& comm, int threads) {
  const int share = share_of_cores(comm);  // Collective, also where ranks differ in `threads`.
  if (threads > 0 || share > 0) set_threads(threads > 0 ? threads : share);
  check_threads();
}

void check_threads() {
  constexpr int kMost = 4096;  // As for run.threads; OpenMP may crash with more.
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  // More than the largest int are a negative number here.
  DKFAC_CHECK(threads() >= 1 && threads() <= kMost, "[threads] OMP_NUM_THREADS is '",
              printable(wanted == nullptr ? "" : wanted), "'; use at most ", kMost,
              " threads, or unset it");
  require_threads(threads());
}

void keep_standard_files() noexcept {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(file, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free number. The opposite access mode makes any use of it fail.
    (void)!open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void check_output(const Terminal& terminal) {
  terminal.out.flush();
  if (!terminal.out)
    throw IoError(
        "[output] standard output could not be written completely; check that there is space "
        "and a reader where it goes");
}

int finish_output(int code, const Terminal& terminal) {
  if (code != 0) return code;
  const std::optional<Failure> failure = attempt("output", [&] { check_output(terminal); });
  if (!failure) return 0;
  comm::LaunchInfo launch;
  (void)attempt("launch", [&] { launch = comm::detect_launch(); });
  return print({launch.rank, failure->position, failure->code, failure->what}, terminal);
}

int refuse(const Failure& failure, const Terminal& terminal) {
  return run_job({.early = failure}, terminal, [](std::shared_ptr<comm::Communicator>) {});
}

int refuse_command_line(const std::string& what, const Terminal& terminal) {
  return refuse({0, {0, "arguments"}, ExitCode::usage, what}, terminal);
}

}  // namespace dkfac::app
