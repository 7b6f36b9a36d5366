#!/usr/bin/env python3
"""Ranks over TCP with a relay between them (relay.py): what a slow network does is hidden, what a broken one does is an
error on every rank.

Environment as for cli_support.py.
"""
import collections
import unittest

import relay
from launch_test import Processes, free_port, torchrun

SECRET = {"DKFAC_SECRET": "of this job alone"}


class Relayed(Processes):
    def begin(self, out, make, *more, secret=None):
        """Two ranks that have started, and the relay between them."""
        port = free_port()
        between = relay.Relay(port, make)
        self.addCleanup(between.close)
        return self.start(lambda rank, size, _: torchrun(rank, size, between.port if rank else port) | (secret or {}), 2,
                          *self.args(out, *more)), between

    def ends(self, processes, between):
        done = self.finish(processes)
        self.assertEqual(between.connections, collections.Counter((relay.JOIN, relay.DATA, relay.CONTROL)))
        return done

    def expect_trained(self, out, make, secret=None):
        processes, between = self.begin(out, make, secret=secret)
        for rank, end in enumerate(self.ends(processes, between)):
            self.assertEqual(end.returncode, 0, f"rank {rank}: {end.stderr}")
        self.expect_equal(out, "threads")
        return between

    def expect_failures(self, *cases):
        """Of (fault, at, sender, secret, parts): something happens to one byte that the calling or the called rank
        sends, which is an error on both. All are under way at once, as most of their time is that of a limit."""
        begun = []
        for fault, at, sender, secret, *parts in cases:
            out = f"{fault.__name__}-{at}-{sender}-{secret is not None}"
            network = lambda draw, sends, f=fault, a=at, s=sender: f(draw, a) if sends == s else relay.Calm(draw)
            begun.append((out, parts, *self.begin(out, network, "--set", "run.comm_timeout_s=5", secret=secret)))
        for out, parts, processes, between in begun:
            with self.subTest(out):
                for rank, end in enumerate(self.ends(processes, between)):
                    self.expect_error(end, 75, *parts, rank=rank)
                self.assertEqual(self.result(out)["status"], "failed")

    def secret(self):
        return SECRET if "libcrypto  yes" in self.dkfac("info").stdout else None

    def test_delays_and_fragments_are_hidden(self):
        self.assertEqual(self.dkfac(*self.args("threads", "--ranks", 2)).returncode, 0)
        calm = self.expect_trained("calm", lambda draw, _: relay.Calm(draw))
        slow = self.expect_trained("slow", lambda draw, _: relay.Slow(draw), self.secret())
        self.assertGreater(slow.pieces, 2 * calm.pieces)

    def test_changed_bytes_are_an_error_on_both_ranks(self):
        ways = [(True, None), (False, None)] + [(True, SECRET)] * (self.secret() is not None)
        self.expect_failures(*((relay.Flips, 60_000, sender, secret, f"what rank {int(sender)} sent has changed on its way")
                               for sender, secret in ways), (relay.Swaps, 90_000, True, None, "rank 1"))

    def test_lost_bytes_are_an_error_on_both_ranks(self):
        self.expect_failures((relay.Loses, 60_000, True, None, "rank"), (relay.Doubles, 60_000, False, None, "rank"),
                             (relay.Cuts, 60_000, True, None, "rank", "connection"))


if __name__ == "__main__":
    unittest.main()
