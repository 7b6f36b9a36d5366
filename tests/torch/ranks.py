#!/usr/bin/env python3
"""Runs torch_ranks as one and as two processes over gloo, and compares their weights, also with those of the Python
package where torch is installed. Usage: ranks.py PROGRAM"""
import contextlib
import pathlib
import subprocess
import sys
import tempfile

EPS = 2.0 ** -52
EQUAL = ["one worker", "all ranks work", "accumulated", "one fails"]
# Three steps of sums over 8 samples in two orders, behind inverses of condition below 1e4.
BAR = 1e4 * 3 * 8 * EPS


def run(program, size, cases, limit=90):
    """Lines of each rank. `limit`: seconds, after which a rank hangs."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = [pathlib.Path(folder, f"out{rank}") for rank in range(size)]
        ranks = [subprocess.Popen([program, str(rank), str(size), str(pathlib.Path(folder, "store")), *cases],
                                  stdout=stack.enter_context(out[rank].open("w"))) for rank in range(size)]
        try:
            for rank in ranks:
                rank.wait(limit)
        finally:
            for rank in ranks:
                rank.kill()
        return [one.read_text().splitlines() for one in out]


def weights(lines):
    """{case: weights}"""
    pairs = [line.split(": ") for line in lines if " rank " not in line]
    return {name: [float(number) for number in numbers.split()] for name, numbers in pairs}


def apart(one, other):
    return (sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / sum(b * b for b in other)) ** 0.5


def line_of(lines, start):
    found = [line for line in lines if line.startswith(start)]
    assert len(found) == 1, (start, lines)
    return found[0]


def of_python():
    """The weights that the Python package comes to, on one rank."""
    import torch
    from torch import nn

    import dkfac.torch as dkfac

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.LayerNorm(16)
            self.fc, self.out = nn.Linear(64, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.tanh(self.fc(torch.tanh(self.norm(self.conv(x).flatten(2))).flatten(1))))

    net = Net().double()
    with torch.no_grad():
        for speed, p in enumerate(net.parameters(), 1):
            p.copy_(0.3 * torch.sin(speed * torch.arange(p.numel(), dtype=p.dtype).view(p.shape)))
    sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    dkfac.attach(net, sgd, damping=0.01, statistics_interval=1, inverse_interval=1, early_refreshes=False,
                 step_length="none", inverse_method="eigen")
    for step in range(3):
        at = torch.arange(256, dtype=torch.float64) + 256 * step
        sgd.zero_grad()
        y = torch.cos(0.3 * at).view(8, 32)[:, :3]
        (net(torch.sin(0.7 * at).view(8, 2, 4, 4)) - y).square().mean().backward()
        sgd.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist()


def main():
    program = sys.argv[1]
    alone = weights(run(program, 1, EQUAL[:1])[0])["one worker"]
    both = run(program, 2, [*EQUAL, "statistics of one rank", "gradients are not averaged", "one ends"])
    for rank, lines in enumerate(both):
        found = weights(lines)
        for case in EQUAL:
            assert apart(found[case], alone) < BAR, (case, rank, apart(found[case], alone))
            assert found[case] == weights(both[0])[case], (case, "ranks differ")
        assert apart(found["statistics of one rank"], alone) > 1e-4
        assert "gradients differ between the 2 ranks" in line_of(lines, "gradients are not averaged")
    assert line_of(both[0], "one fails rank").endswith("rejected"), both[0]
    assert "no backward pass" in line_of(both[1], "one fails rank"), both[1]
    # Rank 1 has ended without a word.
    assert "another rank has failed, has ended" in line_of(both[0], "one ends rank 0 failed"), both[0]
    try:
        import torch  # noqa: F401
    except ImportError:
        print("SKIPPED: the weights of the Python package, as there is no torch")
    else:
        assert apart(alone, of_python()) < BAR, apart(alone, of_python())
    print("ranks.py: passed")


if __name__ == "__main__":
    main()
