#include "app/commands/arguments.h"

#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "app/commands/command_line.h"
#include "optim/shared/registry.h"

namespace dkfac::app {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostPlanned = 65536;  ///< Ranks of 'info', which starts none.

template <class Command>
void add_common(CLI::App& app, Command& command, int most_ranks = kMostThreads,
                const char* ranks_help = "ranks in this process (not under mpirun)") {
  add_set(app, command.set);
  app.add_option("--ranks", command.ranks, ranks_help)
      ->check(whole(1, most_ranks))
      ->capture_default_str();
}

/// Adds --device, a shorthand for --set run.device; the last one given counts. To be called after
/// add_common(): options act in the order in which they were added, and --set replaces `set`.
void add_device(CLI::App& app, std::vector<std::string>& set) {
  app.add_option_function<std::string>(
         "--device", [&set](const std::string& device) { set.push_back("run.device=" + device); },
         "as run.device: cpu, cuda, cuda:0, ...")
      ->type_name("DEVICE");
}

template <class Command>
void add_run_options(CLI::App& app, Command& command) {
  add_common(app, command);
  add_device(app, command.set);
  app.add_flag("--force", command.force, "overwrite an earlier run in that folder");
  app.add_flag("--quiet", command.quiet, "no progress");
}

void add_train(CLI::App& app, TrainCommand& command) {
  CLI::App* train = app.add_subcommand("train", "Train one configuration");
  train->add_option("config", command.config, "configuration, a TOML file");
  CLI::Option* resume = train->add_option("--resume", command.resume_from,
                                          "resume a run: its folder, or one of its checkpoints");
  resume->expected(0, 1)->type_name("[PATH]");
  train->parse_complete_callback([&command, resume] { command.resume = resume->count() > 0; });
  train->add_option("--out", command.out, "run folder; default: a new out/<name>-<date>-<time>")
      ->check(some_name());
  train
      ->add_option("--until-epoch", command.until_epoch,
                   "stop after this epoch, with a checkpoint to resume from")
      ->check(whole(1, kMost));
  CLI::Option* steps = train->add_option(
      "--steps", command.steps, "stop after so many more steps, with a checkpoint to resume from");
  steps->check(whole(1, kMost));
  train
      ->add_option("--epochs-fraction", command.epochs,
                   "the same after this part of an epoch, or so many epochs, e.g. 0.1 or 1.5")
      ->check(above(0, kMost))
      ->excludes(steps);
  add_run_options(*train, command);  // --set replaces what was added to `set` before it.
  train
      ->add_option_function<std::string>(
          "--init",
          [&command](const std::string& file) { command.set.push_back("model.weights=" + file); },
          "begin with the weights of a safetensors file, as model.weights")
      ->check(some_name())
      ->type_name("FILE");
  train->add_flag_callback(
      "--trace", [&command] { command.set.emplace_back("run.trace=true"); },
      "write trace.json for Perfetto or chrome://tracing");
}

/// Refuses options of training beside finished runs, and a comparison of nothing.
void check_compared(const CLI::App& compare, const CompareCommand& command) {
  if (command.configs.empty() == command.runs.empty())
    throw CLI::ValidationError("compare",
                               "give either configurations to train, or finished runs with --runs");
  for (const char* option : {"--seeds", "--set", "--ranks", "--device"})
    if (!command.runs.empty() && compare.count(option) > 0)
      throw CLI::ValidationError(option, "has no effect on finished runs; leave it out");
}

void add_compare(CLI::App& app, CompareCommand& command) {
  CLI::App* compare =
      app.add_subcommand("compare", "Train several configurations with the same seeds, and report");
  compare->add_option("configs", command.configs, "configurations");
  compare
      ->add_option("--runs", command.runs,
                   "instead of training, compare the finished runs in these folders")
      ->type_name("FOLDER");
  compare->add_option("--out", command.out, "folder of the comparison")
      ->required()
      ->check(some_name());
  compare
      ->add_option("--seeds", command.seeds, "runs of each, with seeds run.seed, run.seed + 1...")
      ->check(whole(1, 1000))
      ->capture_default_str();
  compare->add_option("--target", command.target, "test accuracy to reach, e.g. 0.86");
  compare->add_option("--target-top5", command.target_top5,
                      "top-5 test accuracy to reach, alone or with --target, e.g. 0.93");
  compare->add_option("--target-loss", command.target_loss, "test loss to reach, e.g. 30");
  command.title = "Comparison of optimizers";
  compare->add_option("--title", command.title, "of the report")->capture_default_str();
  const auto print = [&](const char* flag, CompareOutput output, const char* help) {
    return compare->add_flag_callback(
        flag, [&command, output] { command.output = output; }, help);
  };
  print("--json", CompareOutput::json, "print the comparison as JSON")
      ->excludes(print("--markdown", CompareOutput::markdown, "print it as Markdown"));
  add_run_options(*compare, command);
  compare->parse_complete_callback([&command, compare] { check_compared(*compare, command); });
}

template <class Command>
void add_network(CLI::App& app, Command& command) {
  app.add_option("--batch", command.batch, "images of each rank")
      ->check(whole(1, kMost))
      ->capture_default_str();
  app.add_option("--input", command.input, "height, width, channels of an image")
      ->expected(3)
      ->check(whole(1, 1 << 16));
  app.add_option("--classes", command.classes, "outputs of the model")
      ->check(whole(1, 1 << 24))
      ->capture_default_str();
}

void add_info(CLI::App& app, InfoCommand& command) {
  CLI::App* info =
      app.add_subcommand("info", "About this build, the keys, a model, a configuration");
  info->add_option("topic", command.topic, "'config', a model's name, or a TOML file");
  info->add_option(
          "--tflops", command.tflops,
          "for a TOML file: TFLOP/s that forward and backward of all ranks together sustain, to "
          "predict the time of a run; 'dkfac plan' takes that of one rank")
      ->check(above(0, 1e12));
  info->add_flag("--json", command.json, "for 'config': as JSON");
  info->add_flag("--toml", command.toml,
                 "for a TOML file: only the whole configuration, as TOML; reads no data");
  add_network(*info, command);
  add_common(*info, command, kMostPlanned,
             "for a TOML file: ranks to plan for, of which none is started");
}

void add_recipe_bench(CLI::App& bench, BenchCommand& command) {
  bench.add_option("config", command.config, "resnet50: the recipe")->capture_default_str();
  bench.add_option("--data", command.data, "resnet50: folder of images; default: synthetic images")
      ->check(some_name());
  const auto count = [&](const char* name, std::int64_t& value, const char* help) {
    bench.add_option(name, value, help)->check(whole(1, kMost));
  };
  count("--image-size", command.image_size, "resnet50: instead of the recipe's");
  count("--global-batch", command.global_batch,
        "resnet50: likewise, samples of a step over all ranks");
  count("--micro-batches", command.micro_batches, "resnet50: likewise, parts of a rank's share");
  bench
      .add_option("--epochs-fraction", command.epochs,
                  "resnet50: train this part of an epoch instead of --steps")
      ->check(above(0, kMost))
      ->excludes(bench.get_option("--steps"));
}

/// Refuses options that this benchmark ignores.
void check_bench_options(const CLI::App& bench, BenchKind kind) {
  const auto only = [&](bool used, std::initializer_list<const char*> options) {
    for (const char* option : options)
      if (!used && bench.count(option) > 0)
        throw CLI::ValidationError(option, "has no effect on this benchmark; leave it out");
  };
  only(kind == BenchKind::resnet50, {"config", "--data", "--image-size", "--global-batch",
                                     "--micro-batches", "--epochs-fraction"});
  only(kind != BenchKind::resnet50 && kind != BenchKind::comm,
       {"--model", "--batch", "--input", "--classes", "--precision"});
  only(kind == BenchKind::step, {"--optimizer", "--cycle"});
  only(kind == BenchKind::comm, {"--max-bytes"});
}

void add_bench(CLI::App& app, BenchCommand& command) {
  CLI::App* bench = app.add_subcommand("bench", "Measure steps, factors, inverses, collectives");
  bench->add_option("what", command.kind, "step, factors, inverse, comm, resnet50")
      ->required()
      ->transform(CLI::CheckedTransformer(
                      std::map<std::string, BenchKind>{{"step", BenchKind::step},
                                                       {"factors", BenchKind::factors},
                                                       {"inverse", BenchKind::inverse},
                                                       {"comm", BenchKind::comm},
                                                       {"resnet50", BenchKind::resnet50}},
                      CLI::ignore_case)
                      .description(""));
  bench->add_option("--model", command.model, "a model's name")->capture_default_str();
  add_network(*bench, command);
  bench->add_option("--precision", command.precision, "as run.precision")->capture_default_str();
  bench
      ->add_option("--optimizer", command.optimizers,
                   dkfac::optim::optimizer_names() + ": in turns; ratios to the first")
      ->delimiter(',')
      ->capture_default_str();
  const auto number = [&](const char* name, int& value, int low, int high, const char* help) {
    bench->add_option(name, value, help)->check(whole(low, high))->capture_default_str();
  };
  number("--steps", command.steps, 1, 1000000, "measured repetitions");
  number("--warm-up", command.warm_up, 0, 1000000, "repetitions before them");
  number("--threads", command.threads, 0, 4096, "per rank; 0: its share of the cores");
  bench
      ->add_option("--cycle", command.cycle,
                   "step: intervals of statistics and inverses to measure with, e.g. 2,8")
      ->delimiter(',')
      ->expected(2)
      ->check(whole(1, kMost));
  bench->add_option("--max-bytes", command.max_bytes, "comm: the largest message")
      ->check(whole(1024, std::int64_t{1} << 40))
      ->capture_default_str();
  add_recipe_bench(*bench, command);
  bench->parse_complete_callback([&command, bench] { check_bench_options(*bench, command.kind); });
  bench->add_option("--json,--out", command.json, "also write JSON here; '-': print it instead");
  add_common(*bench, command);
  add_device(*bench, command.set);
}

void add_eval(CLI::App& app, EvalCommand& command) {
  CLI::App* eval = app.add_subcommand("eval", "Loss and accuracy of a checkpoint");
  eval->add_option("checkpoint", command.where, "a checkpoint, or a run folder: its newest one")
      ->required();
  eval->add_flag("--json", command.json, "as JSON");
  CLI::Option* watch = eval->add_flag(
      "--watch", command.watch,
      "evaluate each new checkpoint of the run in this folder into its evaluations.jsonl, until "
      "the run has ended; training does not wait for it");
  eval->add_option("--poll", command.poll, "seconds between polls of the folder")
      ->check(above(0, 86400))
      ->needs(watch)
      ->capture_default_str();
  eval->add_option("--until-step", command.until_step,
                   "end after a checkpoint of this step or later")
      ->check(whole(1, std::numeric_limits<std::int64_t>::max()))
      ->needs(watch);
  add_common(*eval, command);
  add_device(*eval, command.set);
}

void add_predict(CLI::App& app, PredictCommand& command) {
  CLI::App* predict =
      app.add_subcommand("predict", "The most probable classes of photographs, by a checkpoint");
  predict->add_option("checkpoint", command.where, "a checkpoint, or a run folder: its newest one")
      ->required();
  predict->add_option("images", command.images, "JPEG files")->required();
  predict->add_flag("--json", command.json, "as JSON");
  add_set(*predict, command.set, "section.key=value, overrides that of the run");
  add_device(*predict, command.set);
}

void add_ckpt(CLI::App& app, CkptCommand& command) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "Inspect a checkpoint, or export its network");
  ckpt->require_subcommand(1);
  CLI::App* inspect = ckpt->add_subcommand(
      "inspect", "Check every file and list tensors with type, shape and norm");
  CLI::App* to_file = ckpt->add_subcommand(
      "export",
      "Write the network, with averaged weights if the run keeps them, to one safetensors file");
  for (CLI::App* one : {inspect, to_file})
    one->add_option("checkpoint", command.where, "a checkpoint, or a run folder: its newest one")
        ->required();
  inspect->add_flag("--json", command.json, "as JSON");
  to_file->add_option("out", command.out, "file to write")->required()->check(some_name());
  to_file->add_option("--layout", command.layout, "of convolution weights")
      ->check(CLI::IsMember({"torch", "native"}))
      ->capture_default_str();
  to_file->add_flag("--raw", command.raw, "the raw weights instead of their averages");
}

void add_data(CLI::App& app, DataCommand& command) {
  CLI::App* data = app.add_subcommand("data", "About data sets");
  data->require_subcommand(1);
  CLI::App* verify =
      data->add_subcommand("verify", "Read every file of a data set and describe it");
  verify->add_option("data", command.what, "name of a data set, or its folder")->required();
  CLI::App* pack = data->add_subcommand(
      "pack",
      "Decode photographs once: train/ and val/ with folders of classes into files of pixels");
  pack->add_option("from", command.what, "folder of the photographs")->required();
  pack->add_option("to", command.to, "folder to create")->required()->check(some_name());
  pack->add_option("--shorter", command.shorter,
                   "reduce the shorter side to this; 0: keep the size")
      ->check(whole(0, 8192))
      ->capture_default_str();
  pack->add_flag("--square", command.square,
                 "resize to squares of that side, regardless of the aspect ratio");
  const auto add_workers = [&](CLI::App* to) {
    to->add_option("--workers", command.workers, "threads; 0: number of cores, at most 16")
        ->check(whole(0, 1024));
  };
  add_workers(pack);
  CLI::App* mean =
      data->add_subcommand("mean", "Write the mean image of a training set, for data.mean_image");
  mean->add_option("data", command.what, "name of a data set, or its folder")->required();
  mean->add_option("to", command.mean_to, "safetensors file to create")
      ->required()
      ->check(some_name());
  mean->add_option("--size", command.size,
                   "of photographs: side of the squares to which each is resized as a whole")
      ->check(whole(1, 4096))
      ->default_str("256");
  add_workers(mean);
}

}  // namespace

void add_set(CLI::App& app, std::vector<std::string>& set, const char* help) {
  app.add_option("--set", set, help)->type_name("KEY=VALUE")->allow_extra_args(false);
}

void add_commands(CLI::App& app, Parsed& parsed) {
  add_train(app, parsed.train);
  add_compare(app, parsed.compare);
  add_info(app, parsed.info);
  add_plan(app, parsed.plan);
  add_data(app, parsed.data);
  add_eval(app, parsed.eval);
  add_predict(app, parsed.predict);
  add_ckpt(app, parsed.ckpt);
  add_bench(app, parsed.bench);
}

}  // namespace dkfac::app
