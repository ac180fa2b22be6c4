"""What `baseline save`, `list` and `delete` do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from pydantic import JsonValue

from stackmark.api.options import repeatable
from stackmark.cli.saying import print_json, say
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit
from stackmark.experiments.arms import place_of
from stackmark.experiments.baseline import (
    ADVICE,
    ENOUGH,
    HeldWorkload,
    SeriesOptions,
    SeriesResult,
    held_by,
    held_like,
    held_so_far,
    parts_in,
    save_again,
    save_new,
    save_stored,
)
from stackmark.experiments.cleaning import clean_up
from stackmark.ledger import baselines
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.show.live import watching
from stackmark.show.safe import safe_line
from stackmark.show.terminal import Column, print_table, standard_output
from stackmark.spec import Request
from stackmark.units import counted, say_moment, say_rate

LIST_COLUMNS = (
    Column("baseline", style="cyan"),
    Column("experiments", right=True, drop=2),
    Column("first", drop=3),
    Column("last", drop=1),
    Column("workloads"),
)


@dataclass(frozen=True)
class Save:
    """What was typed beside the requests; `asked` is the whole command line."""

    name: str
    place: str
    place_options: Mapping[str, JsonValue]
    runs: int | None
    time_limit_s: float | None
    ledger: str | None
    as_json: bool
    asked: Sequence[str]
    trusted: bool = False


def save_measured(requests: Sequence[Request], wanted: Save) -> Exit:
    """Each request in turn; one that fails stops no other. Without any, all that the baseline holds, once more."""
    places = [place_of(wanted.place, request.workload, wanted.place_options) for request in requests]
    with Ledger.open(wanted.ledger) as book:
        known = held_so_far(book, wanted.name) if requests else held_by(book, wanted.name)
        again = [held_like(known, *one) for one in zip(requests, places, strict=True)] if requests else known
        confirm_trust(parts_in([one for one in again if one]), book.where, trusted=wanted.trusted)
        work: list[Callable[[SeriesOptions], SeriesResult]] = []
        for request, place in zip(requests, places, strict=True):
            like = held_like(known, request, place)
            work.append(_again(book, wanted.name, like) if like else _new(book, wanted.name, request, place))
        work += [] if requests else [_again(book, wanted.name, one) for one in known]
        series = []
        for one in work:
            # The bar is gone before a result is printed: both may go to one screen.
            with watching(quiet=wanted.as_json) as watcher:
                for sentence in clean_up(book):
                    watcher.notice(sentence)
                series.append(one(SeriesOptions(watcher, wanted.runs, wanted.time_limit_s, repeatable(wanted.asked))))
            _say(series[-1], wanted.as_json)
        holds = held_so_far(book, wanted.name)
    _report(wanted.name, [_json(one) for one in series], holds, wanted.as_json)
    codes = [one.trouble.code if one.trouble else Exit.DONE for one in series]
    if len(codes) == 1:
        return codes[0]
    return Exit.PART_FAILED if any(codes) else Exit.DONE


def _again(book: Ledger, name: str, held: HeldWorkload) -> Callable[[SeriesOptions], SeriesResult]:
    return lambda how: save_again(book, name, held, how)


def _new(book: Ledger, name: str, request: Request, place: Place) -> Callable[[SeriesOptions], SeriesResult]:
    return lambda how: save_new(book, name, request, place, how)


def _say(series: SeriesResult, as_json: bool) -> None:
    rate = series.throughput
    if rate and not as_json:
        runs = counted(rate.runs, "run")
        click.echo(
            f"{safe_line(series.label)}  {say_rate(rate.rate_per_s)} {series.unit} ({runs})  {series.experiment_id}"
        )
    if series.trouble:
        say(f"{series.label}: {series.trouble.message}", series.trouble.hint)


def _json(series: SeriesResult) -> dict[str, Any]:
    rate = series.throughput
    return {
        "workload": series.label,
        "experiment": series.experiment_id or None,
        "rate_per_s": rate.rate_per_s if rate else None,
        "unit": series.unit or None,
        "runs": rate.runs if rate else 0,
        "error": series.trouble.message if series.trouble else None,
        "hint": series.trouble.hint or None if series.trouble else None,
    }


def save_from(name: str, experiments: Sequence[str], ledger: str | None, as_json: bool) -> Exit:
    with Ledger.open(ledger, create=False) as book:
        saved = save_stored(book, name, experiments)
        holds = held_by(book, name)
    if not as_json:
        for experiment_id, new in saved.items():
            click.echo(f"{experiment_id}  {'saved' if new else 'was in it already'}")
    _report(name, [{"experiment": one, "new": new} for one, new in saved.items()], holds, as_json)
    return Exit.DONE


def _report(name: str, saved: list[dict[str, Any]], holds: Sequence[HeldWorkload], as_json: bool) -> None:
    if as_json:
        kept = [{"workload": one.label, "series": one.series, "runs": len(one.rows)} for one in holds]
        print_json({"baseline": name, "saved": saved, "holds": kept})
        return
    for one in holds:
        click.echo(f"{name} has {counted(one.series, 'series')} of {safe_line(one.label)}")
    if holds and min(one.series for one in holds) < ENOUGH:
        click.echo(f"{ADVICE}: stackmark baseline save {name}")
    if holds:
        click.echo(f"check with: stackmark check {name}")


def list_baselines(ledger: str | None, as_json: bool) -> Exit:
    with Ledger.open(ledger, create=False) as book:
        found = baselines.every(book)
    if as_json:
        print_json({"baselines": [one.model_dump(mode="json") for one in found]})
        return Exit.DONE
    if not found:
        click.echo("there is no baseline yet; save one: stackmark baseline save NAME train/resnet50", err=True)
        return Exit.DONE
    rows = [
        [one.name, str(one.experiments), _day(one.first_unix_s), _day(one.last_unix_s), ", ".join(one.workloads)]
        for one in found
    ]
    print_table(standard_output(), LIST_COLUMNS, rows)
    return Exit.DONE


def _day(moment_unix_s: float) -> str:
    return say_moment(moment_unix_s, "%Y-%m-%d")


def delete_baseline(name: str, ledger: str | None) -> Exit:
    with Ledger.open(ledger, create=False) as book:
        count = baselines.remove(book, name)
    stay = "its experiment stays" if count == 1 else f"its {count} experiments stay"
    click.echo(f"the baseline {name} is forgotten; {stay} in the ledger")
    return Exit.DONE
