#!/usr/bin/env python3
"""The dkfac program from outside: cli_test.py Alone | Launched [unittest options]."""
import ast
import gzip
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from cli_support import DKFAC, MPIEXEC, REPOSITORY, Folder


class Alone(Folder):
    def test_help_teaches(self):
        done = self.dkfac("--help")
        self.assertEqual(done.returncode, 0)
        for part in ("Examples:", "DKFAC_DATA", "Exit codes:", "train", "compare", "info"):
            self.assertIn(part, done.stdout)
        self.assertIn("--target", self.dkfac("compare", "--help").stdout)
        self.assertRegex(self.dkfac("--version").stdout, r"dkfac \d+\.\d+\.\d+")

    def test_info(self):
        self.assertIn("oneDNN", self.dkfac("info").stdout)
        self.assertIn("optimizer.damping = ", self.dkfac("info", "config").stdout)
        self.assertIn("Conv2d", self.dkfac("info", "lenet-bn").stdout)
        plan = self.dkfac("info", self.config, "--ranks", 2)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("owner", plan.stdout)
        self.expect_error(self.dkfac("info", "nonsense"), 64, "'nonsense'", "lenet-bn")
        self.expect_error(self.dkfac("info", "none.toml"), 66)

    def test_command_line_mistakes(self):
        self.expect_error(self.dkfac(), 64, "[arguments]")
        self.expect_error(self.dkfac("trian"), 64)
        self.expect_error(self.dkfac("train"), 64)
        self.expect_error(self.train("a", "--rank", 2), 64, "--rank")
        self.expect_error(self.train("a", "--ranks", 0), 64)
        self.expect_error(self.dkfac("compare", self.config), 64, "--out")
        self.assertFalse((self.dir / "a").exists())

    def test_config_mistakes(self):
        self.expect_error(self.train("a", "--set", "optimizer.dampin=1"), 64,
                          "did you mean 'optimizer.damping'", "activity=config")
        self.expect_error(self.train("a", "--set", "optimizer.damping=-1"), 64, "-1", ">= 0")
        self.expect_error(self.train("a", "--set", "optimizer.eta=1"), 64, "optimizer.type = lars")
        bad = self.write("bad.toml", "[run]\n\nepoch = 3\n")
        self.expect_error(self.train("a", config=bad), 64, "bad.toml:3", "'run.epochs'")
        torn = self.write("torn.toml", "[run]\nepochs = \n")
        self.expect_error(self.train("a", config=torn), 64, "torn.toml:2")
        self.expect_error(self.train("a", config="none.toml"), 66, "none.toml")
        self.assertFalse((self.dir / "a").exists())

    def test_batches_and_shapes_that_do_not_fit(self):
        self.expect_error(self.train("a", "--set", "train.global_batch=257"), 64, "257", "256")
        self.expect_error(self.train("b", "--ranks", 3, "--set", "train.global_batch=2"), 64, "ranks")
        self.expect_error(self.train("c", "--ranks", 2, "--set", "train.drop_last=false",
                                     "--set", "train.global_batch=51"), 64, "drop_last=true")
        self.expect_error(self.train("d", "--set", "model.name=lenet-bn",
                                     "--set", "data.synthetic_size=3"), 64, "activity=setup")
        self.assertEqual(self.result("d")["status"], "failed")
        self.assertTrue(self.result("d")["error"])

    def data_config(self, path):
        return self.write("data.toml", f"""
[data]
name = "fashion-mnist-small"
path = "{path}"
[run]
epochs = 1
[model]
name = "mlp"
[optimizer]
type = "sgd"
""")

    def broken_data(self, name, change):
        """A copy of the embedded data with one file changed: change(bytes) -> bytes or None."""
        folder = self.dir / "data"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(REPOSITORY / "data" / "fashion-mnist-small", folder)
        file = folder / (name + ".gz")
        content = change(gzip.decompress(file.read_bytes()))
        file.unlink()
        if content is not None:
            file.write_bytes(gzip.compress(content, 1))
        return self.train("broken", config=self.data_config(folder))

    def test_missing_data(self):
        self.expect_error(self.train("a", config=self.data_config(self.dir / "nowhere")), 66,
                          "activity=data")
        self.expect_error(self.broken_data("train-labels-idx1-ubyte", lambda b: None), 66,
                          "train-labels")

    def test_bad_data(self):
        images, labels = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
        self.expect_error(self.broken_data(images, lambda b: b[:-100]), 65, images)
        self.expect_error(self.broken_data(images, lambda b: b"\0\0\x09" + b[3:]), 65, images)
        self.expect_error(self.broken_data(labels, lambda b: b[:-1] + b"\x0a"), 65, labels, "10")
        # A length bomb: 2^31 - 1 images promised.
        self.expect_error(self.broken_data(images, lambda b: b[:4] + struct.pack(">i", 2**31 - 1) +
                                           b[8:]), 65, images)

    def test_train_writes_its_folder(self):
        done = self.train("a", "--set", "run.target=0.3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertRegex(done.stdout, "results: .*/a\na page of them: .* -m dkfac.report .*/a\n$")
        self.assertEqual(len([l for l in done.stdout.splitlines() if "train loss" in l]), 2)
        self.assertNotIn("\x1b", done.stdout)
        names = {p.name for p in (self.dir / "a").iterdir()}
        self.assertEqual({n for n in names if not n.startswith("events.out")},
                         {"checkpoints", "command.txt", "comparison.json", "config.toml",
                          "metrics.jsonl", "result.json", "run.lock"})
        result = self.result("a")
        self.assertEqual(result["status"], "ok")
        self.assertEqual(result["seed"], 3)
        self.assertEqual(len(result["epochs"]), 2)
        self.assertLess(result["epochs"][1]["train_loss"], result["epochs"][0]["train_loss"])
        self.assertTrue(0 <= result["final_accuracy"] <= result["best_accuracy"] <= 1)
        self.assertEqual(result["epochs_to_target"], 1)
        page = subprocess.run(done.stdout.splitlines()[-1].removeprefix("a page of them: "), shell=True, cwd=self.dir,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(page.returncode, 0, page.stdout)
        self.assertIn("<svg", (self.dir / "a" / "report.html").read_text())
        self.assertIn("run.target=0.3", (self.dir / "a" / "command.txt").read_text())
        kinds = [line["type"] for line in self.metrics("a")]
        self.assertEqual(kinds, ["step", "step", "epoch"] * 2)

    def test_effective_configuration_repeats_the_run(self):
        self.assertEqual(self.train("a", "--quiet", "--set", "lr.lr=0.01").returncode, 0)
        again = self.train("b", "--quiet", config=self.dir / "a" / "config.toml")
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, "", ""))
        self.assertEqual(self.metrics("a"), self.metrics("b"))
        self.assertEqual((self.dir / "a" / "config.toml").read_text(),
                         (self.dir / "b" / "config.toml").read_text())
        self.train("c", "--quiet", "--set", "run.seed=4", config=self.dir / "a" / "config.toml")
        self.assertNotEqual(self.metrics("a"), self.metrics("c"))

    def test_folders_are_not_overwritten(self):
        self.assertEqual(self.train("a", "--quiet").returncode, 0)
        self.expect_error(self.train("a"), 64, "--force", "activity=folder")
        self.assertEqual(self.train("a", "--quiet", "--force").returncode, 0)
        (self.dir / "mine").mkdir()
        self.write("mine/letter.txt", "dear")
        self.expect_error(self.train("mine", "--force"), 64, "not empty")
        self.expect_error(self.train("tiny.toml/x"), 74, "--out")

    def test_default_folder(self):
        self.assertEqual(self.dkfac("train", self.config, "--quiet").returncode, 0)
        (folder,) = (self.dir / "out").iterdir()
        self.assertRegex(folder.name, r"^tiny-\d{8}-\d{6}$")

    def test_divergence(self):
        done = self.train("a", "--set", "lr.lr=1e30", "--set", "train.max_skipped_steps=3")
        self.expect_error(done, 80, "3 steps in a row", "learning rate")
        self.assertEqual(self.result("a")["status"], "failed")
        self.assertEqual(self.result("a")["skipped_steps"], 3)

    def test_a_factor_that_cannot_be_inverted(self):
        # 32 samples leave factors singular, and this damping is lost beside them in f32 and f64.
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                out = f"ranks{ranks}"
                done = self.train(out, "--ranks", ranks, "--set", "optimizer.damping=1e-30",
                                  "--set", "optimizer.max_failed_refreshes=0",
                                  "--set", "optimizer.block_width=-1")
                line = self.expect_error(done, 80, "damping 1e-30")[0]
                said = re.search(r"factor [AG] of layer '\w+', owned by rank (\d),.* saved as (\S+)",
                                 line)
                self.assertIsNotNone(said, line)
                self.assertLess(int(said[1]), ranks)
                saved = pathlib.Path(said[2])
                self.assertEqual(saved.parent, self.dir / out / "failures")
                data = saved.read_bytes()
                self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
                start = 10 + int.from_bytes(data[8:10], "little")
                header = ast.literal_eval(data[10:start].decode())
                self.assertEqual((header["descr"], header["fortran_order"]), ("<f4", False))
                rows, columns = header["shape"]
                self.assertEqual((columns, len(data)), (rows, start + 4 * rows * columns))

    def test_a_file_that_cannot_be_written(self):
        limit = 24576  # Bytes: the configuration fits, the metrics of all epochs do not.
        for ranks in (1, 2):
            done = subprocess.run(
                [DKFAC, "train", self.config, "--out", str(self.dir / f"a{ranks}"), "--quiet",
                 "--ranks", str(ranks), "--set", "run.log_interval=1", "--set", "run.epochs=99"],
                capture_output=True, text=True, timeout=100, check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            self.expect_error(done, 74, "cannot write")
            for rank in range(ranks):
                text = (self.dir / f"a{ranks}" / f"rank-{rank}.error.json").read_text()
                self.assertEqual(json.loads(text)["code"], 74)

    def on_a_terminal(self, environment):
        """What a run writes to a terminal of 50 columns."""
        main, terminal = pty.openpty()
        command = [DKFAC, "train", self.config, "--out", str(self.dir / "t"), "--force"]
        # The first run makes the folder; --force lets the next one use it again.
        with subprocess.Popen(command, stdout=terminal, stderr=terminal, cwd=self.dir,
                              env={**os.environ, "TERM": "xterm", "COLUMNS": "50",
                                   **environment}) as process:
            os.close(terminal)
            output = b""
            while True:
                try:
                    chunk = os.read(main, 4096)
                except OSError:  # Linux reports that the other side is closed.
                    break
                if not chunk:
                    break
                output += chunk
        os.close(main)
        self.assertEqual(process.returncode, 0, output)
        return output.decode()

    def test_progress_on_a_terminal(self):
        coloured = self.on_a_terminal({"NO_COLOR": ""})
        self.assertIn("\x1b[36m", coloured)
        plain = self.on_a_terminal({"NO_COLOR": "1"})
        self.assertNotIn("\x1b[36m", plain)
        drawn = [part for part in re.split(r"\r\x1b\[K|\r\n", plain) if "step" in part]
        self.assertTrue(drawn)
        self.assertLessEqual(max(map(len, drawn)), 49)
        self.assertEqual(plain.count("train loss"), 2)

    def test_signal_finishes_the_step(self):
        for number, chosen in ((signal.SIGINT, "a"), (signal.SIGTERM, "b")):
            command = [DKFAC, "train", self.config, "--out", str(self.dir / chosen), "--set",
                       "run.epochs=100000", "--ranks", "2"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, cwd=self.dir) as process:
                process.stdout.readline()  # The first epoch is done.
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
            done = subprocess.CompletedProcess(command, process.returncode, out, err)
            match = self.expect_error(done, 75, "activity=stop", "signal")
            result = self.result(chosen)
            self.assertEqual(result["status"], "stopped")
            self.assertEqual(result["steps"], int(match[2]))
            self.assertTrue((self.dir / chosen / "comparison.json").exists())

    def test_shipped_configurations_are_valid(self):
        folders = [REPOSITORY / "configs" / name
                   for name in (".", "short", "resnet9-steps", "autoencoder", "autoencoder-full")]
        for file in (file for folder in folders for file in folder.glob("*.toml")):
            done = self.dkfac("info", file, "--ranks", 2)
            missing = re.search("no (cifar-10|fashion-mnist):", done.stderr)
            if done.returncode == 66 and missing:
                continue  # Its data are not part of the repository.
            self.assertEqual(done.returncode, 0, done.stderr)


class Launched(Folder):
    """The same under mpirun."""

    def launch(self, *parts):
        """launch([args of 1 rank], [args of the next]); one list for two equal ranks."""
        command = [MPIEXEC, "--oversubscribe", "--bind-to", "none"]
        for i, args in enumerate(parts):
            command += ([":"] if i else []) + ["-n", "1" if len(parts) > 1 else "2", DKFAC,
                                               *map(str, args)]
        return self.run_command(command)

    def train_args(self, out, *args):
        return ["train", self.config, "--out", self.dir / out, *args]

    def test_equals_ranks_in_one_process(self):
        f64 = ["--set", "run.precision=f64", "--quiet"]
        for model in ("mlp", "lenet-bn"):
            with self.subTest(model=model):
                args = [*f64, "--set", f"model.name={model}"]
                done = self.launch(self.train_args(f"mpi-{model}", *args))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.train(f"here-{model}", "--ranks", 2, *args).returncode, 0)
                self.assertEqual(self.metrics(f"mpi-{model}"), self.metrics(f"here-{model}"))
                self.assertEqual(self.result(f"mpi-{model}")["ranks"], 2)

    def test_one_line_for_all(self):
        done = self.launch(self.train_args("a", "--set", "optimizer.dampin=1"))
        self.expect_error(done, 64, "did you mean 'optimizer.damping'")
        self.expect_error(self.launch(self.train_args("a", "--ranks", 2)), 64, "--ranks")
        self.expect_error(self.launch(["trian"]), 64)
        done = self.launch(self.train_args("b", "--set", "lr.lr=1e30", "--set",
                                           "train.max_skipped_steps=2"))
        self.expect_error(done, 80, "2 steps in a row")
        self.assertEqual(self.result("b")["status"], "failed")

    def test_a_mistake_on_one_rank(self):
        good = self.train_args("a")
        self.expect_error(self.launch(good, self.train_args("a", "--set", "run.epochs=0")), 64,
                          "run.epochs", rank=1)
        self.expect_error(self.launch(good, ["train", "none.toml"]), 66, "none.toml", rank=1)
        self.assertFalse((self.dir / "a").exists())

    def test_ranks_that_disagree(self):
        good = self.train_args("a")
        other = self.train_args("a", "--set", "optimizer.damping=0.5")
        self.expect_error(self.launch(good, other), 64, "rank 1", "damping")
        full = self.train_args("b", "--set", "run.comm_check=full")
        self.expect_error(self.launch(good, full), 75, "disagree")

    def test_data_that_one_rank_lacks(self):
        # The same relative path; the second rank runs elsewhere.
        shutil.copytree(REPOSITORY / "data" / "fashion-mnist-small", self.dir / "here")
        (self.dir / "elsewhere").mkdir()
        script = self.write("rank.sh", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || cd elsewhere\nexec "$@"\n')
        config = self.write("data.toml", '[data]\npath = "here"\n')
        done = self.run_command([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "sh",
                                 script, DKFAC, "train", config, "--out", str(self.dir / "a")])
        self.expect_error(done, 66, "activity=data", rank=1)

    def test_a_failure_in_the_middle_on_one_rank(self):
        script = self.write("rank.sh", '[ "$OMPI_COMM_WORLD_RANK" = 1 ] || ulimit -f 16\nexec "$@"\n')
        done = self.run_command(
            [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "sh", script, DKFAC,
             *map(str, self.train_args("a", "--quiet", "--set", "run.log_interval=1", "--set",
                                       "run.epochs=1000"))])
        self.expect_error(done, 74, "cannot write")

    def start(self, out):
        """Two ranks that train until they are stopped; returns the launcher and the ranks' ids."""
        script = self.write("rank.sh", 'echo $$ > "pid-$OMPI_COMM_WORLD_RANK"\nexec "$@"\n')
        command = [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "sh", script, DKFAC,
                   *map(str, self.train_args(out, "--set", "run.epochs=100000", "--set",
                                             "run.comm_timeout_s=20"))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=self.dir)
        self.addCleanup(process.kill)
        process.stdout.readline()  # The first epoch is done.
        return process, [int((self.dir / f"pid-{rank}").read_text()) for rank in (0, 1)]

    def finish(self, process):
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def test_a_signal_to_one_rank_stops_all(self):
        process, ranks = self.start("a")
        os.kill(ranks[1], signal.SIGUSR1)
        self.expect_error(self.finish(process), 75, "activity=stop")
        self.assertEqual(self.result("a")["status"], "stopped")

    def expect_gone(self, ranks):
        for pid in ranks:
            for _ in range(100):
                try:
                    os.kill(pid, 0)
                    time.sleep(0.1)
                except ProcessLookupError:
                    break
            else:
                self.fail(f"process {pid} lives on")

    def test_a_rank_that_dies_ends_the_job(self):
        process, ranks = self.start("a")
        os.kill(ranks[1], signal.SIGKILL)
        self.assertNotEqual(self.finish(process).returncode, 0)
        self.expect_gone(ranks)

    def test_ranks_do_not_outlive_their_launcher(self):
        process, ranks = self.start("a")
        process.kill()
        self.finish(process)
        self.expect_gone(ranks)
        done = self.dkfac("train", "--resume", self.dir / "a", "--ranks", 2, "--quiet", "--steps", 1)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
