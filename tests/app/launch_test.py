#!/usr/bin/env python3
"""The dkfac program started as several processes without MPI: by the variables of torchrun or Slurm.

Environment as for cli_support.py; DKFAC_HAVE_MPI=1 compares with mpirun too.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from cli_support import DKFAC, MPIEXEC, REPOSITORY, SYNTHETIC, Folder

LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "MASTER_", "TORCHELASTIC_")
OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TERM", "DKFAC_DATA", "DKFAC_PORT", "DKFAC_SECRET",
          "DKFAC_SECRET_FILE")


# Two ranks in a network of their own, whose only link is down for some seconds.
LINK = """
ip link set lo up
"$PYTHON" "$TCPRUN" -n 2 "$DKFAC" "$@" &
until [ -s "$OUT/metrics.jsonl" ]; do sleep 0.02; done
ip link set lo down
sleep 0.2; wc -l <"$OUT/metrics.jsonl"
sleep "$DOWN"; wc -l <"$OUT/metrics.jsonl"
ip link set lo up
wait $!
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(rank, size, port):
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port}


def slurm(rank, size, port):
    return {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_LOCALID": rank,
            "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0,
            "DKFAC_PORT": port}


class Processes(Folder):
    def setUp(self):
        super().setUp()
        self.config = self.write("tiny.toml",
                                 SYNTHETIC.format(model="lenet-bn", optimizer="kfac"))

    def start(self, variables, size, *args, preexec_fn=None):
        """One process for each rank; variables(rank, size, port) is what a launcher would set."""
        base = {k: v for k, v in os.environ.items()
                if not k.startswith(LAUNCHERS) and k not in OTHERS}
        port = free_port()
        return [subprocess.Popen([DKFAC, *map(str, args)], cwd=self.dir, text=True,
                                 preexec_fn=preexec_fn,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=base | {k: str(v) for k, v in
                                             variables(rank, size, port).items()})
                for rank in range(size)]

    def finish(self, processes, timeout=100):
        try:
            ends = [p.communicate(timeout=timeout) for p in processes]
        finally:
            for p in processes:
                p.kill()
        return [subprocess.CompletedProcess(p.args, p.returncode, *end)
                for p, end in zip(processes, ends)]

    def args(self, out, *more):
        """Intervals are given: those that the overhead chooses come from measured times."""
        return ["train", self.config, "--out", self.dir / out, "--quiet", "--set", "run.log_interval=1",
                "--set", "optimizer.statistics_interval=2", "--set", "optimizer.inverse_interval=4", *more]

    def run_processes(self, variables, size, *args):
        for rank, done in enumerate(self.finish(self.start(variables, size, *args))):
            self.assertEqual(done.returncode, 0, f"rank {rank}: {done.stderr}")

    def outcome(self, out):
        """result.json without times."""
        def without_times(x):
            if isinstance(x, dict):
                return {k: without_times(v) for k, v in x.items()
                        if "seconds" not in k and "per_second" not in k and k != "command"}
            return [without_times(v) for v in x] if isinstance(x, list) else x
        result = without_times(self.result(out))
        for key in ("test_accuracy", "test_loss"):
            self.assertTrue(any(key in str(epoch) for epoch in result["epochs"]), key)
        return {k: result[k] for k in ("status", "ranks", "steps", "epochs")}

    def expect_equal(self, a, b):
        self.assertEqual(self.metrics(a), self.metrics(b))
        self.assertEqual(self.outcome(a), self.outcome(b))


class Launched(Processes):
    def test_equals_mpirun_and_ranks_in_one_process_bit_for_bit(self):
        self.assertEqual(self.dkfac(*self.args("threads", "--ranks", 2)).returncode, 0)
        self.run_processes(torchrun, 2, *self.args("torchrun"))
        self.expect_equal("torchrun", "threads")
        self.run_processes(slurm, 2, *self.args("slurm"))
        self.expect_equal("slurm", "threads")
        self.assertEqual(self.outcome("slurm")["ranks"], 2)
        # Control: another seed gives other numbers.
        self.run_processes(torchrun, 2, *self.args("seed", "--set", "run.seed=4"))
        self.assertNotEqual(self.metrics("seed"), self.metrics("threads"))
        if os.environ.get("DKFAC_HAVE_MPI") != "1":
            self.skipTest("this build has no MPI to compare with")
        done = self.run_command([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", DKFAC,
                                 *map(str, self.args("mpi"))])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_equal("torchrun", "mpi")

    def test_two_levels(self):
        levels = ["--set", "run.hierarchical=2"]
        self.assertEqual(self.dkfac(*self.args("threads", "--ranks", 4, *levels)).returncode, 0)
        self.run_processes(torchrun, 4, *self.args("tcp", *levels))
        self.expect_equal("tcp", "threads")
        done = self.dkfac(*self.args("odd", "--ranks", 3, *levels))
        self.expect_error(done, 64, "2 ranks per node for 3 ranks")

    def test_ranks_are_for_one_process(self):
        ends = self.finish(self.start(torchrun, 2, *self.args("a", "--ranks", 2)))
        self.assertEqual([e.returncode for e in ends], [64, 64])
        self.assertIn("torchrun started 2 processes", "".join(e.stderr for e in ends))

    def test_ranks_with_other_options(self):
        self.assertEqual(self.dkfac(*self.args("before")).returncode, 0)
        for option in (("--steps", 2), ("--until-epoch", 1), ("--epochs-fraction", 0.5),
                       ("--resume", self.dir / "before")):
            with self.subTest(option=option):
                port = free_port()
                processes = [self.start(lambda rank, size, _, own=own: torchrun(own, 2, port), 1,
                                        *self.args("a", *more))[0]
                             for own, more in enumerate(((), option))]
                ends = self.finish(processes)
                self.assertEqual([e.returncode for e in ends], [64, 64])
                self.expect_error(ends[0], 64, "the command line", option[0])
                self.assertFalse((self.dir / "a").exists())

    def training(self, out, *more):
        """Two processes that have trained a step, and go on."""
        processes = self.start(torchrun, 2, *self.args(out, "--set", "run.epochs=100000", *more))
        metrics = self.dir / out / "metrics.jsonl"
        end = time.monotonic() + 60
        while time.monotonic() < end and not (metrics.exists() and metrics.stat().st_size > 0):
            time.sleep(0.02)
        return processes

    def test_a_rank_that_dies_is_named(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
            with self.subTest(signal=number.name):
                processes = self.training(number.name)
                processes[1].send_signal(number)
                survivor, dead = self.finish(processes, timeout=30)
                self.assertEqual(dead.returncode, -number)
                self.expect_error(survivor, 75, "rank 1", "process has ended")
                self.assertEqual(self.result(number.name)["status"], "failed")

    def test_a_frozen_rank_is_named_at_the_limit(self):
        processes = self.training("a", "--set", "run.comm_timeout_s=2")
        processes[1].send_signal(signal.SIGSTOP)
        self.addCleanup(processes[1].kill)
        err = processes[0].communicate(timeout=60)[1]
        self.assertEqual(processes[0].returncode, 75, err)
        self.assertRegex(err, r"ERROR rank=0 .* waited 2 s \(timeout_s\) at #\d+ .*; rank 1 has not")
        processes[1].send_signal(signal.SIGCONT)
        self.expect_error(self.finish(processes[1:], timeout=60)[0], 75, rank=1)

    def over_link(self, out, down, *more):
        """Exit code, errors, and the lines of metrics when the link went down and came up."""
        script = self.write("link.sh", LINK)
        done = self.run_command(
            ["unshare", "-rn", "bash", script, *map(str, self.args(out, "--set", "run.epochs=60", *more))], DOWN=str(down),
            OUT=str(self.dir / out), PYTHON=sys.executable, OMP_NUM_THREADS="1", DKFAC=str(pathlib.Path(DKFAC).resolve()),
            TCPRUN=str(REPOSITORY.resolve() / "tools" / "launch" / "tcprun.py"))
        return done.returncode, done.stderr, [int(line) for line in done.stdout.splitlines()]

    @unittest.skipUnless(shutil.which("ip"), "no ip; apt-get install iproute2")
    def test_a_link_that_is_down(self):
        if subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("networks of their own are not permitted here")
        code, said, (before, after) = self.over_link("short", 0.5)
        self.assertEqual(code, 0, said)
        self.assertEqual(self.dkfac(*self.args("threads", "--ranks", 2, "--set", "run.epochs=60")).returncode, 0)
        self.assertLessEqual(after - before, 1)
        self.assertLess(after + 1, len(self.metrics("short")))
        self.expect_equal("short", "threads")
        code, said, _ = self.over_link("long", 6, "--set", "run.comm_timeout_s=2")
        self.assertEqual(code, 75, said)
        self.assertRegex(said, r"waited 2 s \(timeout_s\) at #\d+ .*; rank [01] has not")

    def test_a_secret_is_used_and_can_be_required(self):
        if "libcrypto  yes" not in self.dkfac("info").stdout:
            self.skipTest("this build has no libcrypto")
        required = self.args("a", "--set", "run.require_secret=true")
        self.run_processes(lambda *rank: torchrun(*rank) | {"DKFAC_SECRET": "of this job alone"}, 2, *required)
        ends = self.finish(self.start(torchrun, 2, *required, "--force"))
        self.assertEqual([e.returncode for e in ends], [64, 64])
        self.assertIn("a secret is required (require_secret)", "".join(e.stderr for e in ends))
        limit = ["--force", "--set", "run.comm_timeout_s=2"]
        ends = self.finish(self.start(lambda rank, size, port: torchrun(rank, size, port) | {
            "DKFAC_SECRET": f"of the job that has number {rank}"}, 2, *self.args("a", *limit)))
        self.assertEqual([e.returncode for e in ends], [75, 75])
        for end in ends:
            self.assertIn("has another secret than this rank", end.stderr)
            self.assertNotIn("has number", end.stderr)

    def test_a_rank_that_never_comes_is_named(self):
        limit = ["--set", "run.comm_timeout_s=1"]
        processes = self.start(lambda rank, size, port: torchrun(rank, 2, port), 1,
                               *self.args("a", *limit))
        done = self.finish(processes)[0]
        self.expect_error(done, done.returncode, "rank 1 did not come")
        self.assertGreater(done.returncode, 0)

    def test_half_a_launcher_does_not_train_alone(self):
        def started(variables):
            return self.finish(self.start(lambda rank, size, port: variables, 1,
                                          *self.args("half")))[0]
        for variables, *parts in (
                ({"RANK": 1, "WORLD_SIZE": 2}, "WORLD_SIZE is '2'", "MASTER_ADDR"),
                ({"RANK": 1}, "RANK is '1'", "WORLD_SIZE"),
                ({"RANK": "one", "WORLD_SIZE": 2}, "RANK is 'one'"),
                ({"SLURM_PROCID": 1}, "SLURM_STEP_NUM_TASKS"),
                ({"OMPI_COMM_WORLD_SIZE": 2}, "OMPI_COMM_WORLD_RANK"),
                ({"PMI_RANK": 0}, "PMI_SIZE")):
            with self.subTest(variables=variables):
                done = started(variables)
                self.expect_error(done, 64, *parts)
                self.assertEqual(done.stderr.count("\n"), 1)
        self.assertFalse((self.dir / "half").exists())
        # Control: the variables of a Slurm batch script are not those of a rank.
        done = started({"SLURM_PROCID": 0, "SLURM_LOCALID": 0, "MASTER_ADDR": "n1"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_who_says_nothing_cannot_keep_the_ranks_from_meeting(self):
        port = free_port()
        files = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        variables = lambda rank, size, _: torchrun(rank, 2, port)
        first = self.start(variables, 1, *self.args("a"), preexec_fn=files)
        callers = []
        try:
            for i in range(81):
                callers.append(self.call(port))
                if i % 9 == 0:
                    callers[-1].sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
            rest = self.start(lambda rank, size, _: torchrun(1, 2, port), 1, *self.args("a"),
                              preexec_fn=files)
            for rank, done in enumerate(self.finish(first + rest)):
                self.assertEqual(done.returncode, 0, f"rank {rank}: {done.stderr}")
        finally:
            for caller in callers:
                caller.close()

    def test_a_resume_whose_ranks_do_not_meet_is_recorded(self):
        out = self.dir / "a"
        self.assertEqual(self.dkfac(*self.args("a")).returncode, 0)
        port = free_port()
        alone = self.start(lambda rank, size, _: torchrun(0, 2, port), 1, "train", "--resume", out, "--set",
                           "run.comm_timeout_s=1")
        self.assertEqual(self.finish(alone)[0].returncode, 75)
        error = json.loads((out / "rank-0.error.json").read_text())
        self.assertEqual((error["activity"], error["code"]), ("launch", 75))

    def test_the_limit_of_open_files_is_raised_where_it_may_be(self):
        """Five ranks have two connections to each other, which 10 files do not hold beside those of a run."""
        for hard, code in ((400, 0), (10, 70)):
            port = free_port()
            started = self.start(lambda rank, size, _: torchrun(rank, 5, port), 5, *self.args(f"limit-{hard}"),
                                 "--set", "train.global_batch=40",
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, hard)))
            for rank, done in enumerate(self.finish(started)):
                if code == 0:
                    self.assertEqual(done.returncode, 0, f"rank {rank}: {done.stderr}")
                else:
                    self.expect_error(done, code, "open files", "hard limit is 10 (ulimit -Hn)", rank=rank)

    def test_runs_that_begin_at_once_have_folders_of_their_own(self):
        # Four, so that some begin in the same second.
        processes = self.start(lambda rank, size, port: {"OMP_NUM_THREADS": 1}, 4, "train",
                               self.config, "--set", "model.name=mlp")
        reports = set()
        for done in self.finish(processes):
            self.assertEqual(done.returncode, 0, done.stderr)
            reports.add(re.search("results: (.*)", done.stdout)[1])
        folders = sorted((self.dir / "out").iterdir())
        self.assertEqual(reports, {str(f.relative_to(self.dir)) for f in folders})
        self.assertEqual(len(reports), 4)
        for folder in folders:
            self.assertRegex(folder.name, r"^tiny-\d{8}-\d{6}(-[2-4])?$")

    def call(self, port):
        """A connection to the listener at that port, as soon as there is one."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                time.sleep(0.02)
        self.fail(f"no process listens at port {port}")


if __name__ == "__main__":
    unittest.main()
