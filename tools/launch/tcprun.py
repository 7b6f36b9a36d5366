#!/usr/bin/env python3
"""Starts a program as several ranks on this machine that meet over TCP, as mpirun does where there is no MPI.

Usage: tools/launch/tcprun.py -n RANKS [--bind-to none] [--grace SECONDS] COMMAND...
  DKFAC_MPIRUN=tools/launch/tcprun.py makes train_mpi.sh and supervise.sh use it.

INT, TERM, HUP and USR1 are passed on to every rank. Ranks that still run 15 seconds after one has failed, such as
frozen ones, are killed. The exit code is that of a rank that a signal ended (128 plus its number), else the first one
that is not 75 (a rank that only lost its peers), else that of the others.
"""
import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def prepare_rank():
    """In the child."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank trains on after a SIGKILL of this process.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def start(command, ranks):
    port = free_port()
    started = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ranks > 1 else {}
        # In a session of its own: a Ctrl-C that reached it twice, from the terminal too, would end it at once.
        started.append(subprocess.Popen(command, env={**os.environ, **variables}, preexec_fn=prepare_rank,
                                        start_new_session=True))
    return started


def code_of(codes):
    """The cause among the exit codes of ranks, in the order of their ends."""
    by_signal = [128 - code for code in codes if code < 0]
    failed = [code for code in codes if code > 0]
    return next(iter([*by_signal, *(code for code in failed if code != 75), *failed]), 0)


def wait(processes, grace):
    """The exit codes in the order of the ends, without those of ranks that had to be killed."""
    codes, deadline = [], None
    while processes:
        for process in [p for p in processes if p.poll() is not None]:
            processes.remove(process)
            codes.append(process.returncode)
            if process.returncode != 0 and deadline is None:
                deadline = time.monotonic() + grace
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.kill()
                process.wait()
            break
        time.sleep(0.02)
    return codes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, required=True, metavar="RANKS", dest="ranks")
    parser.add_argument("--bind-to", choices=["none"], help="as of mpirun; ranks are not bound")
    parser.add_argument("--grace", type=float, default=15, metavar="SECONDS",
                        help="given to the others once a rank has failed; longer than they wait for its reason")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.ranks < 1 or not args.command:
        parser.error("needs a positive number of ranks and a command")
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # Until all of them are there.
    try:
        processes = start(args.command, args.ranks)
    except OSError as error:
        sys.exit(f"tcprun.py: cannot start '{args.command[0]}': {error.strerror}")

    def pass_on(number, _):
        for process in processes:
            process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    sys.exit(code_of(wait(processes, args.grace)))


if __name__ == "__main__":
    main()
