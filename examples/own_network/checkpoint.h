#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <type_traits>

#include "dkfac/core/error.h"
#include "dkfac/core/state.h"

/// Writes every value of a rank with its name and size, in the order of the traversal.
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
    out_ << name << ' ' << bytes << '\n';
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    if (!out_) throw dkfac::IoError("[checkpoint] '" + name + "' cannot be written");
  }
  std::ostream& out_;
};

/// Reads them back on the same number of ranks; throws for a value of another name or size.
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

 private:
  void read(const std::string& name, void* data, std::size_t bytes) {
    std::string there;
    std::size_t count = 0;
    if (!(in_ >> there >> count) || there != name || count != bytes || in_.get() != '\n')
      throw dkfac::DataError("[checkpoint] expected '" + name + "', found '" + there + "'");
    in_.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
    if (!in_) throw dkfac::DataError("[checkpoint] ends within '" + name + "'");
  }
  std::istream& in_;
};
