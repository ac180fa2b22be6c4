"""A worker's stream of events: read, judged, and judged again as it is when a stored run is shown."""

from pathlib import Path

from fuzz.harness import Target, Try
from stackmark.errors import StreamError
from stackmark.events import Stream, gathered_facts
from stackmark.experiments.judging import judge, judged_again, read_stored, setup_parts
from stackmark.places.place import Outcome


def _prepare(_folder: Path) -> Try:
    return _try


def _try(data: bytes) -> None:
    lines = data.decode("utf-8", "replace").split("\n")
    stream, broken = Stream(), None
    for line in lines:
        try:
            stream.feed(line)
        except StreamError as error:
            broken = error
            break
    end = judge(stream, Outcome(0), broken)
    assert end.model_dump_json(), "what is stored can be written down"
    stored = read_stored(lines)
    judged_again(stored.stream)
    setup_parts(stored.stream.events)
    gathered_facts(stored.stream.events)


TARGET = Target("stream", _prepare)
