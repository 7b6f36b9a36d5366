#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "dkfac/core/error.h"

namespace dkfac::app {

/// Exit codes of the program, after sysexits.h where it has one.
enum class ExitCode : int {
  ok = 0,
  usage = 64,          ///< Command line, configuration, shapes that do not fit.
  bad_data = 65,       ///< A file whose content is wrong.
  missing_input = 66,  ///< A file that is not there.
  internal = 70,       ///< Our bug, no memory, no backend.
  io = 74,             ///< Reading or writing failed.
  try_again = 75,      ///< Stopped by a signal, a lost or disagreeing peer, a time limit.
  numeric = 80         ///< Training diverged, or a factor failed too often.
};

/// Where a rank is; kept up to date so that an error can say it.
struct Position {
  std::int64_t step = 0;        ///< Optimizer steps finished.
  std::string phase = "start";  ///< One word: "config", "data", "forward", ...
};

/// What the last line on stderr tells.
struct Failure {
  int rank = 0;
  Position position;
  ExitCode code = ExitCode::internal;
  std::string what;
};

/// Carries a Failure to the one place that prints. Scope every_rank: all ranks throw the same one.
struct RunError : std::runtime_error {
  enum class Scope : std::uint8_t { this_rank, every_rank };
  RunError(Failure f, Scope s) : std::runtime_error(f.what), failure(std::move(f)), scope(s) {}
  Failure failure;
  Scope scope;
};

[[nodiscard]] ExitCode exit_code_of(const std::exception& error) noexcept;
/// Describes the exception in flight (call it in a catch block); a RunError gives its own Failure.
[[nodiscard]] Failure describe_current_exception(int rank, const Position& position);
/// "ERROR rank=R step=S phase=P code=C: what; what to do": one line, without a line feed. A message
/// without advice (no "; ") gets that of its code.
[[nodiscard]] std::string error_line(const Failure& failure);
/// "WARNING what", likewise one line.
[[nodiscard]] std::string warning_line(const std::string& what);

}  // namespace dkfac::app
