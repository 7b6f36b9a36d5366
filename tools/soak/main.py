#!/usr/bin/env python3
"""tools/soak.sh: what is trained, when it is disturbed, and what is recorded."""
import argparse
import collections
import itertools
import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

TOOLS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOOLS / "soak"), str(TOOLS), str(TOOLS.parent / "benchmarks")]
import disturb  # noqa: E402
import facts  # noqa: E402
import job  # noqa: E402
import launch  # noqa: E402
import steady  # noqa: E402

FOUND = 80  # Exit code where something was lost.
ROUND_LIMIT_S = 1800


class Soak:
    def __init__(self, args, work):
        self.dkfac, self.work = args.dkfac, work
        self.draw, self.most = random.Random(args.seed), args.disturbances
        self.config = work / "soak.toml"
        self.config.write_text(job.CONFIG.format(epochs=-(-args.steps // job.BATCHES)))
        self.last = job.BATCHES * -(-args.steps // job.BATCHES)
        self.disk = disturb.Disk(work / "disk")
        self.references, self.skipped = {}, {}
        self.counts = collections.defaultdict(collections.Counter)
        self.restarts, self.rounds, self.problems = 0, [], []
        self.job = self.steady = None

    def reference(self, ranks):
        if ranks not in self.references:
            self.references[ranks] = job.undisturbed(self.dkfac, self.config, self.work / f"undisturbed-{ranks}", ranks)
        return self.references[ranks]

    def wait(self, until):
        """Looks until it is so or the job has ended."""
        while self.job.running() and not until():
            if self.steady:
                self.steady.look(self.draw)
            time.sleep(0.005)
            if time.monotonic() > self.limit:
                raise TimeoutError("the job did not end")

    def disturb(self):
        """Once; then the job is running again. Whether there was a disturbance."""
        kind = self.draw.choices(list(disturb.KINDS), disturb.WEIGHTS)[0]
        living = self.job.living()
        try:
            begins_again = disturb.KINDS[kind](self.job, self.disk, self.draw)
        except disturb.Skipped as reason:
            self.skipped[f"{kind}, {self.job.transport}"] = str(reason)
            return False
        except (FileNotFoundError, IndexError):  # A checkpoint was removed, or a rank ended, at this moment.
            return False
        if kind in ("cut", "flipped bit") and not begins_again:
            return False  # There was nothing to cut or to flip.
        self.counts[self.job.transport][kind] += 1
        if begins_again:
            self.wait(lambda: self.job.complete() and not set(self.job.living().values()) & set(living.values()))
        return True

    def live(self):
        """Disturbs the job until it has ended, and starts it again where the disk was full."""
        left = self.most
        while True:
            ahead = 0 if self.draw.random() < 0.15 else self.draw.randrange(1, 25)
            target = self.job.steps() + ahead
            self.wait(lambda: left > 0 and self.job.complete() and self.job.steps() >= target)
            if self.job.running():
                time.sleep(self.draw.random() * (0.3 if ahead == 0 else 0.05))
                left -= self.disturb()
            if not self.job.running():
                if self.job.code != 74 or not self.disk.full:
                    return
                self.disk.free()
                self.job.start()

    def round(self, transport, ranks):
        expected = self.reference(ranks)
        self.limit = time.monotonic() + ROUND_LIMIT_S
        self.job = job.Job(self.work, self.disk.folder, self.dkfac, transport, ranks)
        try:
            self.live()
            found = self.verdict(expected)
        except TimeoutError as error:
            self.job.end()
            found = str(error)
        self.disk.free()
        self.restarts += self.job.starts()
        self.rounds.append({"transport": transport, "ranks": ranks, "starts": self.job.starts(), "problem": found})
        if found:
            kept = self.work / f"problem-{len(self.rounds)}.log"
            shutil.copy(self.job.log, kept)
            self.problems.append(f"{transport}, {ranks} ranks: {found}; see {kept}")

    def verdict(self, expected):
        if self.job.code != 0:
            return f"the job ended with exit {self.job.code}"
        got = job.outcome(self.job.out)
        if len(got["losses"]) != self.last:
            return f"the metrics have {len(got['losses'])} steps instead of {self.last}"
        return ", ".join(f"other {key}" for key in expected if got[key] != expected[key]) or None

    def run(self, minutes):
        begin = time.monotonic()
        if minutes > 0:  # Memory is judged over minutes.
            self.steady = steady.Steady(self.work, self.dkfac)
        places = [self.draw.sample((2, 3, 4), 3) for _ in job.TRANSPORTS]
        for number in itertools.count():
            if number >= len(job.TRANSPORTS) and time.monotonic() - begin > 60 * minutes:
                break
            which = number % len(job.TRANSPORTS)
            self.round(job.TRANSPORTS[which], places[which][number // len(job.TRANSPORTS) % 3])
        return self.record(time.monotonic() - begin)

    def end(self):
        """Nothing is left behind, whatever has ended it."""
        for one in (self.job, self.steady):
            if one:
                one.end()
        self.disk.close()

    def record(self, seconds):
        memory = self.steady.end() if self.steady else {"alive": True, "grown": None}
        if memory["grown"] or not memory["alive"]:
            self.problems.append("the memory of the steady training has grown" if memory["alive"] else
                                 "the steady training has ended")
        equal = sum(r["problem"] is None for r in self.rounds)
        total = sum((self.counts[t] for t in self.counts), collections.Counter())
        return {"minutes": round(seconds / 60, 1), "disturbances": dict(total),
                "by_transport": {t: dict(c) for t, c in self.counts.items()}, "skipped": self.skipped,
                "disk": "a tmpfs that was full" if self.disk.mounted else "RLIMIT_FSIZE, as no tmpfs may be mounted here",
                "resumes": self.restarts, "rounds": len(self.rounds), "equal": equal, "steps_each": self.last,
                "memory": memory, "problems": self.problems, "each": self.rounds}


def main():
    parser = argparse.ArgumentParser(prog="tools/soak.sh", description=__doc__)
    parser.add_argument("minutes", type=float, help="the round that is under way then is finished")
    parser.add_argument("--seed", type=int, default=1, help="of the disturbances")
    parser.add_argument("--dkfac", default=str(TOOLS.parent / "build" / "release" / "src" / "app" / "dkfac"))
    parser.add_argument("--json", help="where the record is written")
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    parser.add_argument("--disturbances", type=int, default=1000, help="of each run at most")
    args = parser.parse_args()
    launch.require(args.dkfac, 2, "soak")
    args.dkfac = str(pathlib.Path(shutil.which(args.dkfac)).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # As Ctrl-C: nothing is left behind.
    work = pathlib.Path(tempfile.mkdtemp(prefix="dkfac-soak-"))
    soak = Soak(args, work)
    try:
        found = soak.run(args.minutes)
    finally:
        soak.end()
        if not soak.problems:
            shutil.rmtree(work, ignore_errors=True)
    record = {"what": "tools/soak.sh", "seed": args.seed, **found, **facts.machine()}
    if args.json:
        facts.write(record, args.json)
    print(json.dumps({key: record[key] for key in record if key != "each"}, indent=1))
    sys.exit(FOUND if soak.problems else 0)


if __name__ == "__main__":
    main()
