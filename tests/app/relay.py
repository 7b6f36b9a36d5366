"""A relay between ranks that meet over TCP, which does to their bytes what networks do.

It knows two messages of dkfac (src/comm/transport/tcp_mesh.cpp): in the list of addresses that rank 0 sends it exchanges
each port for one of its own, so that all connections pass through it, and a handshake says what a connection is for.
Where ranks have a secret, it passes on their proofs of it.
"""
import collections
import math
import random
import socket
import struct
import threading
import time

HANDSHAKE, PURPOSE_AT, HAS_SECRET_AT = 80, 36, 40
REPLY, PROOF = 48, 32
JOIN, DATA, CONTROL = range(3)
BOOK_HEAD, BOOK_ENTRY = 16, 20  # The port is in the last four bytes of an entry.
MOST = 1 << 16


class Calm:
    """A network that passes on what it gets. One object for each direction of a connection of collectives."""

    def __init__(self, draw):
        self.draw = draw

    def pieces(self, data):
        """What is sent in place of `data`; None ends the connection, with a reset."""
        yield data


class Slow(Calm):
    """Cuts at random places, also within headers, and delays by random times: connections overtake each other."""

    def pieces(self, data):
        while data:
            size = int(math.exp(self.draw.uniform(0, math.log(MOST))))
            if self.draw.random() < 0.2:
                time.sleep(self.draw.uniform(0, 0.004))
            yield data[:size]
            data = data[size:]


class Once(Calm):
    """Does something to the bytes at one place of the stream."""

    def __init__(self, draw, at):
        super().__init__(draw)
        self.at, self.passed = at, 0

    def pieces(self, data):
        here = self.at - self.passed
        self.passed += len(data)
        if not 0 <= here < len(data) - 1:
            yield data
            return
        yield from self.damage(data[:here], data[here:])


class Flips(Once):
    """One bit is another."""

    def damage(self, before, after):
        yield before + bytes([after[0] ^ 1 << self.draw.randrange(8)]) + after[1:]


class Loses(Once):
    """A byte is missing, and the others move up."""

    def damage(self, before, after):
        yield before + after[1:]


class Doubles(Once):
    """A byte comes twice."""

    def damage(self, before, after):
        yield before + after[:1] + after


class Swaps(Once):
    """Two parts come in the other order."""

    def damage(self, before, after):
        half = len(after) // 2
        yield before + after[half:] + after[:half]


class Cuts(Once):
    """Bytes are missing, and the connection is reset."""

    def damage(self, before, after):
        yield before
        yield None


class Relay:
    """In front of rank 0 at `port`; the others take `self.port` for it. `make(draw, sender)`: the network for bytes
    that a caller (sender True) or the rank that it calls sends."""

    def __init__(self, port, make, seed=1):
        self.make, self.draw = make, random.Random(seed)
        self.connections, self.sockets, self.lock = collections.Counter(), [], threading.Lock()
        self.pieces = 0
        self.port = self.listen(port)

    def listen(self, port):
        """The port at which connections for that port of a rank are taken."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.sockets.append(listener)
        threading.Thread(target=self.accept, args=(listener, port), daemon=True).start()
        return listener.getsockname()[1]

    def accept(self, listener, port):
        while True:
            try:
                caller = listener.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self.connect, args=(caller, port), daemon=True).start()

    def connect(self, caller, port):
        called = self.reach(port)
        for end in (caller, called):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            handshake = exactly(caller, HANDSHAKE)
            called.sendall(handshake)
            purpose = struct.unpack_from("=I", handshake, PURPOSE_AT)[0]
            if struct.unpack_from("=I", handshake, HAS_SECRET_AT)[0]:
                for source, target, size in ((called, caller, REPLY), (caller, called, PROOF), (called, caller, REPLY)):
                    target.sendall(exactly(source, size))
            if purpose == JOIN:
                size = struct.unpack_from("=I", handshake, PURPOSE_AT - 8)[0]
                caller.sendall(self.through_here(exactly(called, BOOK_HEAD + BOOK_ENTRY * size)))
        except OSError:
            caller.close()
            called.close()
            return
        with self.lock:
            self.connections[purpose] += 1
            self.sockets += [caller, called]
            networks = [(self.make if purpose == DATA else lambda draw, _: Calm(draw))(
                random.Random(self.draw.random()), sender) for sender in (True, False)]
        for source, target, network in ((caller, called, networks[0]), (called, caller, networks[1])):
            threading.Thread(target=self.carry, args=(source, target, network), daemon=True).start()

    def reach(self, port):
        """A connection to a rank, which may not listen yet."""
        for _ in range(6000):
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                time.sleep(0.01)
        raise TimeoutError(f"no process listens at port {port}")

    def through_here(self, book):
        changed = bytearray(book)
        for at in range(BOOK_HEAD + BOOK_ENTRY - 4, len(book), BOOK_ENTRY):
            struct.pack_into("=I", changed, at, self.listen(struct.unpack_from("=I", book, at)[0]))
        return bytes(changed)

    def carry(self, source, target, network):
        try:
            while data := source.recv(MOST):
                for piece in network.pieces(data):
                    if piece is None:
                        for end in (source, target):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            end.close()
                        return
                    target.sendall(piece)
                    with self.lock:
                        self.pieces += 1
            target.shutdown(socket.SHUT_WR)
        except OSError:  # One side has ended, which the other is told by the end of its connection.
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        for one in self.sockets:
            one.close()


def exactly(source, size):
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data
