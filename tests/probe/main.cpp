#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "dkfac/core/device.h"

#include "probe/run.h"

// Writes the results of runs of many configurations, bit for bit, so that tools/ci/same_bits.sh can
// compare two trees. Runs on the device where the build has one, else on the host.
int main(int argc, char** argv) {
  bool quick = false;
  std::string part_of_name, name;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--only" && i + 1 < argc) {
      part_of_name = argv[++i];
    } else {
      std::fputs("usage: same_bits_probe [--quick] [--only PART_OF_A_NAME]\n", stderr);
      return EXIT_FAILURE;
    }
  }
  dkfac::probe::Writer writer;
  try {
    dkfac::probe::Table table(dkfac::available_devices().back(), quick);
    add_options(table);
    add_courses(table);
    for (const dkfac::probe::Configuration& configuration : table.all()) {
      name = configuration.name;
      if (name.find(part_of_name) != std::string::npos) run(configuration, writer);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "same_bits_probe: %s: %s\n", name.c_str(), error.what());
    return EXIT_FAILURE;
  }
  writer.print(std::cout);
  std::cout.flush();
  return std::cout ? EXIT_SUCCESS : EXIT_FAILURE;
}
