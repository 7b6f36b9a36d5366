#include "app/shared/errors.h"

#include <filesystem>
#include <ios>
#include <new>

#include <fmt/core.h>

#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

const char* advice(ExitCode code) {
  switch (code) {
    case ExitCode::usage:
      return "see 'dkfac --help' and 'dkfac info config'";
    case ExitCode::bad_data:
      return "replace the file by a good copy";
    case ExitCode::missing_input:
      return "check the path";
    case ExitCode::io:
      return "check the path, free space and permissions";
    case ExitCode::try_again:
      return "check the other ranks and start again";
    case ExitCode::numeric:
      return "lower the learning rate or raise optimizer.damping";
    default:
      return "please report this with the configuration";
  }
}

// Escapes a message, which may quote arbitrary bytes, so that it stays on one line and contains no
// control characters. The advice is at the end, so a long message is shortened in the middle.
std::string one_line(std::string text) {
  constexpr std::size_t kHead = 3000, kTail = 1000;
  if (text.size() > kHead + kTail) text.replace(kHead, text.size() - kHead - kTail, " ... ");
  for (char& c : text)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return printable(text, text.size());
}

}  // namespace

ExitCode exit_code_of(const std::exception& error) noexcept {
  if (const auto* run = dynamic_cast<const RunError*>(&error)) return run->failure.code;
  if (dynamic_cast<const InvalidArgument*>(&error)) return ExitCode::usage;
  if (dynamic_cast<const DataError*>(&error)) return ExitCode::bad_data;
  if (dynamic_cast<const MissingInput*>(&error)) return ExitCode::missing_input;
  if (dynamic_cast<const IoError*>(&error)) return ExitCode::io;
  if (dynamic_cast<const CommError*>(&error)) return ExitCode::try_again;
  if (dynamic_cast<const NumericError*>(&error)) return ExitCode::numeric;
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error) ||
      dynamic_cast<const std::ios_base::failure*>(&error))
    return ExitCode::io;
  return ExitCode::internal;
}

Failure describe_current_exception(int rank, const Position& position) {
  try {
    throw;
  } catch (const RunError& error) {
    return error.failure;
  } catch (const std::bad_alloc&) {
    return {
        rank, position, ExitCode::internal,
        "[memory] no memory left; use a smaller batch or network, or, where factors are too wide, "
        "another optimizer.type"};
  } catch (const std::exception& error) {
    return {rank, position, exit_code_of(error), error.what()};
  } catch (...) {
    return {rank, position, ExitCode::internal, "an exception that is not a std::exception"};
  }
}

std::string error_line(const Failure& failure) {
  std::string what = one_line(failure.what);
  if (what.find("; ") == std::string::npos) what += fmt::format("; {}", advice(failure.code));
  return fmt::format("ERROR rank={} step={} activity={} code={}: {}", failure.rank,
                     failure.position.step, failure.position.activity,
                     static_cast<int>(failure.code), what);
}

std::string warning_line(const std::string& what) { return "WARNING " + one_line(what); }

}  // namespace dkfac::app
