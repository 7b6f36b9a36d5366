#!/usr/bin/env python3
"""Trains the networks of examples/ in PyTorch, each optimizer alone and with K-FAC attached by two lines.

    python3 benchmarks/pytorch_training.py --tasks transformer resnet20 --seeds 0 1 2 --json FILE   # trains
    python3 benchmarks/pytorch_training.py --report --json FILE --picture NAME.svg                  # table, picture

transformer: the character model, on the topics of Python's own help, whose hash is recorded.
resnet20: CIFAR-10, from $DKFAC_DATA/cifar-10-batches-bin; random crops and flips.

FILE gets every run when it ends: one that is in it is not repeated, so the command can be stopped and started again.
Of several rates of a method, the one of the record is the best in trials of each with seed 100 and validation data; it
should not be the first or the last. Seeds take turns through the methods. --seconds keeps those of training without
evaluation, and repeats runs that lack them; nothing else should run. --trial runs one with the settings of --set.
"""
import argparse
import copy
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

TREE = pathlib.Path(__file__).resolve().parent.parent

# The rate rises for `warm_up` of the steps, then falls to 0, both linearly. `lr`: the rates that are tried. `kfac`:
# arguments of attach().
METHODS = {
    "transformer": {
        "AdamW": {"optimizer": "adamw", "lr": [0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1]},
        "SGD": {"optimizer": "sgd", "lr": [0.1, 0.3, 0.6, 1.0, 2.0, 3.0]},
        "AdamW + K-FAC": {"optimizer": "adamw", "lr": [0.003, 0.01, 0.02, 0.03, 0.05], "kfac": {
            "damping": 1e-2, "kl_clip": 1e-2, "statistics_interval": 5, "inverse_interval": 20}},
        "SGD + K-FAC": {"optimizer": "sgd", "lr": [0.01, 0.03, 0.1, 0.3], "kfac": {
            "damping": 1e-2, "kl_clip": 1e-2, "statistics_interval": 5, "inverse_interval": 20}}},
    "resnet20": {
        "SGD": {"optimizer": "sgd", "lr": [0.02, 0.05, 0.1, 0.2], "weight_decay": 5e-4, "warm_up": 0.2},
        "SGD + K-FAC": {"optimizer": "sgd", "lr": [0.003, 0.01, 0.03, 0.1], "weight_decay": 5e-4, "warm_up": 0.2, "kfac": {
            "damping": 0.03, "new_weight": 0.1, "statistics_interval": 10, "inverse_interval": 50}}}}
# What a curve shows, the lengths of a run and of a trial, and the target: a loss to come down to, or an accuracy to reach.
TASKS = {"transformer": {"unit": "steps", "length": 400, "trial": 400, "every": 25, "value": "test loss", "target": 1.9},
         "resnet20": {"unit": "epochs", "length": 3, "trial": 2, "every": 0.5, "value": "test accuracy", "target": 0.7}}


def example(name):
    """A program of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, TREE / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Characters:
    """Batches of the text, of which the last tenth is for tests and the tenth before it for validation."""

    batch, length = 32, 64

    def __init__(self, trial):
        from pydoc_data.topics import topics
        text = "\n".join(topics[key] for key in sorted(topics))
        self.hash = hashlib.sha256(text.encode()).hexdigest()
        table = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
        codes = torch.tensor([table[symbol] for symbol in text])
        tenth = len(codes) // 10
        self.symbols, self.train = len(table), codes[:8 * tenth]
        held = codes[8 * tenth:9 * tenth] if trial else codes[9 * tenth:]
        generator = torch.Generator().manual_seed(1)
        self.held = [self.sample(held, generator) for _ in range(16)]

    def model(self):
        return example("pytorch_transformer").Model(self.symbols, self.length)

    def sample(self, source, generator):
        starts = torch.randint(len(source) - self.length, (self.batch, 1), generator=generator)
        rows = source[starts + torch.arange(self.length + 1)]
        return rows[:, :-1], rows[:, 1:]

    def steps(self, length):
        return length

    def batches(self, length, generator):
        """(x, y, value of the curve's axis where the model is evaluated after the step, else None)"""
        for step in range(1, length + 1):
            due = step % TASKS["transformer"]["every"] == 0 or step == length
            yield (*self.sample(self.train, generator), step if due else None)

    def loss(self, out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    def evaluate(self, model):
        return statistics.mean(float(self.loss(model(x), y)) for x, y in self.held)


class Images:
    """CIFAR-10; the last 5,000 training images are for validation in trials."""

    batch = 128

    def __init__(self, trial):
        folder = pathlib.Path(os.environ.get("DKFAC_DATA", "data")) / "cifar-10-batches-bin"
        if not folder.is_dir():
            sys.exit(f"{folder} is missing; DKFAC_DATA names the folder that holds cifar-10-batches-bin")
        parts = [self.read(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
        x, y = (torch.cat(each) for each in zip(*parts))
        self.hash = hashlib.sha256(x.numpy().tobytes()).hexdigest()
        self.held = (x[45000:], y[45000:]) if trial else self.read(folder / "test_batch.bin")
        self.x, self.y = (x[:45000], y[:45000]) if trial else (x, y)

    @staticmethod
    def read(path):
        rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, 3073)
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()

    @staticmethod
    def normalised(x):
        mean, deviation = torch.tensor([[0.491, 0.482, 0.447], [0.247, 0.243, 0.262]]).view(2, 1, 3, 1, 1)
        return (x.float() / 255 - mean) / deviation

    def model(self):
        return example("pytorch_cifar").resnet20()

    def steps(self, length):
        return length * (len(self.x) // self.batch)

    def batches(self, length, generator):
        count, size = len(self.x) // self.batch, self.batch
        part = int(count * TASKS["resnet20"]["every"])
        for epoch in range(1, length + 1):
            order = torch.randperm(len(self.x), generator=generator)
            for i in range(count):
                chosen = order[i * size:(i + 1) * size]
                x = F.pad(self.normalised(self.x[chosen]), (4, 4, 4, 4))
                top, left = torch.randint(9, (2, size, 1), generator=generator)
                rows, columns = top + torch.arange(32), left + torch.arange(32)
                flip = torch.rand(size, 1, generator=generator) < 0.5
                columns = torch.where(flip, columns.flip(1), columns)
                x = x[torch.arange(size)[:, None, None], :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
                due = i + 1 == count or (i + 1) % part == 0 and i + 1 + part <= count
                yield x.contiguous(), self.y[chosen], epoch - 1 + round((i + 1) / count, 2) if due else None

    def loss(self, out, y):
        return F.cross_entropy(out, y)

    def evaluate(self, model):
        x, y = self.held
        right = sum(int((model(self.normalised(a)).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500)))
        return right / len(y)


DATA = {"transformer": Characters, "resnet20": Images}


def train(data, settings, seed, length):
    """Returns the curve: [[axis, value, seconds of training], ...]; it ends where the loss is not finite."""
    torch.manual_seed(seed)
    model, generator = data.model(), torch.Generator().manual_seed(seed)
    decay = settings.get("weight_decay", 0.0)
    if settings["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings["lr"], weight_decay=decay or 1e-2)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings["lr"], momentum=0.9, weight_decay=decay,
                                    nesterov=True)
    if "kfac" in settings:
        import dkfac.torch as dkfac
        dkfac.attach(model, optimizer, **settings["kfac"])
    steps, warm_up = data.steps(length), settings.get("warm_up", 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / (warm_up * steps + 1), max(steps - step, 0) / (steps - warm_up * steps)))
    curve, seconds, started = [], 0.0, time.perf_counter()
    for x, y, due in data.batches(length, generator):
        optimizer.zero_grad()
        loss = data.loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if due is not None:
            seconds += time.perf_counter() - started
            model.eval()
            with torch.no_grad():
                value = data.evaluate(model)
            model.train()
            curve.append([due, round(value, 5), round(seconds, 2)])
            if not math.isfinite(float(loss)):
                break
            started = time.perf_counter()
    return curve


def environment():
    """What a run depends on beside its settings."""
    def output(*command):
        return subprocess.run(command, cwd=TREE, capture_output=True, text=True).stdout.strip()
    import dkfac
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = output("git", "rev-parse", "--short=12", "HEAD") + ("+" if output("git", "status", "--porcelain", "-uno")
                                                                 else "")
    return {"commit": commit, "dkfac": dkfac.version(), "torch": torch.__version__, "python": platform.python_version(),
            "device": f"{cpu}, {torch.get_num_threads()} threads"}


def load(path):
    return json.loads(path.read_text()) if path.is_file() else {"runs": []}


def save(path, record):
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    lines = ",\n".join("  " + json.dumps(run) for run in record["runs"])
    beside.write_text('{"runs": [\n' + lines + "\n]}\n")
    os.replace(beside, path)


def key(run):
    return json.dumps([run[name] for name in ("task", "method", "settings", "seed", "length", "trial", "data")],
                      sort_keys=True)


class Runs:
    """The runs of one task in a record."""

    def __init__(self, a, task):
        self.path, self.seconds, self.task, self.data = pathlib.Path(a.json), a.seconds, task, {}
        self.trial_length = a.length or TASKS[task]["trial"]

    def result(self, method, settings, seed, length, trial):
        """The last value of a run, which is trained unless the record has it."""
        if trial not in self.data:
            self.data[trial] = DATA[self.task](trial)
        data = self.data[trial]
        run = {"task": self.task, "method": method, "settings": settings, "seed": seed, "length": length,
               "trial": trial, "data": data.hash[:16]}
        old = next((r for r in load(self.path)["runs"] if key(r) == key(run)), None)
        timed = self.seconds and not trial
        if old is not None and not (timed and len(old["curve"][0]) < 3):
            return old["curve"][-1][1]
        curve = train(data, settings, seed, length)
        run.update(environment(), curve=curve if timed else [point[:2] for point in curve])
        record = load(self.path)
        record["runs"] = [r for r in record["runs"] if key(r) != key(run)] + [run]
        save(self.path, record)
        print(self.task, method, f"trial, lr {settings['lr']:g}" if trial else f"seed {seed}", "last", curve[-1][1],
              flush=True)
        return curve[-1][1]

    def best(self, method):
        """The settings with the best of their rates."""
        settings, facts = METHODS[self.task][method], TASKS[self.task]
        sign = -1 if facts["value"].endswith("loss") else 1

        def score(rate):
            value = sign * self.result(method, dict(settings, lr=rate), 100, self.trial_length, True)
            return value if math.isfinite(value) else -math.inf
        rates = settings["lr"]
        chosen = max(rates, key=score)
        if chosen in (rates[0], rates[-1]):
            print(f"{self.task} {method}: the best rate is at the end of {rates}; try more", flush=True)
        return dict(settings, lr=chosen)


def run_all(a):
    torch.set_num_threads(a.threads)
    given = {name: float(value) for name, value in (pair.split("=") for pair in a.set)}
    for task in a.tasks:
        runs, methods = Runs(a, task), a.methods or METHODS[task]
        if a.trial:
            for method in methods:
                settings = copy.deepcopy(METHODS[task][method])
                for name, value in given.items():
                    (settings if name in settings or "kfac" not in settings else settings["kfac"])[name] = value
                runs.result(method, settings, 100, runs.trial_length, True)
            continue
        chosen = {method: runs.best(method) for method in methods}
        for seed in a.seeds:
            for method, settings in chosen.items():
                runs.result(method, settings, seed, a.length or TASKS[task]["length"], False)


# --- report ----------------------------------------------------------------------------------------------------------

def reached(task, curve):
    """The first point at the target, or None."""
    target, loss = TASKS[task]["target"], TASKS[task]["value"].endswith("loss")
    return next((p for p in curve if (p[1] <= target if loss else p[1] >= target)), None)


def spread(values, digits):
    """Mean [least-most]."""
    shown = [f"{v:.{digits}f}" for v in (statistics.mean(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} [{shown[1]}-{shown[2]}]"


def table(task, groups):
    facts = TASKS[task]
    loss = facts["value"].endswith("loss")
    goal = f"{facts['target']:g}" if loss else f"{100 * facts['target']:g} %"
    timed = all(len(p) == 3 for runs in groups.values() for r in runs for p in r["curve"])
    lines = [f"| | seeds | {facts['unit']} to {goal} |" + (f" seconds to {goal} |" if timed else "") +
             f" {facts['value']} at the end{'' if loss else ', %'} |",
             "|---|---:|---:|---:|" + ("---:|" if timed else "")]
    for method, runs in groups.items():
        points = [reached(task, r["curve"]) for r in runs]
        found = [p for p in points if p]
        missed = "" if len(found) == len(points) else f" ({len(found)} of {len(points)})"
        cells = [spread([p[0] for p in found], 0 if loss else 1) + missed if found else "not reached"]
        if timed:
            cells.append(spread([p[2] for p in found], 0) + missed if found else "")
        ends = [r["curve"][-1][1] * (1 if loss else 100) for r in runs]
        ends = [end for end in ends if math.isfinite(end)]
        lost = f" ({len(runs) - len(ends)} diverged)" if len(ends) < len(runs) else ""
        cells.append((spread(ends, 3 if loss else 2) if ends else "") + lost)
        lines.append(f"| {method} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(task, groups):
    """An SVG of the curves of all seeds."""
    colours, facts = ["#4c72b0", "#c44e52", "#55a868", "#8172b3"], TASKS[task]
    points = [p for runs in groups.values() for r in runs for p in r["curve"] if math.isfinite(p[1])]
    values = sorted(p[1] for p in points)
    low, high, right = values[0], values[int(len(values) * 0.97)], max(p[0] for p in points)
    loss = facts["value"].endswith("loss")

    def place(point):
        share = min(max((point[1] - low) / (high - low or 1), 0), 1.02)
        return f"{50 + 420 * point[0] / right:.1f},{250 - 220 * share:.1f}"
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 290" font-family="sans-serif" font-size="12">',
           '<rect width="640" height="290" fill="white"/><path d="M50 25V250H475" fill="none" stroke="black"/>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = low + share * (high - low)
        text = f"{value:.2f}" if loss else f"{100 * value:.0f} %"
        out.append(f'<text x="45" y="{254 - 220 * share:.0f}" text-anchor="end">{text}</text>'
                   f'<text x="{50 + 420 * share:.0f}" y="266" text-anchor="middle">{right * share:g}</text>')
    for i, (method, runs) in enumerate(groups.items()):
        out.append(f'<text x="490" y="{45 + 20 * i}" fill="{colours[i]}">{method}</text>')
        out += [f'<polyline fill="none" stroke="{colours[i]}" stroke-width="1.3" points="'
                + " ".join(map(place, r["curve"])) + '"/>' for r in runs]
    out.append(f'<text x="262" y="283" text-anchor="middle">{facts["unit"]}</text>'
               f'<text x="50" y="16">{task}: {facts["value"]}, each line one seed</text></svg>')
    return "\n".join(out) + "\n"


def trials(task, runs):
    """Rates and last values of the trials with the settings of METHODS."""
    percent = not TASKS[task]["value"].endswith("loss")
    lines = ["| trials | " + ("accuracy, %" if percent else "loss") + " by rate |", "|---|---|"]
    for method, settings in METHODS[task].items():
        found = sorted((r["settings"]["lr"], r["curve"][-1][1]) for r in runs if r["method"] == method
                       and dict(r["settings"], lr=0) == dict(settings, lr=0) and r["length"] == TASKS[task]["trial"])
        shown = [f"{lr:g}: " + ("diverged" if not math.isfinite(v) else f"{100 * v:.2f}" if percent else f"{v:.3f}")
                 for lr, v in found]
        lines.append(f"| {method} | {', '.join(shown)} |")
    return "\n".join(lines)


def report(a):
    everything = load(pathlib.Path(a.json))["runs"]
    runs = [r for r in everything if not r["trial"]]
    for task in a.tasks:
        longest = max((r["length"] for r in runs if r["task"] == task), default=0)
        chosen = [r for r in runs if r["task"] == task and r["length"] == longest]
        groups = {m: [r for r in chosen if r["method"] == m] for m in METHODS[task]}
        groups = {method: found for method, found in groups.items() if found}
        if groups:
            print(f"\n{task}, {longest} {TASKS[task]['unit']}\n\n" + table(task, groups) + "\n")
            print(trials(task, [r for r in everything if r["task"] == task and r["trial"]]))
            if a.picture:
                name = pathlib.Path(a.picture)
                name.with_name(f"{name.stem}-{task}.svg").write_text(picture(task, groups))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", help="default: all of a task")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--length", type=int, help="steps (transformer) or epochs (resnet20)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of a trial")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", help="FILE.svg; the task is appended to its name")
    a = parser.parse_args()
    if a.trial != bool(a.set) or a.trial != any(pair.startswith("lr=") for pair in a.set):
        parser.error("--trial needs --set lr=..., and --set is for trials alone")
    return report(a) if a.report else run_all(a)


if __name__ == "__main__":
    main()
