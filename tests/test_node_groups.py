"""A group of ranks on several nodes: an agent on each, which starts that node's share."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from rank_tricks import install, ranked
from refusing import refused
from stackmark.events import Failed, Hello, Result, Stream
from stackmark.ranks import NODE_RANKS_VARIABLE, NodeShare, Rank, own_share
from stackmark.spec import SPEC_VARIABLE, Request, Scalar, Spec, Task
from stackmark.worker.meeting import join_nodes, receive_nodes
from worker_process import environment


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("ranked")))


def agents(task: Task, env: dict[str, str], nodes: int, each: int, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """As a place starts them: one on each node, with the same task."""
    shared = {SPEC_VARIABLE: task.model_dump_json(), NODE_RANKS_VARIABLE: str(each), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), **more}
    for node in range(nodes):
        yield subprocess.Popen(
            [sys.executable, "-P", "-m", "stackmark.worker"], env={**env, **shared, "JOB_COMPLETION_INDEX": str(node)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def outputs(processes: Sequence["subprocess.Popen[str]"]) -> list[list[str]]:
    return [process.communicate(timeout=60)[0].splitlines() for process in processes]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def merged(lines: Sequence[Sequence[str]]) -> Stream:
    stream = Stream()
    for line in (line for of_node in lines for line in of_node):
        stream.feed(line)
    return stream


def job(spec: Spec) -> Task:
    return Task(do="run", spec=spec, lifeline=False)


def test_the_streams_of_the_nodes_are_one_run(env: dict[str, str]) -> None:
    lines = outputs(list(agents(job(ranked("calm", ranks=4)), env, nodes=2, each=2)))
    assert [{json.loads(line)["rank"] for line in of_node} for of_node in lines] == [{0, 1}, {2, 3}]
    stream = merged(lines)
    assert isinstance(stream.ended(), Result)
    assert {event.ranks for event in stream.events if isinstance(event, Hello)} == {4}


def test_a_node_that_is_missing_leaves_the_run_without_an_end(env: dict[str, str]) -> None:
    lines = outputs(list(agents(job(ranked("calm", ranks=4)), env, nodes=2, each=2)))
    assert merged(lines[:1]).ended() is None


def test_a_group_whose_ranks_do_not_divide_is_refused_by_each_node(env: dict[str, str]) -> None:
    for lines in outputs(list(agents(job(ranked("calm", ranks=3)), env, nodes=1, each=2))):
        closed = merged([lines]).ended()
        assert isinstance(closed, Failed)
        assert closed.kind == "bad_parameter"


def test_nodes_do_not_resolve_a_request_one_by_one(env: dict[str, str]) -> None:
    params: dict[str, Scalar] = {"steps": 3}
    task = Task(do="run", request=Request(workload="ranked/calm", params=params, ranks=2), lifeline=False)
    (lines,) = outputs(list(agents(task, env, nodes=1, each=1)))
    closed = merged([lines]).ended()
    assert isinstance(closed, Failed)
    assert closed.kind == "bad_parameter"


def test_each_node_has_its_share() -> None:
    share = own_share({NODE_RANKS_VARIABLE: "2", "JOB_COMPLETION_INDEX": "1"}, 6)
    assert share == NodeShare(2, 2, 6)
    assert share.ranks == [Rank(2, 6, 0, 2), Rank(3, 6, 1, 2)]
    assert own_share({NODE_RANKS_VARIABLE: "1", "SLURM_NODEID": "2"}, 3) == NodeShare(2, 1, 3)
    # Without a place that says so, a Job's index is somebody else's.
    assert own_share({"JOB_COMPLETION_INDEX": "1"}, 6) == NodeShare(0, 6, 6)


@pytest.mark.parametrize(
    "environ",
    [
        {NODE_RANKS_VARIABLE: "4", "JOB_COMPLETION_INDEX": "0"},
        {NODE_RANKS_VARIABLE: "0", "JOB_COMPLETION_INDEX": "0"},
        {NODE_RANKS_VARIABLE: "2"},
        {NODE_RANKS_VARIABLE: "2", "JOB_COMPLETION_INDEX": "3"},
        {NODE_RANKS_VARIABLE: "two", "JOB_COMPLETION_INDEX": "0"},
    ],
)
def test_a_share_that_cannot_be_is_refused(environ: dict[str, str]) -> None:
    with refused():
        own_share(environ, 6)


def test_a_port_that_is_taken_is_a_sentence(env: dict[str, str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        (lines,) = outputs(list(agents(job(ranked("calm", ranks=2)), env, nodes=1, each=1, MASTER_PORT=port)))
    closed = merged([lines]).ended()
    assert isinstance(closed, Failed)
    assert (closed.kind, port in closed.message) == ("bad_parameter", True)


# The agents meet before their ranks start


def test_no_node_goes_on_before_the_last_one_is_there() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    gone_on = list[int]()

    def node(number: int) -> None:
        join_nodes("127.0.0.1", port, number)
        gone_on.append(number)

    threads = [threading.Thread(target=node, args=(number,), daemon=True) for number in (1, 2, 3)]
    first = threading.Thread(target=receive_nodes, args=(listening, 3), daemon=True)
    first.start()
    for thread in threads[:2]:
        thread.start()
    # One that is not a node is not counted; it is read before the third.
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    assert gone_on == []
    threads[2].start()
    for thread in (*threads, first):
        thread.join(10)
    listening.close()
    assert sorted(gone_on) == [1, 2, 3]


def test_a_node_waits_for_a_first_one_that_does_not_listen_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    early = threading.Thread(target=join_nodes, args=("127.0.0.1", port, 1), daemon=True)
    early.start()
    time.sleep(0.3)
    assert early.is_alive()
    with socket.create_server(("127.0.0.1", port)) as listening:
        receive_nodes(listening, 1)
        early.join(10)
    assert not early.is_alive()
