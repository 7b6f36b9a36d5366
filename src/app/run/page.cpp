#include "app/run/page.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <fmt/core.h>

#include "app/run/signals.h"
#include "core/shared/printable.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

constexpr int kNoProgram = 127;  // The exit code that a shell uses.
constexpr std::string_view kPath = "PYTHONPATH=";

std::string python() {
  const char* named = std::getenv("DKFAC_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

/// The package of the clone that the program was built in comes after the folders that the user
/// names, and before what is installed. Empty where the clone is gone.
std::string python_path() {
  const fs::path clone = DKFAC_SOURCE_PYTHON_DIR;
  std::error_code ignored;
  if (!fs::exists(clone / "dkfac" / "report", ignored)) return {};
  const char* before = std::getenv("PYTHONPATH");
  return (before != nullptr && *before != '\0' ? std::string(before) + ":" : "") + clone.string();
}

std::vector<std::string> words_of(const fs::path& folder) {
  // Absolute, so that no name is taken for an option.
  return {python(), "-m", "dkfac.report", fs::absolute(folder).string()};
}

std::vector<std::string> environment_of_page() {
  std::vector<std::string> out;
  const std::string path = python_path();
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (path.empty() || !std::string_view(*entry).starts_with(kPath)) out.emplace_back(*entry);
  if (!path.empty()) out.push_back(std::string(kPath) + path);
  return out;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Runs between fork and exec: system calls only.
[[noreturn]] void become(char* const* words, char* const* environment, int output) {
  restore_signals_for_exec();
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvpe(words[0], words, environment);
  constexpr char kWhat[] = "this program cannot be started\n";
  (void)!::write(STDERR_FILENO, kWhat, sizeof(kWhat) - 1);
  ::_exit(kNoProgram);
}

std::string read_all(int file) {
  std::string out;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t count = ::read(file, part.data(), part.size());
    if (count > 0) out.append(part.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return out;
  }
}

struct Ended {
  bool well = false;
  std::string output;
};

Ended run_to_end(std::vector<std::string> words, std::vector<std::string> environment) {
  const std::vector<char*> arguments = pointers_to(words), variables = pointers_to(environment);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {false, std::strerror(errno)};
  const pid_t id = ::fork();
  if (id == 0) become(arguments.data(), variables.data(), ends[1]);
  const int error = errno;
  ::close(ends[1]);
  Ended out{false, id < 0 ? std::strerror(error) : read_all(ends[0])};
  ::close(ends[0]);
  int status = 0;
  while (id > 0 && ::waitpid(id, &status, 0) < 0 && errno == EINTR) {
  }
  out.well = id > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return out;
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n\r\t") + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

std::string page_command(const fs::path& folder) {
  std::string out;
  if (const std::string path = python_path(); !path.empty())
    out += std::string(kPath) + shell_word(path) + " ";
  return out + shell_word(python()) + " -m dkfac.report " + shell_word(folder.string());
}

PageResult draw_page(const fs::path& folder) {
  std::error_code ignored;
  for (const char* file : {"report.html", "curves.svg"}) fs::remove(folder / file, ignored);
  const Ended python_end = run_to_end(words_of(folder), environment_of_page());
  if (python_end.well) return {true, "report: " + (folder / "report.html").string()};
  const std::string reason = last_line(python_end.output);
  return {false,
          fmt::format("report: no page was drawn ({}); once Python, or the one that DKFAC_PYTHON "
                      "names, has matplotlib and jinja2, run: {}",
                      printable(reason.empty() ? "Python ended without a word" : reason, 200),
                      page_command(folder))};
}

}  // namespace dkfac::app
