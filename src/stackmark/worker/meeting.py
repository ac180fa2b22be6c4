"""Wait until the agents of all nodes are there, before any of them starts its ranks.

Pods of one group start minutes apart: one node pulls the image, another has it. A rank that waits for others gives up after two
minutes (process_group.py), and an agent can wait as long as the place lets it. So the agents meet first, at the address where the
ranks' store will be: the first node's agent listens there already, and hands the socket to rank 0 afterwards.

The first node's name may not be known yet when another one asks: a Service learns of a pod within a second.
"""

import selectors
import socket
import time
from contextlib import suppress

# What an agent says when it comes, and what it hears when all are there.
_HERE, _GO = "stackmark-node", b"go\n"
_LONGEST_WORD = 64
_AGAIN_S, _AGAIN_MOST_S, _CONNECT_S = 0.1, 2.0, 5.0


def receive_nodes(listening: socket.socket, others: int) -> None:
    """Wait for the agents of the other nodes, which are numbered from 1, and let all of them go on at once."""
    here: dict[int, socket.socket] = {}
    opened: list[socket.socket] = []
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ, listening)
        while len(here) < others:
            for key, _ in waiting.select():
                one: socket.socket = key.data
                if one is listening:
                    came, _ = listening.accept()
                    came.setblocking(False)
                    opened.append(came)
                    waiting.register(came, selectors.EVENT_READ, came)
                elif (number := _number(one)) is not None and 0 < number <= others:
                    here[number] = one
                else:
                    # It left again, and may come back, or it is somebody else.
                    waiting.unregister(one)
                    one.close()
                    here = {number: other for number, other in here.items() if other is not one}
    for one in here.values():
        with suppress(OSError):
            one.setblocking(True)
            one.sendall(_GO)
    for one in opened:
        one.close()


def join_nodes(address: str, port: int, number: int) -> None:
    """Wait until the first node's agent can be reached and says that all are there."""
    pause_s = _AGAIN_S
    while True:
        with suppress(OSError), socket.create_connection((address, port), _CONNECT_S) as first:
            first.settimeout(None)
            first.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            first.sendall(f"{_HERE} {number}\n".encode())
            if first.recv(len(_GO)) == _GO:
                return
        time.sleep(pause_s)
        pause_s = min(_AGAIN_MOST_S, pause_s * 1.5)


def _number(came: socket.socket) -> int | None:
    """The number in what an agent says; None where the connection has ended or says something else."""
    try:
        word, _, number = came.recv(_LONGEST_WORD).decode("ascii", "replace").strip().partition(" ")
    except OSError:
        return None
    return int(number) if word == _HERE and number.isdecimal() else None
