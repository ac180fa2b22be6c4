"""`stackmark run`: its options. What it does with them is in measuring.py, so that `--help` need not load it."""

from typing import Any

import click

from stackmark.cli.options import (
    InSections,
    asked_workloads,
    check_format,
    details_option,
    format_option,
    json_option,
    ledger_option,
    names_image,
    not_empty,
    parameter_options,
    place_names,
    place_options,
    ranks_option,
    read_requests,
    sample_hz_option,
    seconds_of,
    taken_place_options,
    time_limit_option,
)


@click.command(
    "run",
    cls=InSections,
    epilog="""\b
Examples:
  stackmark run train/resnet50
  stackmark run train/resnet50_v1.5 --batch 512
  stackmark run train/vgg16,train/resnet50 --precision bf16,fp32 --runs 5 --json
  stackmark run train/resnet50 --data ~/imagenet --seconds 60
  stackmark run train/resnet50 --on container --shm 1g
  stackmark run --cmd "python train.py" --metric "images/sec: ([0-9.]+)"
  stackmark run train/resnet50 --published "NVIDIA H200"
  stackmark run op/gemm --set training --precision bf16,tf32
  stackmark run op/gemm --m 4096 --n 4096 --k 4096
  stackmark run op/all-reduce --ranks 2
""",
)
@click.argument("workload", required=False)
@click.option(
    "--on",
    "place",
    default="host",
    metavar="PLACE[,KEY=VALUE…]",
    help=f"Where it runs: {place_names()}. [default: host]",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Fresh processes. [default: 5 on a GPU, 3 on a CPU and of a list]",
)
@click.option(
    "--seeds",
    type=click.IntRange(2, 500),
    metavar="N",
    help="Of fit/: this many seeds, each of two runs: how much of the spread is the seed's. [default: each run has its own]",
)
@ranks_option
@time_limit_option
@sample_hz_option
@click.option(
    "--published",
    metavar="TEXT",
    callback=not_empty,
    help="Hold the result against the published row that fits best, e.g. 'NVIDIA H200'.",
)
@click.option(
    "--choose-again",
    is_flag=True,
    help="Choose again what is not typed, instead of taking what was chosen before on this chip.",
)
@format_option
@details_option
@ledger_option
@json_option
@place_options
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    place: str,
    runs: int | None,
    seeds: int | None,
    time_limit: str | None,
    published: str | None,
    choose_again: bool,
    sample_hz: float | None,
    form: str | None,
    details: bool,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Measure WORKLOAD on this machine: several fresh processes, a rate with its interval, and what it ran on.

    What is not typed is chosen for the device (auto), and said; the same command takes the same choice again. Lists with
    commas make several measurements, whose runs are interleaved, and one table.
    """
    options = taken_place_options(typed)
    requests = read_requests(asked_workloads(workload, typed, image=names_image([place], options)), typed)
    from stackmark.api.measuring import check_run, check_sample_hz, plan_run
    from stackmark.api.options import repeatable
    from stackmark.cli.measuring import Session, measure_all

    for request in requests:
        check_run(request)
    check_format(form, as_json, [request.workload for request in requests])
    limit_s = seconds_of("--time-limit", time_limit)
    plans = [
        plan_run(
            request, on=place, place_options=options, runs=runs, time_limit_s=limit_s, published=published,
            command=repeatable(asked), choose_again=choose_again, seeds=seeds, sample_hz=check_sample_hz(sample_hz),
        )
        for request in requests
    ]  # fmt: skip
    if len(plans) > 1 and published is None and form is None and seeds is None:
        from stackmark.api.suites import plan_lists
        from stackmark.cli.suites import SuiteWanted, measure_lists

        several = plan_lists(
            "run", requests, [place], place_options=options, blocks=runs, choose_again=choose_again,
            sample_hz=check_sample_hz(sample_hz),
        )  # fmt: skip
        wanted = SuiteWanted(
            ledger=ledger, as_json=as_json, time_limit_s=limit_s, details=details, again=True, yes=True,
            command=repeatable(asked),
        )  # fmt: skip
        return measure_lists(several, wanted)
    return measure_all(plans, Session(ledger, as_json, form=form, details=details))
