#include "app/sweep/process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/run/signals.h"

namespace dkfac::app {

namespace {

constexpr int kNoProgram = 127;  // The exit code that a shell uses.

/// Runs between fork and exec: system calls only.
[[noreturn]] void become(char* const* words, int log, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  if (::getppid() != parent) ::_exit(kNoProgram);  // The parent died before the call took effect.
  restore_signals_for_exec();
  // mpirun reads the terminal's input, which would stop a background process.
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execvp(words[0], words);
  constexpr char kWhat[] = "this program cannot be started\n";
  (void)!::write(STDERR_FILENO, kWhat, sizeof(kWhat) - 1);
  ::_exit(kNoProgram);
}

}  // namespace

Process::Process(std::vector<std::string> words, const std::filesystem::path& log) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0)
    throw IoError(fmt::format("[sweep] cannot write '{}' ({}); check free space and permissions",
                              log.string(), std::strerror(errno)));
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ == 0) become(arguments.data(), file, parent);
  const int error = errno;
  ::close(file);
  if (id_ < 0)
    throw IoError(fmt::format("[sweep] cannot start a process ({}); run fewer at a time",
                              std::strerror(error)));
}

Process::~Process() {
  if (id_ < 0 || end_) return;
  ::kill(id_, SIGTERM);
  int status = 0;
  while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> Process::ended() {
  if (end_) return end_;
  int status = 0;
  if (::waitpid(id_, &status, WNOHANG) != id_) return std::nullopt;
  end_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return end_;
}

void Process::ask_to_stop() const {
  if (id_ > 0 && !end_) ::kill(id_, SIGUSR1);
}

std::filesystem::path this_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw IoError("[sweep] cannot read /proc/self/exe; is /proc mounted?");
  return path;
}

}  // namespace dkfac::app
