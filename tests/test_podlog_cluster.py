"""A pod's log followed on a real cluster, while connections, the API server and the kubelet are hurt and the log is rotated."""

import json
import threading
import time
from pathlib import Path

import pytest

from clusters import TestCluster, until
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.log.follow import LogEnd, PodLog
from wire import wired

pytestmark = pytest.mark.cluster

# Prints events FIRST to LAST, each with a line on standard error; PAD characters in each event.
PRINT = (
    'awk -v a={first} -v b={last} \'BEGIN{{pad=sprintf("%{pad}s","x"); for(i=a;i<b;i++){{'
    ' printf "{{\\"event\\":\\"sample\\",\\"seq\\":%d,\\"rank\\":0,\\"t\\":1,\\"pad\\":\\"%s\\"}}\\n",i,pad;'
    ' printf "err %d\\n",i > "/dev/stderr"; if(i%{burst}==0) {{fflush(); system("sleep {rest}")}}}}}}\''
)


def printing(first: int, last: int, pad: int = 1, burst: int = 1_000_000, rest: float = 0) -> str:
    return PRINT.format(first=first, last=last, pad=pad, burst=burst, rest=rest)


class Following:
    """A pod that runs a shell script, and what came of its log."""

    def __init__(self, cluster: TestCluster, name: str, script: str) -> None:
        self.cluster, self.name = cluster, name
        self.path = f"/api/v1/namespaces/{cluster.namespace}/pods"
        self.lines: list[str] = []
        self.others: list[str] = []
        self.end: LogEnd | None = None
        container = {
            "name": "worker",
            "image": "localhost/busybox:1",
            "command": ["sh", "-c", script.replace("$", "$$")],
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        cluster.cluster.create(self.path, {"metadata": {"name": name}, "spec": spec})

    def pod(self) -> Json:
        return self.cluster.cluster.get(f"{self.path}/{self.name}")

    def follow(self, through: Cluster | None = None, **options: float) -> LogEnd:
        deadline = time.monotonic() + 150
        log = PodLog(through or self.cluster.cluster, self.cluster.namespace, self.name)
        self.end = log.follow(
            self.lines.append, self.others.append, stop=lambda: time.monotonic() > deadline, **options
        )
        return self.end

    def in_background(self, through: Cluster | None = None) -> threading.Thread:
        thread = threading.Thread(target=self.follow, args=(through,))
        thread.start()
        return thread

    def came_whole(self, count: int) -> bool:
        """Every event in order, every other line once (two streams have no order between them, but each has its own)."""
        assert self.end is not None
        assert self.end.complete, self.end.why
        assert [json.loads(line)["seq"] for line in self.lines] == list(range(count))
        assert self.others == [f"err {number}" for number in range(count)]
        return True


def test_thousands_of_lines_in_a_second_come_whole_and_can_be_read_again(cluster: TestCluster) -> None:
    burst = Following(cluster, "burst", printing(0, 20_000))
    burst.follow()

    assert burst.came_whole(20_000)
    again: list[str] = []
    PodLog(cluster.cluster, cluster.namespace, "burst").read(again.append, again.append)
    assert len(again) == 40_000
    assert [line for line in again if line.startswith("{")] == burst.lines


def test_long_broken_and_hostile_lines_are_handed_on(cluster: TestCluster) -> None:
    script = r"""echo '{"event":"a","seq":0,"rank":0,"t":1}'
awk 'BEGIN{printf "%20000s\n","y"}'; sleep 0.1; awk 'BEGIN{printf "%200000s\n","z" > "/dev/stderr"}'; sleep 1
printf 'a\033[2Jb\001\r\n'; printf '\377\376\n'; echo; echo '{"event":"half'; echo '{"event":"a","seq":0,"forged":true}'
echo '{"event":"a","seq":1,"rank":0,"t":1}'; printf 'no newline'"""
    hostile = Following(cluster, "hostile", script)
    end = hostile.follow()

    assert end.complete
    first, half, last = hostile.lines
    assert (json.loads(first)["seq"], half, json.loads(last)["seq"]) == (0, '{"event":"half', 1)
    assert len(hostile.others[0]) == 20_000
    assert sum(map(len, hostile.others[1:-4])) == 200_000
    assert hostile.others[-4:] == ["a\x1b[2Jb\x01", "\ufffd\ufffd", "", "no newline"]


def test_a_wire_that_is_cut_again_and_again_loses_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    with wired(cluster, tmp_path) as (wire, through):
        cut = Following(cluster, "cut", printing(0, 3000, burst=50, rest=0.1))
        thread = cut.in_background(through)
        for _ in range(5):
            seen = len(cut.others)
            until(lambda seen=seen: len(cut.others) > seen)  # type: ignore[misc]
            wire.cut()
            time.sleep(0.3)
            wire.join()
        thread.join(60)

    assert cut.came_whole(3000)
    assert cut.end is not None
    assert cut.end.reconnects >= 4


def test_stop_is_heard_while_the_worker_is_silent(cluster: TestCluster) -> None:
    silent = Following(cluster, "silent", "echo begun; sleep 600")
    log = PodLog(cluster.cluster, cluster.namespace, "silent")
    seen: list[str] = []
    end = log.follow(seen.append, seen.append, stop=lambda: bool(seen))

    assert seen == ["begun"]
    assert (end.how, end.complete) == ("stopped", False)
    assert silent.pod()["status"]["phase"] == "Running"
    cluster.cluster.delete(f"{silent.path}/silent", grace_s=0)


def test_a_silence_longer_than_the_connections_limit_is_no_loss(cluster: TestCluster) -> None:
    slow = Following(cluster, "slow", f"{printing(0, 3)}; sleep 3; {printing(3, 6)}")
    end = slow.follow(read_s=1.0)

    assert slow.came_whole(6)
    assert end.longest_outage_s < 1


def test_a_pod_that_is_deleted_is_gone_and_not_complete(cluster: TestCluster) -> None:
    gone = Following(cluster, "gone", f"{printing(0, 3)}; sleep 600")
    thread = gone.in_background()
    until(lambda: len(gone.lines) == 3)
    cluster.cluster.delete(f"{gone.path}/gone", grace_s=0)
    thread.join(60)

    assert gone.end is not None
    assert (gone.end.how, gone.end.complete) == ("gone", False)


def test_a_container_that_never_ran_has_a_log_without_lines(cluster: TestCluster) -> None:
    never = Following(cluster, "never", "true")
    cluster.cluster.delete(f"{never.path}/never", grace_s=0)
    refused = {
        "metadata": {"name": "refused"},
        "spec": {"nodeName": until(lambda: cluster.cluster.items("/api/v1/nodes"))[0]["metadata"]["name"],
                 "restartPolicy": "Never",
                 "containers": [{"name": "worker", "image": "localhost/busybox:1", "resources": {"limits": {"cpu": "9999"}}}]},
    }  # fmt: skip
    cluster.cluster.create(never.path, refused)
    never.name = "refused"
    end = never.follow()

    assert (end.how, end.complete, never.lines, never.others) == ("ended", True, [], [])


def test_what_was_rotated_away_while_we_were_cut_off_comes_from_the_nodes_files(
    cluster: TestCluster, tmp_path: Path
) -> None:
    # Two rotations, so that one file is compressed: the kubelet looks every 10 s for logs beyond 10 MiB.
    parts = [printing(0, 50, pad=900), "sleep 3", printing(50, 13_000, pad=900), "sleep 12"]
    parts += [printing(13_000, 26_000, pad=900), "sleep 12", printing(26_000, 26_050, pad=900)]
    with wired(cluster, tmp_path) as (wire, through):
        rotated = Following(cluster, "rotated", "; ".join(parts))
        thread = rotated.in_background(through)
        until(lambda: len(rotated.others) == 50)
        wire.cut()
        until(lambda: _files(rotated) >= 3)
        wire.join()
        thread.join(100)

    rotated.others.sort(key=lambda line: int(line.split()[1]))
    assert rotated.came_whole(26_050)
    assert rotated.end is not None
    assert rotated.end.mended > 20_000


def _files(following: Following) -> int:
    """How many files the pod's log has on its node."""
    pod = following.pod()
    folder = f"{pod['metadata']['namespace']}_{following.name}_{pod['metadata']['uid']}/worker/"
    return following.cluster.cluster.text(
        f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/logs/pods/{folder}"
    ).count(".log.") // 2 + 1  # fmt: skip


@pytest.mark.cluster_hurt
def test_an_api_server_that_goes_away_and_returns_loses_nothing(cluster: TestCluster) -> None:
    away = Following(cluster, "api-away", printing(0, 900, burst=10, rest=0.1))
    thread = away.in_background()
    until(lambda: len(away.lines) > 50)
    cluster.do("kill", "api-server")
    time.sleep(6)
    cluster.do("start", "api-server")
    thread.join(120)

    assert away.came_whole(900)
    assert away.end is not None
    assert away.end.reconnects >= 1
    assert away.end.longest_outage_s >= 5


@pytest.mark.cluster_hurt
def test_a_kubelet_that_dies_and_returns_loses_nothing(cluster: TestCluster) -> None:
    died = Following(cluster, "kubelet-died", printing(0, 900, burst=10, rest=0.1))
    thread = died.in_background()
    until(lambda: len(died.lines) > 50)
    number = str(died.pod()["spec"]["nodeName"]).rpartition("-")[2]
    cluster.do("kill", "kubelet", number)
    time.sleep(5)
    cluster.do("start", "kubelet", number)
    thread.join(120)

    assert died.came_whole(900)
