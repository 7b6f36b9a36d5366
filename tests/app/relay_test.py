#!/usr/bin/env python3
"""Ranks over TCP with a relay between them (relay.py): what a slow network does is hidden, what a broken one does is an
error on every rank.

Environment as for cli_support.py.
"""
import collections
import unittest

import relay
from launch_test import Processes, free_port, torchrun


class Relayed(Processes):
    def setUp(self):
        super().setUp()
        self.assertEqual(self.dkfac(*self.args("threads", "--ranks", 2)).returncode, 0)

    def relayed(self, out, make, *more):
        """The ends of two ranks, and the relay between them."""
        port = free_port()
        between = relay.Relay(port, make)
        self.addCleanup(between.close)
        ends = self.finish(self.start(lambda rank, size, _: torchrun(rank, size, between.port if rank else port), 2,
                                      *self.args(out, *more)))
        self.assertEqual(between.connections, collections.Counter((relay.JOIN, relay.DATA, relay.CONTROL)))
        return ends, between

    def expect_trained(self, out, make):
        ends, between = self.relayed(out, make)
        for rank, end in enumerate(ends):
            self.assertEqual(end.returncode, 0, f"rank {rank}: {end.stderr}")
        self.expect_equal(out, "threads")
        return between

    def expect_failure(self, fault, at, sender, *parts):
        """Something happens to one byte that the calling or the called rank sends: an error on both."""
        out = f"{fault.__name__}-{at}-{sender}"
        network = lambda draw, sends: fault(draw, at) if sends == sender else relay.Calm(draw)
        ends, _ = self.relayed(out, network, "--set", "run.comm_timeout_s=5")
        for rank, end in enumerate(ends):
            self.expect_error(end, 75, *parts, rank=rank)
        self.assertEqual(self.result(out)["status"], "failed")

    def test_delays_and_fragments_are_hidden(self):
        calm = self.expect_trained("calm", lambda draw, _: relay.Calm(draw))
        slow = self.expect_trained("slow", lambda draw, _: relay.Slow(draw))
        self.assertGreater(slow.pieces, 2 * calm.pieces)

    def test_changed_bytes_are_an_error_on_both_ranks(self):
        for sender in (True, False):
            self.expect_failure(relay.Flips, 60_000, sender, f"what rank {int(sender)} sent has changed on its way")
        self.expect_failure(relay.Swaps, 90_000, True, "rank 1")

    def test_lost_bytes_are_an_error_on_both_ranks(self):
        self.expect_failure(relay.Loses, 60_000, True, "rank")
        self.expect_failure(relay.Doubles, 60_000, False, "rank")
        self.expect_failure(relay.Cuts, 60_000, True, "rank", "connection")


if __name__ == "__main__":
    unittest.main()
