"""What --help says about the file of a sweep."""

HELP = """\
A sweep file:
  [sweep]
  config = "../configs/lenet-kfac.toml"   # beside this file; several: a list, each with every point
  metric = "test_accuracy"                # or test_loss, train_loss
  score = "last"                          # of the epochs so far: last, best, or mean, which rewards
                                          # a fast start as well
  [set]                                   # for all runs
  run.epochs = 9
  data.hold_out = 2000                    # compare on training images, and leave the test set alone

  [grid]                                  # every combination
  optimizer.damping = [0.01, 0.1]

  [random]                                # with each of them, `count` draws; [[random]]: several rounds
  count = 8
  seed = 1
  lr.lr = {log_uniform = [0.01, 1]}       # or {uniform = [a, b]}, {choice = [..]}

  [tpe]                                   # in place of both: Optuna's TPE proposes `count` points for
  count = 30                              # each configuration, from the scores so far
  seed = 1
  lr.lr = {log_uniform = [0.01, 1]}

  [when]                                  # lr.warmup_epochs counts only with these rates
  lr.warmup_epochs = {"lr.schedule" = ["polynomial", "cosine"]}

  [halving]                               # all runs get 1 epoch, the best third 3, of these the best
  first = 1                               # third 9 = run.epochs; not with [tpe]
  eta = 3

  [hyperband]                             # or, as the runs go, Optuna's halving in several brackets
  first = 1
  eta = 3

  [median]                                # or: once 5 runs are done, one that is worse than their
  first = 2                               # median after 2 epochs or more ends
  runs = 5

  [slots]
  parallel = 2                            # runs at a time
  ranks = 2                               # of each run
  threads = 1                             # of each rank; default: its share of the cores
  launcher = "mpirun -n {ranks} --host {host} --bind-to none"   # also {slot}, {name}
  hosts = ["node1:2", "node2:2"]          # one for each run at a time

Any key of 'dkfac info config' may be tried, and keys of phases as "phase.2.lr.lr". A key that does
not count for a point, as damping for SGD or by [when], is left out of it (a key of a phase by
[when] alone), and of points that are then the same one runs.

The folder holds a run folder and a log for each run, sweep.json (plan, scores, ranking, error of
each run that failed), trials.journal (the same for Optuna, from which a sweep goes on), sweep.md,
sweep.svg and best.toml. Ctrl-C stops the runs with a checkpoint each; the same command goes on from
there, as it does after --at-most N, and with a larger count and one configuration with more points
([halving] cannot: it compares all runs at once). A run that fails does not end the sweep; if all of
them fail, it exits with the code of the first. Exit codes are those of dkfac."""
