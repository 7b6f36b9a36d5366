"""Helpers of the tests: one preconditioned step, and explicit Fisher matrices from autograd."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import warnings

import torch

import dkfac.torch as dkfac

EPS = torch.finfo(torch.float64).eps
EXACT = {"inverse_method": "eigen", "new_weight": 1.0, "norm_fisher": "full"}


def tree():
    """The root of the sources, also where the tests run from a copy."""
    return pathlib.Path(os.environ.get("DKFAC_TREE", pathlib.Path(__file__).resolve().parent.parent.parent))


def grads_of(model):
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


@contextlib.contextmanager
def told(share=False):
    """A list of the warnings of dkfac within; `share`: with those of a small share of parameters with curvature, which
    small networks with a layer to test have."""
    texts = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
    shares = re.compile(r"no parameter has curvature|trained parameters have (more )?curvature")
    texts += [str(w.message) for w in found if "[dkfac]" in str(w.message)
              and (share or not shares.search(str(w.message)))]


def precondition(model, loss, optimizer=None, **options):
    """Attaches, runs one step at rate 1, and returns raw gradients, preconditioned ones and the preconditioner.
    `loss`: a function of the model."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    kfac = dkfac.attach(model, optimizer, **options)
    optimizer.zero_grad()
    loss(model).backward()
    raw = grads_of(model)
    optimizer.step()
    return raw, grads_of(model), kfac


def precondition_random(model, loss, **options):
    """As precondition(), of random gradients V in place of those of the loss, which make the Fisher matrix alone.
    Returns gradients of the loss, V, its result and the preconditioner."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    kfac = dkfac.attach(model, optimizer, **options)
    loss(model).backward()
    raw = grads_of(model)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    random = grads_of(model)
    optimizer.step()
    return raw, random, grads_of(model), kfac


def vector(grads, names):
    return torch.cat([grads[name].reshape(-1) for name in names])


def damped_solve(rows, gradient, damping):
    """(1/n sum of outer products of the rows + damping I)^-1 gradient, by a dense solver."""
    fisher = rows.t() @ rows / rows.shape[0]
    return torch.linalg.solve(fisher + damping * torch.eye(len(gradient), dtype=gradient.dtype), gradient)


def tolerance(rows, damping, c=64):
    """c n eps times the condition number of F + damping I: the error of both solvers, relative to the result."""
    return c * rows.shape[1] * EPS * (1 + float(rows.pow(2).sum()) / rows.shape[0] / damping)


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


def run_python(code, *arguments, timeout=120, **environment):
    """Standard output of a Python program in another process."""
    env = dict(os.environ, **environment)
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=env, timeout=timeout, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
