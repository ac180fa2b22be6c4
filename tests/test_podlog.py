"""How a pod's log is put together: lines from bytes, repeats dropped, gaps found and mended. Without a cluster."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmark.events import LINE_LIMIT_BYTES
from stackmark.kubernetes.client import Cluster
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.lines import ApiLines, NodeLines, Record, event_number, stamped, unix_second
from stackmark.kubernetes.log.order import Gap, InOrder


def stamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"2026-11-15T12:{seconds // 60:02}:{seconds % 60:02}.{rest:09}Z"


def event(seq: int, rank: int = 0) -> str:
    return f'{{"event":"sample","seq":{seq},"rank":{rank},"t":1.0}}'


class Heard:
    """Who takes what a log hands on; `node` are the records of the node's own files, None where one may not read them."""

    def __init__(self, node: Sequence[Record] | None = None) -> None:
        self.lines: list[str] = []
        self.others: list[str] = []
        self.gaps: list[Gap] = []
        self.order = InOrder(self.lines.append, self.others.append, self._mend)
        self._node = node

    def read(self, records: Sequence[Record]) -> "Heard":
        """One answer of the API, as it would come from where we are."""
        since = self.order.seen.since
        self.order.begin()
        for record in records:
            if since is None or unix_second(record.second) >= unix_second(since):
                self.order.take(record)
        return self

    def _mend(self, gap: Gap, take: Callable[[Record], bool]) -> bool:
        self.gaps.append(gap)
        for record in self._node or ():
            if not take(record):
                break
        return self._node is not None


def log(*texts: str, from_s: int = 0, step_ns: int = 300_000_000) -> list[Record]:
    return [Record(stamp(from_s * 10**9 + number * step_ns), text) for number, text in enumerate(texts)]


def test_a_line_has_its_stamp_with_all_nine_digits() -> None:
    assert stamped(b"2026-11-15T12:30:09.5Z said") == Record("2026-11-15T12:30:09.500000000Z", "said")
    assert stamped(b"2026-11-15T12:30:09+02:00 said").stamp == "2026-11-15T12:30:09.000000000+02:00"
    assert stamped(b"2026-11-15T12:30:09.5Z ").text == ""


def test_the_second_of_a_stamp_is_what_the_api_takes_and_keeps_its_time_zone() -> None:
    record = stamped(b"2026-11-15T12:30:09.123456789+02:00 said")

    assert record.second == "2026-11-15T12:30:09+02:00"
    assert unix_second(record.second) == unix_second("2026-11-15T10:30:09Z")


def test_a_kubelets_own_words_have_no_stamp() -> None:
    assert stamped(b"unable to retrieve container logs for containerd://1").stamp == ""


@given(st.lists(st.integers(1, 40), max_size=30), st.lists(st.sampled_from([0, 1, 5, 70_000, 140_000]), max_size=4))
def test_lines_are_the_same_whichever_way_their_bytes_come(cuts: list[int], lengths: list[int]) -> None:
    data = b"".join(f"{stamp(n)} {'x' * length}\n".encode() for n, length in enumerate(lengths)) + b"half"
    whole = ApiLines()
    expected = [*whole.feed(data), *whole.finish()]
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut * 997])
        at += cut * 997
    lines = ApiLines()
    got = [record for piece in [*pieces, data[at:]] for record in lines.feed(piece)]

    assert [*got, *lines.finish()] == expected
    assert "".join(record.text for record in expected) == "x" * sum(lengths) + "half"


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    lines = ApiLines()
    pieces = [record for _ in range(64) for record in lines.feed(b"y" * 65536)]

    assert len(pieces) >= 60
    assert max(len(record.text) for record in pieces) <= LINE_LIMIT_BYTES


def test_the_parts_of_a_line_in_the_runtimes_file_are_put_together_by_stream() -> None:
    lines = NodeLines()
    data = (
        b"2026-11-15T12:30:09.1Z stdout P one \n2026-11-15T12:30:09.2Z stderr F between\n"
        b"2026-11-15T12:30:09.3Z stdout F two\nno log line\n2026-11-15T12:30:09.4Z stdout F \n"
    )

    assert [(record.stream, record.text, record.stamp[20:22]) for record in lines.feed(data)] == [
        ("stderr", "between", "20"),
        ("stdout", "one two", "10"),
        ("stdout", "", "40"),
    ]


@pytest.mark.parametrize(
    "text", ['{"event":', '{"event":"x"}', '{"event":"x","seq":"1"}', '{"event":"x","seq":-1}', '{"event":"x","seq":true}',
             '{"event":"x","seq":1.5}', '{"event":[' * 5000, '{"event":"x","seq":1,"rank":null}']
)  # fmt: skip
def test_what_begins_as_an_event_and_is_none_has_no_number(text: str) -> None:
    assert event_number(text) is None


def test_lines_that_come_again_are_dropped() -> None:
    whole = log(event(0), "a", event(1), "b", event(2), "c", event(3), "d")
    heard = Heard().read(whole[:5]).read(whole[:5]).read(whole)

    assert heard.lines == [event(number) for number in range(4)]
    assert heard.others == ["a", "b", "c", "d"]


def test_two_equal_lines_of_one_nanosecond_are_two_lines() -> None:
    whole = [Record(stamp(5), "same")] * 3
    heard = Heard().read(whole[:2]).read(whole)

    assert heard.others == ["same"] * 3


# A log as runtimes write it: stamps that repeat, stand still, and are out of order by a little between the two streams.
WRITTEN = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 40, 10**8, 10**9, 3 * 10**9]), st.sampled_from("abE")), max_size=60
)


@given(WRITTEN, st.lists(st.integers(0, 60), max_size=8))
def test_whatever_is_cut_off_and_read_again_each_line_comes_once(
    written: list[tuple[int, str]], cuts: list[int]
) -> None:
    now, seq, whole = 10**9, 0, []
    for step, kind in written:
        now += step
        whole.append(Record(stamp(now - (7 if kind == "b" else 0)), event(seq) if kind == "E" else kind))
        seq += kind == "E"
    heard = Heard()
    for cut in sorted(cuts):
        heard.read(whole[:cut])
    heard.read(whole)

    assert heard.lines == [record.text for record in whole if record.text not in "ab"]
    assert heard.others == [record.text for record in whole if record.text in "ab"]
    assert heard.gaps == []


def test_what_was_rotated_away_comes_from_the_nodes_files() -> None:
    whole = log(*(text for seq in range(40) for text in (event(seq), f"err {seq}")))
    heard = Heard(node=whole).read(whole[:20]).read(whole[50:])

    assert heard.lines == [event(seq) for seq in range(40)]
    assert heard.others == [f"err {seq}" for seq in range(40)]
    assert heard.order.mended == 30
    assert not heard.order.torn


def test_lines_that_are_no_events_are_missed_too_when_a_log_was_rotated() -> None:
    whole = log(*(f"err {number}" for number in range(40)))
    heard = Heard(node=whole).read(whole[:10]).read(whole[30:])

    assert heard.others == [f"err {number}" for number in range(40)]


def test_a_log_whose_beginning_was_rotated_away_before_the_first_look_is_mended() -> None:
    whole = log(*(text for seq in range(40) for text in (f"err {seq}", event(seq))))
    heard = Heard(node=whole).read(whole[40:])

    assert heard.lines == [event(seq) for seq in range(40)]
    assert sorted(heard.others) == sorted(f"err {seq}" for seq in range(40))


def test_a_log_that_was_rotated_empty_is_noticed_at_its_end() -> None:
    whole = log(*map(event, range(6)))
    heard = Heard(node=whole).read(whole[:3]).read([])
    heard.order.read_to_end()

    assert heard.lines == [event(seq) for seq in range(6)]


def test_without_the_right_to_the_nodes_files_the_missing_events_are_named() -> None:
    whole = log(*map(event, range(40)))
    heard = Heard().read(whole[:10]).read(whole[30:])

    assert re.findall(r"\d+", heard.order.lost_of()) == ["10", "29"]
    assert heard.order.torn
    assert heard.lines == [event(seq) for seq in (*range(10), *range(30, 40))]


def test_a_forged_number_that_was_seen_is_dropped_as_a_repeat() -> None:
    heard = Heard().read(log(event(0), event(1), event(2), '{"event":"result","seq":1,"forged":true}', event(3)))

    assert heard.lines == [event(seq) for seq in range(4)]


def test_a_forged_number_of_the_future_hides_no_real_event() -> None:
    forged = '{"event":"result","seq":999999}'
    heard = Heard(node=[]).read(log(event(0), forged, event(1), event(2)))

    assert heard.lines == [event(0), forged, event(1), event(2)]


def test_somebody_who_forges_all_the_time_does_not_make_us_read_the_node_all_the_time() -> None:
    heard = Heard(node=[]).read(log(*(f'{{"event":"x","seq":{10**6 + 10 * number}}}' for number in range(200))))

    assert len(heard.gaps) <= 6


def test_half_an_event_is_handed_on_for_the_lab_to_judge() -> None:
    heard = Heard(node=[]).read(log(event(0), '{"event":"steps","se', event(1)))
    assert heard.lines == [event(0), '{"event":"steps","se', event(1)]

    last = Heard(node=[]).read(log(event(0), '{"event":"steps","se'))
    last.order.finish()
    assert last.lines == [event(0), '{"event":"steps","se']


class EndedPod:
    """What a cluster answers about a pod that has ended, whose log grows with each reading."""

    def __init__(self, *logs: bytes) -> None:
        self.logs = list(logs)

    def get(self, _path: str) -> dict[str, Any]:
        ended = {
            "name": "worker",
            "state": {"terminated": {"exitCode": 0, "startedAt": stamp(0), "finishedAt": stamp(1)}},
        }
        return {
            "metadata": {"uid": "u"},
            "spec": {"containers": [{"name": "worker"}]},
            "status": {"phase": "Succeeded", "containerStatuses": [ended]},
        }

    def follow(self, _path: str, *, opened: Callable[[Callable[[], None]], None], **_query: object) -> Iterator[bytes]:
        opened(lambda: None)
        yield self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]


def test_a_log_that_ends_within_an_event_is_read_again() -> None:
    whole = b"".join(f"{stamp(number)} {event(number)}\n".encode() for number in range(4))
    half = whole[: whole.rindex(b'"rank"')]
    cluster, lines = EndedPod(half, half, whole), list[str]()
    end = PodLog(cast(Cluster, cluster), "default", "pod").follow(lines.append, lines.append)
    assert lines == [event(number) for number in range(4)]
    assert (end.how, end.complete) == ("ended", True)


def test_a_log_that_grows_after_the_end_of_its_container_is_read_to_the_end() -> None:
    parts = [f"{stamp(number)} {event(number)}\n".encode() for number in range(4)]
    cluster, lines = EndedPod(parts[0], b"".join(parts[:3]), b"".join(parts)), list[str]()
    end = PodLog(cast(Cluster, cluster), "default", "pod").follow(lines.append, lines.append)
    assert lines == [event(number) for number in range(4)]
    assert (end.how, end.complete) == ("ended", True)


def test_a_log_that_stays_cut_within_an_event_is_handed_on_as_it_is() -> None:
    half = f"{stamp(0)} {event(0)}\n{stamp(1)} {event(1)[:20]}".encode()
    lines = list[str]()
    PodLog(cast(Cluster, EndedPod(half)), "default", "pod").follow(lines.append, lines.append, poll_s=0.01)
    assert lines == [event(0), event(1)[:20]]


def test_the_ruins_of_an_event_that_the_node_has_whole_are_no_event() -> None:
    seen = log(event(0), f"{event(1)[:20]}somebody's warning", event(1)[20:], event(2))
    node = log(event(0), event(1), "somebody's warning", event(2))
    heard = Heard(node=node).read(seen)

    assert heard.lines == [event(0), event(1), event(2)]


def test_an_event_that_stands_behind_a_part_of_another_line_is_found() -> None:
    heard = Heard().read(log(event(0), "y" * 16384 + event(1), "rest of y", event(2)))

    assert heard.lines == [event(0), event(1), event(2)]
    assert heard.order.lost_of() == ""


def test_a_copy_of_an_event_in_somebodys_line_is_not_taken_for_it() -> None:
    heard = Heard().read(log(event(0), f"about to write {event(1)}", event(1), event(2)))

    assert heard.lines == [event(0), event(1), event(2)]
    assert heard.others == [f"about to write {event(1)}"]


def test_each_rank_counts_for_itself() -> None:
    heard = Heard().read(log(event(0), event(0, 1), event(1, 1), event(1), event(1, 1)))

    assert [json.loads(line)["rank"] for line in heard.lines] == [0, 1, 1, 0]


def test_what_is_remembered_of_a_long_log_stays_small() -> None:
    heard = Heard()
    heard.order.begin()

    def lines() -> Iterator[Record]:
        for number in range(50_000):
            yield Record(stamp(number * 10_000_000), f"line {number}")

    for record in lines():
        heard.order.take(record)

    assert sum(map(len, heard.order.seen._seconds.values())) <= 400
