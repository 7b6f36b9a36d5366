#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/state.h"

/// Writes every value of a rank with its size and name, in the order of the traversal.
class Saver final : public dkfac::StateVisitor {
 public:
  explicit Saver(std::ostream& out) : out_(out) {}
  void tensor(const std::string& name, dkfac::StateKind, dkfac::TensorView view) override {
    write(name, view.raw(), static_cast<std::size_t>(view.numel()) * size_of(view.dtype()));
  }
  void integer(const std::string& name, dkfac::StateKind, std::int64_t& value) override {
    write(name, &value, sizeof value);
  }
  void real(const std::string& name, dkfac::StateKind, double& value) override {
    write(name, &value, sizeof value);
  }

 private:
  void write(const std::string& name, const void* data, std::size_t bytes) {
    out_ << bytes << ' ' << name << '\n';
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    if (!out_) throw dkfac::IoError("[checkpoint] '" + name + "' cannot be written");
  }
  std::ostream& out_;
};

/// Reads them back on the same number of ranks; throws for a value of another name or size, and in
/// finish() for more of them.
class Restorer final : public dkfac::StateVisitor {
 public:
  explicit Restorer(std::istream& in) : in_(in) {}
  void tensor(const std::string& name, dkfac::StateKind, dkfac::TensorView view) override {
    read(name, view.raw(), static_cast<std::size_t>(view.numel()) * size_of(view.dtype()));
  }
  void integer(const std::string& name, dkfac::StateKind, std::int64_t& value) override {
    read(name, &value, sizeof value);
  }
  void real(const std::string& name, dkfac::StateKind, double& value) override {
    read(name, &value, sizeof value);
  }
  void finish() {
    if (in_.peek() != std::istream::traits_type::eof())
      throw dkfac::DataError("[checkpoint] has more values than this network and optimizer");
  }

 private:
  void read(const std::string& name, void* data, std::size_t bytes) {
    std::string there;
    std::size_t count = 0;
    if (!(in_ >> count) || in_.get() != ' ' || !std::getline(in_, there))
      throw dkfac::DataError("[checkpoint] ends before '" + name + "', or is damaged there");
    if (there != name || count != bytes)
      throw dkfac::DataError("[checkpoint] expected '" + name + "' of " + std::to_string(bytes) +
                             " bytes, found '" + there + "' of " + std::to_string(count));
    in_.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
    if (!in_) throw dkfac::DataError("[checkpoint] ends within '" + name + "'");
  }
  std::istream& in_;
};
