"""Metrics of what a ledger shows: the newest results, checks against baselines, failures, runs in progress.

Ids of runs and experiments are labels of `…_info` series only, of which each place has one. Times are Unix seconds, so that an
age is `time() - …`. A rate has its unit as a label, since each workload has its own: a figure that is better when it is lower has
the reciprocal unit (`1/s`), as in the ledger.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from stackmark.api.latest import WORDS, Latest, LatestCheck, Where, names_of

BARE = ("workload", "place", "machine")
WHERE = (*BARE, "chip")
CHECK = ("baseline", "workload", "spec", "place", "machine", "chip")


def ledger_metrics(found: Latest) -> Iterator[Metric]:
    """Yield all series of a ledger."""
    yield GaugeMetricFamily("stackmark_ledger_runs", "Runs in the ledger.", value=found.runs)
    text = "Series that are left out because there are too many."
    yield GaugeMetricFamily("stackmark_exporter_series_left_out", text, value=found.left_out)
    text = "Verdicts and comparisons with published rows that the next scrapes compute, and checks that run."
    yield GaugeMetricFamily("stackmark_exporter_pending", text, value=found.pending)
    machines = InfoMetricFamily(
        "stackmark_machine", "The name of a machine, where the ledger knows it.", labels=("machine",)
    )
    for machine, name in names_of(found):
        machines.add_metric([machine], {"host": name})
    yield machines
    yield from _results(found)
    yield from _published(found)
    yield from _checks(found)
    yield from _runs(found)


def _results(found: Latest) -> Iterator[Metric]:
    labels = (*WHERE, "unit")
    rate = GaugeMetricFamily("stackmark_result_rate", "Newest result: mean rate over its runs.", labels=labels)
    low = GaugeMetricFamily("stackmark_result_rate_low", "Lower end of its 95 % interval.", labels=labels)
    high = GaugeMetricFamily("stackmark_result_rate_high", "Upper end of its 95 % interval.", labels=labels)
    runs = GaugeMetricFamily("stackmark_result_runs", "Runs that the newest result is the mean of.", labels=WHERE)
    when = GaugeMetricFamily("stackmark_result_timestamp_seconds", "When its last run ended.", labels=WHERE)
    info = InfoMetricFamily("stackmark_result", "What the newest result was measured with.", labels=WHERE)
    for one in found.results:
        where = _where(one.where)
        rate.add_metric([*where, one.unit], one.rate)
        if one.low is not None and one.high is not None:
            low.add_metric([*where, one.unit], one.low)
            high.add_metric([*where, one.unit], one.high)
        runs.add_metric(where, one.runs)
        when.add_metric(where, one.ended_unix_s)
        about = {"experiment": one.experiment_id, "precision": one.precision, "batch": one.batch}
        info.add_metric(where, {**about, "framework": one.framework})
    yield from (rate, low, high, runs, when, info)


def _published(found: Latest) -> Iterator[Metric]:
    text = "Newest result over the nearest published number; above 1 it is better than published."
    ratio = GaugeMetricFamily("stackmark_published_ratio", text, labels=(*WHERE, "source", "recipe"))
    for where, one in found.published.items():
        ratio.add_metric([*_where(where), one.source, "differs" if one.context else "same"], one.ratio)
    yield ratio


def _checks(found: Latest) -> Iterator[Metric]:
    when = GaugeMetricFamily("stackmark_check_timestamp_seconds", "When the newest check began.", labels=CHECK)
    ratio = GaugeMetricFamily(
        "stackmark_baseline_ratio", "Newest check over the baseline, of rates: below 1 it is slower.", labels=CHECK
    )
    low = GaugeMetricFamily("stackmark_baseline_ratio_low", "Lower end of its 90 % interval.", labels=CHECK)
    high = GaugeMetricFamily("stackmark_baseline_ratio_high", "Upper end of its 90 % interval.", labels=CHECK)
    margin = GaugeMetricFamily("stackmark_baseline_margin_ratio", "What counts as a difference.", labels=CHECK)
    word = GaugeMetricFamily(
        "stackmark_check_verdict", "1 for the verdict of the newest check, 0 for all other words.",
        labels=(*CHECK, "verdict"),
    )  # fmt: skip
    alarm = GaugeMetricFamily(
        "stackmark_check_alarm",
        "1 where the checks together raise the alarm: two slow ones in a row, or a drift.",
        labels=CHECK,
    )
    info = InfoMetricFamily("stackmark_check", "The experiment of the newest check.", labels=CHECK)
    for one in found.checks:
        labels = _check(one)
        when.add_metric(labels, one.began_unix_s)
        info.add_metric(labels, {"experiment": one.experiment_id})
        for family, value in ((ratio, one.ratio), (low, one.low), (high, one.high), (margin, one.margin)):
            if value is not None:
                family.add_metric(labels, value)
        if one.word is not None:
            alarm.add_metric(labels, float(one.alarm))
            for name in WORDS:
                word.add_metric([*labels, name], float(name == one.word))
    yield from (when, ratio, low, high, margin, word, alarm, info)


def _runs(found: Latest) -> Iterator[Metric]:
    running = GaugeMetricFamily("stackmark_runs_in_progress", "Runs that are in progress.", labels=BARE)
    for where, count in found.running.items():
        running.add_metric(_bare(where), count)
    good = GaugeMetricFamily("stackmark_last_run_success", "1 where the newest run is good, else 0.", labels=BARE)
    when = GaugeMetricFamily("stackmark_last_run_timestamp_seconds", "When the newest run ended.", labels=BARE)
    for where, last in found.last_runs.items():
        good.add_metric(_bare(where), float(last.done))
        when.add_metric(_bare(where), last.ended_unix_s)
    ended = CounterMetricFamily("stackmark_runs", "Runs that ended.", labels=(*BARE, "status"))
    for (where, status), count in found.ended.items():
        ended.add_metric([*_bare(where), status], count)
    failures = CounterMetricFamily(
        "stackmark_run_failures", "Failed runs, by the kind of the failure.", labels=(*BARE, "kind")
    )
    for (where, kind), count in found.failures.items():
        failures.add_metric([*_bare(where), kind], count)
    yield from (running, good, when, ended, failures)


def _bare(where: Where) -> list[str]:
    return [where.workload, where.place, where.machine]


def _where(where: Where) -> list[str]:
    return [*_bare(where), where.chip]


def _check(one: LatestCheck) -> list[str]:
    where = one.where
    return [one.baseline, where.workload, one.spec, where.place, where.machine, where.chip]
