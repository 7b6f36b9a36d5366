#pragma once

#include <CLI/CLI.hpp>

#include "app/shared/bench.h"
#include "app/shared/commands.h"

namespace dkfac::app {

/// Options of all commands, as parsed.
struct Parsed {
  TrainCommand train;
  CompareCommand compare;
  InfoCommand info;
  PlanCommand plan;
  DataCommand data;
  EvalCommand eval;
  PredictCommand predict;
  CkptCommand ckpt;
  BenchCommand bench;
};

/// Adds --set, which may be repeated.
void add_set(CLI::App& app, std::vector<std::string>& set,
             const char* help = "section.key=value, overrides the file; may be repeated");
/// Adds 'dkfac plan'.
void add_plan(CLI::App& app, PlanCommand& command);
/// Adds every command with its options, which parsing writes into `parsed`.
void add_commands(CLI::App& app, Parsed& parsed);

}  // namespace dkfac::app
