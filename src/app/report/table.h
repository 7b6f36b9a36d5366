#pragma once

#include <string>
#include <vector>

#include "dkfac/app/report.h"

#include "app/report/format.h"

namespace dkfac::app {

struct Cell {
  std::string text;
  bool best = false;
};
/// The comparison as cells; the first column is the name of the group.
struct Table {
  std::vector<std::string> heads;
  std::vector<std::vector<Cell>> rows;
};
[[nodiscard]] Table table_of(const Comparison& comparison, Dash dash);

}  // namespace dkfac::app
