"""Stands for the program dkfac in tests of sweeps: its keys, its checks and its runs, but no training.

FAKE_EPOCH_S is the time of an epoch. The accuracy after e epochs is lr (1 - 2^-e), so that the highest rate is best; a
rate above 1 diverges in the second epoch. A run folder gets `trained`, a line for each epoch that was trained.
"""
import fcntl
import json
import os
import pathlib
import signal
import sys
import time
import tomllib

KEYS = {
    "run.name": ("text", '""', {}), "run.epochs": ("integer", "4", {"least": 1, "most": 1000}),
    "run.seed": ("integer", "1", {}), "run.eval_every": ("integer", "1", {"least": 0}),
    "data.path": ("text", '""', {}), "augment.flip": ("true/false", "false", {}),
    "optimizer.type": ("choice", '"sgd"', {"choices": ["sgd", "kfac"]}),
    "optimizer.damping": ("number", "0.1", {"above": 0, "only": {"selector": "optimizer.type", "values": ["kfac"]}}),
    "lr.schedule": ("choice", '"constant"', {"choices": ["constant", "cosine", "piecewise"]}),
    "lr.lr": ("number", "0.1", {"least": 0}), "lr.warmup_epochs": ("number", "0.0", {"least": 0}),
    "lr.knots": ("list", "[]", {"only": {"selector": "lr.schedule", "values": ["piecewise"]}})}


def fail(code, what):
    print(f"ERROR rank=0 step=0 activity=config code={code}: {what}", file=sys.stderr)
    sys.exit(code)


def value_of(text):
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def configuration(file, sets):
    try:
        tables = tomllib.loads(pathlib.Path(file).read_text())
    except FileNotFoundError:
        fail(66, f"[config] there is no file '{file}'; name one")
    values = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    for text in sets:
        path, value = text.split("=", 1)
        values[path] = value_of(value)
    whole = {path: values.pop(path, value_of(default)) for path, (_, default, _) in KEYS.items()}
    values = {path: value for path, value in values.items() if not path.startswith("phase.")}
    if values:
        fail(64, f"[config] unknown key '{next(iter(values))}'; 'dkfac info config' lists all")
    if whole["lr.lr"] < 0:
        fail(64, f"[config] --set lr.lr={whole['lr.lr']}: not allowed; write a number >= 0")
    return whole


def toml(whole):
    sections = {}
    for path, value in whole.items():
        only = KEYS[path][2].get("only")
        if only is None or whole[only["selector"]] in only["values"]:
            section, key = path.split(".")
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items()) + "\n"


def put(path, text):
    new = path.with_suffix(".tmp")
    new.write_text(text)
    new.replace(path)


def train(folder, whole, until):
    stop = []
    signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    lock = open(folder / "run.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(64, f"[run folder] '{folder}' is in use; wait for it")
    put(folder / "config.toml", toml(whole))
    (folder / "threads").write_text(os.environ.get("OMP_NUM_THREADS", "none"))
    done = sorted((folder / "checkpoints").glob("step-*"))
    epochs = json.loads(done[-1].joinpath("epochs.json").read_text()) if done else []

    def result(status):
        put(folder / "result.json", json.dumps({
            "status": status, "best_accuracy": max((e["test_accuracy"] for e in epochs), default=None),
            "train_seconds": 0.1 * len(epochs), "epochs": epochs}))

    while len(epochs) < min(until, whole["run.epochs"]):
        if stop:
            result("stopped")
            sys.exit(75)
        time.sleep(float(os.environ.get("FAKE_EPOCH_S", "0")))
        at = len(epochs) + 1
        with open(folder / "trained", "a") as trained:
            trained.write(f"{at}\n")
        if whole["lr.lr"] > 1 and at == 2:
            result("failed")
            fail(80, "[train] diverged; lower the learning rate")
        epochs.append({"epoch": at, "test_accuracy": whole["lr.lr"] * (1 - 0.5**at), "train_loss": 1 / at,
                       "test_loss": None if whole["run.seed"] == 13 else 1 / at})
        new = folder / "checkpoints" / f".new-{at}"
        new.mkdir(parents=True, exist_ok=True)
        put(new / "epochs.json", json.dumps(epochs))
        new.rename(folder / "checkpoints" / f"step-{at:06}")
        result("running")
    result("ok" if len(epochs) == whole["run.epochs"] else "stopped")


def main(words):
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if words[:2] == ["info", "config"]:
        keys = [{"path": path, "type": kind, "default": default, "allowed": f"a {kind}", "help": path, "phase": True,
                 **more} for path, (kind, default, more) in KEYS.items()]
        print(json.dumps({"version": "0.1.0", "keys": keys}))
    elif words[0] == "info":
        print(toml(configuration(words[1], sets)), end="")
    else:
        until = int(words[words.index("--until-epoch") + 1]) if "--until-epoch" in words else 1 << 30
        if "--resume" in words:
            folder = pathlib.Path(words[words.index("--resume") + 1])
            train(folder, configuration(folder / "config.toml", sets), until)
        else:
            whole = configuration(words[1], sets)
            folder = pathlib.Path(words[words.index("--out") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").unlink(missing_ok=True)
            (folder / "command.txt").write_text("# dkfac 0.1.0\n")
            train(folder, whole, until)


main(sys.argv[1:])
