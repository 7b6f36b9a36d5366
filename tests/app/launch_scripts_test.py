#!/usr/bin/env python3
"""The scripts of tools/launch, with stand-ins for mpirun, srun and scontrol.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source).
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from cli_support import NAMES

TOOLS = pathlib.Path(os.environ["DKFAC_REPOSITORY"]) / "tools"

class Launch(unittest.TestCase):
    """tools/launch: what would be started, before there is a checkpoint and after."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, script, *args, **env):
        return subprocess.run(["bash", TOOLS / "launch" / script, *args], cwd=self.dir, text=True,
                              check=False, capture_output=True, env={**os.environ, **env})

    def test_scripts_are_bash(self):
        for script in (TOOLS / "launch").glob("*.s*"):
            done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), script)

    def test_dry_runs(self):
        env = {"DKFAC_DRY_RUN": "1", "DKFAC": "/bin/dkfac"}
        for script, first, more in (("train.sbatch", [], "srun"), ("train_mpi.sh", ["4"], "-n 4")):
            with self.subTest(script):
                out = f"out-{script}"
                done = self.start(script, *first, "a.toml", out, "--quiet", **env)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(more, done.stdout)
                self.assertIn(f"/bin/dkfac train a.toml --out {out} --force --quiet", done.stdout)
                folder = self.dir / out / "checkpoints"
                (folder / "step-000009.tmp").mkdir(parents=True)  # Not complete.
                self.assertIn("--force", self.start(script, *first, "a.toml", out, **env).stdout)
                (self.dir / out / "result.json").write_text('{\n  "status": "ok",\n')
                self.assertNotIn("--force", self.start(script, *first, "a.toml", out, **env).stdout)
                (folder / "step-000007").mkdir()
                done = self.start(script, *first, "a.toml", out, **env)
                self.assertIn(f"/bin/dkfac train --resume {out}\n", done.stdout)
                self.assertEqual(self.start(script, *first, "a.toml", **env).returncode, 64)
        self.assertIn("--host n1\\,n2", self.start("train_mpi.sh", "2", "a.toml", "o", DKFAC_HOSTS="n1,n2",
                                                 **env).stdout)

class Queue(unittest.TestCase):
    """train.sbatch with an srun and a scontrol of our own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.command("scontrol", 'echo "$@" > requeued')

    def command(self, name, text):
        (self.dir / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.dir / name).chmod(0o755)

    def submit(self, srun, out="o", **env):
        """One start of the job, by an srun that runs this text; returns exit code, output, and whether it came back."""
        self.command("srun", srun)
        (self.dir / "requeued").unlink(missing_ok=True)
        done = subprocess.run(["bash", TOOLS / "launch" / "train.sbatch", "a.toml", out], cwd=self.dir, text=True,
                              check=False, capture_output=True,
                              env={**os.environ, "PATH": f"{self.dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "42", **env})
        return done.returncode, done.stdout + done.stderr, (self.dir / "requeued").exists()

    def save(self, step, out="o"):
        """Text of an srun that saves a checkpoint."""
        return f"mkdir -p {out}/checkpoints/step-{step:06}; "

    def error(self, rank, code, activity="forward"):
        """Text of an srun with a rank that fails."""
        return (f"mkdir -p o; printf '{{\\n  \"activity\": \"{activity}\",\\n  \"code\": {code},\\n}}' "
                f"> o/rank-{rank}.error.json; ")

    def test_a_preempted_job_goes_back_into_the_queue(self):
        for code in (0, 80, 137):
            self.assertEqual(self.submit(f"exit {code}")[::2], (code, False))
        self.assertEqual(self.submit(self.save(1) + "exit 75")[::2], (0, True))
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 42\n")
        # A rank failed by itself; the others lost it, and srun returns the largest code.
        self.assertEqual(self.submit(self.save(2) + self.error(0, 75) + self.error(1, 70) + "exit 75")[::2], (70, False))
        # A rank was killed: after a checkpoint, the error being of an earlier job, and before one.
        self.assertEqual(self.submit(self.save(3) + "exit 137")[::2], (0, True))
        self.assertEqual(self.submit("exit 137")[::2], (137, False))
        # Outside of Slurm, and where Slurm refuses.
        self.assertEqual(self.submit(self.save(4) + "exit 75", SLURM_JOB_ID="")[::2], (75, False))
        self.command("scontrol", "exit 1")
        self.assertEqual(self.submit(self.save(5) + "exit 75")[0], 75)
        text = (TOOLS / "launch" / "train.sbatch").read_text()
        for line in ("#SBATCH --signal=USR1@120", "#SBATCH --requeue"):
            self.assertIn(line, text)

    def test_ranks_get_a_secret_where_the_program_can_use_one(self):
        env = {"DKFAC": str(self.dir / "dkfac")}
        srun = 'printf "%s\\n" "$DKFAC_SECRET" >> secrets'
        for word, others in (("yes", {}), ("no", {}), ("yes", {"DKFAC_SECRET": "chosen by the user"}),
                             ("yes", {"DKFAC_SECRET_FILE": "a"}), ("yes", {})):
            self.command("dkfac", f'echo "libcrypto  {word}"')
            self.assertEqual(self.submit(srun, **env, **others)[0], 0)
        first, without, own, file, last = (self.dir / "secrets").read_text().splitlines()
        self.assertRegex(first, "^[0-9a-f]{64}$")
        self.assertRegex(last, "^[0-9a-f]{64}$")
        self.assertNotEqual(first, last)
        self.assertEqual((without, own, file), ("", "chosen by the user", ""))

    def test_a_job_that_never_starts_does_not_come_back(self):
        code, said, requeued = self.submit("exit 75")
        self.assertEqual((code, requeued), (75, False))
        self.assertIn("not requeued: nothing is saved yet", said)
        # An earlier start has saved; this one's ranks did not find each other.
        self.submit(self.save(1) + "exit 75")
        code, said, requeued = self.submit(self.error(0, 75, "launch") + "exit 75")
        self.assertEqual((code, requeued), (75, False))
        self.assertIn("did not find each other", said)

    def test_starts_without_a_new_checkpoint_are_bounded(self):
        for step in (999999, 1000000):
            self.assertEqual(self.submit(self.save(step) + "exit 75")[::2], (0, True))
            for start in range(4):
                code, said, requeued = self.submit("exit 75")
                self.assertEqual((code, requeued), (0, True) if start < 3 else (75, False))
            self.assertIn("3 times in a row brought no new checkpoint", said)
        self.assertEqual(self.submit("exit 75", DKFAC_REQUEUES="9")[::2], (0, True))
        self.assertEqual(self.submit("exit 75", DKFAC_REQUEUES="x")[0], 64)

    def test_any_name_of_a_folder(self):
        for name in NAMES:
            with self.subTest(name=name):
                self.command("srun", 'shift 2; printf "%s\\0" "$@" > arguments; mkdir -p "$FOLDER"; exit 75')
                out = f"./{name}" if name.startswith("-") else name
                env = {"PATH": f"{self.dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "42",
                       "FOLDER": f"{out}/checkpoints/step-000007"}
                for more in (["a.toml", "--out", out, "--force"], ["--resume", out]):
                    done = subprocess.run(["bash", TOOLS / "launch" / "train.sbatch", "a.toml", name], cwd=self.dir,
                                          check=False, capture_output=True, env={**os.environ, **env})
                    self.assertEqual(done.returncode, 0, done.stderr)
                    arguments = (self.dir / "arguments").read_text().split("\0")[:-1]
                    self.assertEqual(arguments[1:], ["train", *more])


SMALL = """
[run]
epochs = 2
[data]
name = "synthetic"
synthetic_train = 128
synthetic_test = 32
synthetic_size = 8
[model]
name = "mlp"
[train]
global_batch = 16
[optimizer]
type = "sgd"
[lr]
schedule = "constant"
lr = 0.02
[checkpoint]
every_steps = 2
"""


class Supervised(unittest.TestCase):
    """supervise.sh with a launcher of our own in place of mpirun, and a program that fails."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "small.toml").write_text(SMALL)
        self.executable("mpirun", 'shift 4\nexec "$@"\n')

    def executable(self, name, text):
        (self.dir / name).write_text("#!/bin/sh\n" + text)
        (self.dir / name).chmod(0o755)
        return str(self.dir / name)

    def env(self, program):
        return {**os.environ, "DKFAC": program, "DKFAC_MPIRUN": str(self.dir / "mpirun"),
                "DKFAC_RESTART_WAIT": "0", "REAL": os.environ["DKFAC"]}

    def supervise(self, restarts, program, ranks="1"):
        return subprocess.run(["bash", TOOLS / "launch" / "supervise.sh", str(restarts), ranks,
                               "small.toml", "out/run", "--quiet"], cwd=self.dir, text=True,
                              check=False, capture_output=True, env=self.env(program), timeout=100)

    def test_any_name_of_a_folder(self):
        program = self.counting('0) "$REAL" "$@" --steps 5; kill -9 $$;;\n*) exec "$REAL" "$@";;')
        for name in NAMES:
            with self.subTest(name=name):
                done = subprocess.run(["bash", TOOLS / "launch" / "supervise.sh", "2", "1", "small.toml", name, "--quiet"],
                                      cwd=self.dir, check=False, capture_output=True, env=self.env(program), timeout=60)
                self.assertEqual((done.returncode, self.starts()), (0, 2), done.stderr)
                out = self.dir / name
                self.assertEqual(json.loads((out / "result.json").read_text())["steps"], 16)
                self.assertIn("--resume", (out / "command.txt").read_text())
                log = pathlib.Path(f"{out}.supervise.log").read_text()
                self.assertEqual([line.split()[1] for line in log.splitlines()], ["start", "ended"] * 2)
                (self.dir / "starts").unlink()

    def counting(self, cases):
        """A program that counts its starts in the file `starts`."""
        return self.executable("program", 'n=$(cat starts 2>/dev/null || echo 0)\n'
                               f'echo $((n + 1)) > starts\ncase $n in\n{cases}\nesac\n')

    def starts(self):
        return int((self.dir / "starts").read_text())

    def test_a_killed_and_a_stopped_run_end_as_an_undisturbed_one(self):
        program = self.counting('0) "$REAL" "$@" --steps 5; kill -9 $$;;\n'
                                '1) "$REAL" "$@" --steps 6; exit 75;;\n*) exec "$REAL" "$@";;')
        done = self.supervise(3, program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.starts(), 3)
        log = (self.dir / "out" / "run.supervise.log").read_text()
        for part in ("start 0 of at most 3", "ended with 137", "ended with 75", "ended with 0"):
            self.assertIn(part, log)
        plain = subprocess.run([os.environ["DKFAC"], "train", "small.toml", "--out", "plain",
                                "--quiet"], cwd=self.dir, check=False)
        self.assertEqual(plain.returncode, 0)
        one, other = (json.loads((self.dir / out / "result.json").read_text())["epochs"]
                      for out in ("out/run", "plain"))
        self.assertEqual([(e["step"], e["train_loss"], e["test_loss"]) for e in one],
                         [(e["step"], e["train_loss"], e["test_loss"]) for e in other])

    def test_it_gives_up_and_does_not_repeat_mistakes(self):
        done = self.supervise(2, self.counting("*) exit 75;;"))
        self.assertEqual((done.returncode, self.starts()), (75, 3))
        self.assertIn("gave up after 2 restarts", done.stderr)
        (self.dir / "starts").unlink()
        for code in (0, 64, 80):
            done = self.supervise(2, self.counting(f"*) exit {code};;"))
            self.assertEqual((done.returncode, self.starts()), (code, 1))
            (self.dir / "starts").unlink()

    def test_it_has_a_rank_less_after_each_that_was_lost(self):
        self.executable("mpirun", 'echo "$2" >> ranks\nexec sh "$5"\n')
        for ranks, code, expected in (("2:4", 137, [4, 3, 2, 2]), ("4", 137, [4] * 4), ("2:4", 75, [4] * 4)):
            with self.subTest(ranks=ranks, code=code):
                done = self.supervise(3, self.executable("program", f"exit {code}\n"), ranks=ranks)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual([int(n) for n in (self.dir / "ranks").read_text().split()], expected)
                (self.dir / "ranks").unlink()
        for ranks in ("0", "0:2", "2:", "two", "4:2"):
            self.assertEqual(self.supervise(3, "none", ranks=ranks).returncode, 64, ranks)

    def test_a_notice_restarts_and_a_stop_does_not(self):
        """The program answers USR1 as dkfac does: the first one with 75, later; a second one kills it."""
        program = self.counting("*) trap 'trap - USR1; : > \"noted-$n\"; sleep 1; exit 75' USR1; "
                                ": > \"ready-$n\"; while :; do sleep 0.05; done;;")
        run = subprocess.Popen(["bash", TOOLS / "launch" / "supervise.sh", "5", "1", "small.toml",
                                "out/run"], cwd=self.dir, env=self.env(program),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for file, sent in (("ready-0", signal.SIGUSR1), ("noted-0", signal.SIGUSR1),
                           ("ready-1", signal.SIGTERM), ("noted-1", signal.SIGTERM)):
            while not (self.dir / file).exists():
                self.assertIsNone(run.poll())
                time.sleep(0.02)
            run.send_signal(sent)
        self.assertEqual(run.wait(timeout=60), 75)
        self.assertEqual(self.starts(), 2)
        log = (self.dir / "out" / "run.supervise.log").read_text()
        self.assertEqual(log.count("notice: the run saves a checkpoint"), 2)
        self.assertEqual((log.count("asked to stop"), log.count("ended with 75")), (2, 2))

    def test_control_c_does_not_reach_the_launcher_itself(self):
        """A terminal sends INT to a whole process group, and mpirun kills its ranks on it."""
        self.executable("mpirun", f'exec {sys.executable} -c "import pathlib, signal, sys\n'
                        'signal.signal(signal.SIGINT, lambda *_: sys.exit(1))\n'
                        'signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n'
                        'pathlib.Path(\'ready\').touch()\nwhile True: signal.pause()"\n')
        run = subprocess.Popen(["bash", TOOLS / "launch" / "supervise.sh", "0", "1", "small.toml",
                                "out/run"], cwd=self.dir, env=self.env("none"),
                               start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        while not (self.dir / "ready").exists():
            self.assertIsNone(run.poll())
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGINT)
        self.assertEqual(run.wait(timeout=60), 75)

    def test_a_stop_before_the_first_start_is_not_lost(self):
        self.executable("date", '[ -e sent ] || { : > sent; kill -TERM "$SUPERVISOR"; }\n'
                        'exec /bin/date "$@"\n')
        env = self.env(self.counting("*) exit 0;;"))
        env["PATH"] = f"{self.dir}:{env['PATH']}"
        done = subprocess.run(["bash", "-c", 'SUPERVISOR=$$ exec bash "$0" 5 1 small.toml out/run',
                               TOOLS / "launch" / "supervise.sh"], cwd=self.dir, env=env,
                              check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertTrue((self.dir / "sent").exists())
        self.assertFalse((self.dir / "starts").exists())

class Tcprun(unittest.TestCase):
    """tools/launch/tcprun.py with shell scripts as ranks."""

    def start(self, script, ranks=3, grace=0.5, **options):
        return subprocess.Popen([sys.executable, TOOLS / "launch" / "tcprun.py", "-n", str(ranks), "--bind-to", "none",
                                 "--grace", str(grace), "bash", "-c", script], stdout=subprocess.PIPE, text=True, **options)

    def end(self, run):
        out = run.communicate(timeout=60)[0]
        return run.returncode, out

    def test_ranks_know_each_other_and_one_rank_is_none(self):
        said = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"'
        code, out = self.end(self.start(said))
        lines = sorted(line.split() for line in out.splitlines())
        self.assertEqual((code, [line[:4] for line in lines]), (0, [[str(r), "3", str(r), "127.0.0.1"] for r in range(3)]))
        self.assertEqual(len({line[4] for line in lines}), 1)
        self.assertEqual(self.end(self.start('echo "[$RANK]"', ranks=1)), (0, "[]\n"))

    def test_the_exit_code_is_that_of_the_cause(self):
        for script, code in (("exit $((RANK == 1 ? 74 : 75))", 74), ("exit 75", 75), ("exit 0", 0),
                             ("[ $RANK = 1 ] && kill -9 $$; sleep 0.2; exit 75", 137),
                             ("[ $RANK = 1 ] || exit 75; kill -STOP $$", 75)):  # The frozen one is killed.
            self.assertEqual(self.end(self.start(script))[0], code, script)
        self.assertEqual(subprocess.run([sys.executable, TOOLS / "launch" / "tcprun.py", "-n", "0", "true"], check=False,
                                        stderr=subprocess.DEVNULL).returncode, 2)

    def test_signals_reach_every_rank_and_no_rank_outlives_it(self):
        waits = 'trap "exit 75" USR1 TERM; echo $$; while :; do sleep 0.05; done'
        for number in (signal.SIGUSR1, signal.SIGTERM):
            run = self.start(waits)
            for _ in range(3):
                run.stdout.readline()
            run.send_signal(number)
            self.assertEqual(self.end(run)[0], 75)
        counts = 'trap "n=1\\$n" INT; echo; for i in {1..10}; do sleep 0.05; done; exit $n'
        run = self.start(counts, start_new_session=True)
        for _ in range(3):
            run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)  # As a terminal does.
        self.assertEqual(self.end(run)[0], 1)
        run = self.start(waits)
        ranks = [int(run.stdout.readline()) for _ in range(3)]
        run.kill()
        run.communicate(timeout=60)  # The ranks held its output.
        self.assertEqual([pid for pid in ranks if pathlib.Path(f"/proc/{pid}/cwd").exists()], [])


if __name__ == "__main__":
    unittest.main()
