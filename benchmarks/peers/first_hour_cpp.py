"""Tasks of `first-hour` in C++: bench_first_hour (benchmarks/host/first_hour.cpp) trains them by make_kfac() in place of
attach(), with momentum beside SGD and with AdamW's update beside AdamW."""
from __future__ import annotations

import json
import subprocess
from typing import Any, NamedTuple

import facts

BESIDE = {"sgd": "kfac", "adamw": "kfac-adamw"}


class CppTask(NamedTuple):
    """A network of bench_first_hour, trained for `steps` steps."""
    network: str
    steps: int

    def train(self, program: str, optimizer: str, rate: float, alone: bool, seed: int) -> dict[str, Any]:
        """The points of a run, its first loss, and the loss of the held samples."""
        name = optimizer if alone else BESIDE[optimizer]
        words = [program, self.network, name, str(rate), str(seed), str(self.steps), str(facts.TREE)]
        out = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        run: dict[str, Any] = json.loads(out)
        return run


CPP: dict[str, CppTask] = {"lenet (C++)": CppTask("lenet-bn", 300), "resnet20 (C++)": CppTask("resnet20", 80),
                           "transformer (C++)": CppTask("transformer", 300)}
