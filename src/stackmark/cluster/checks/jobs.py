"""Jobs: one that succeeds is complete, one that fails says so, with its exit code, and is not tried again."""

from stackmark.cluster.checks import programs
from stackmark.cluster.checks.case import CaseFailed, Scope
from stackmark.cluster.checks.lifecycle import Do, first_wrong
from stackmark.cluster.checks.work import Work
from stackmark.kubernetes import names, status
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.pods import BATCH, Awaited, each
from stackmark.units import counted


def completes(scope: Scope) -> Do:
    def do(work: Work) -> str:
        count = 1 if scope == "one" else work.many
        made = _created(work, f"job-{scope}", count, 0)
        jobs = _finished(work, made)
        failed = [name for name in made if _condition(jobs[name]) != "Complete"]
        if failed:
            raise CaseFailed(f"the Job {failed[0]} is {_condition(jobs[failed[0]])}: {_why(work, failed[0])}")
        each(made, lambda name: _check_log(work, name))
        are = "Job is" if count == 1 else "Jobs are"
        return f"{count} {are} complete, and what was written can be read after the end"

    return do


def fails(work: Work) -> str:
    (name,) = _created(work, "job-fails", 1, programs.CODE)
    job = _finished(work, [name])[name]
    if _condition(job) != "Failed":
        raise CaseFailed(f"its pod ended with code {programs.CODE}, and the Job is {_condition(job)}")
    pods = _pods(work, name)
    if len(pods) != 1:
        raise CaseFailed(f"it was tried {len(pods)} times, and none was to be tried again (backoffLimit: 0)")
    code = status.exit_code(pods[0])
    if code != programs.CODE:
        raise CaseFailed(f"its pod ended with code {programs.CODE}, and its status says {code}")
    reasons = [str(one.get("reason")) for one in (job.get("status") or {}).get("conditions") or ()]
    return f"reported as Failed ({', '.join(dict.fromkeys(reasons))}), exit code {code}, tried once"


def _created(work: Work, name: str, count: int, code: int) -> tuple[str, ...]:
    bodies = [
        work.ours(build.job(work.request(f"{name}-{number}", programs.ends_with(code)))) for number in range(count)
    ]
    made = each(bodies, lambda body: work.cluster.create(work.path("jobs", group=BATCH), body))
    return tuple(str(one["metadata"]["name"]) for one in made)


def _finished(work: Work, jobs: tuple[str, ...] | list[str]) -> dict[str, Json]:
    while True:
        found = work.cluster.items(work.path("jobs", group=BATCH), labelSelector=work.selector)
        seen = {str(one["metadata"]["name"]): one for one in found if one["metadata"]["name"] in jobs}
        open_ones = [name for name in jobs if not _condition(seen.get(name))]
        if not open_ones:
            return seen
        if not work.left_s:
            raise CaseFailed(
                f"{len(open_ones)} of {counted(len(jobs), 'Job')} has not ended after {work.limit_s:.0f} s: "
                f"{_why(work, open_ones[0])}",
                command=work.by_hand("describe", "job", open_ones[0]),
            )
        work.pause()


def _condition(job: Json | None) -> str:
    """Complete or Failed; nothing while it runs."""
    for one in ((job or {}).get("status") or {}).get("conditions") or ():
        if one.get("type") in ("Complete", "Failed") and one.get("status") == "True":
            return str(one["type"])
    return ""


def _pods(work: Work, job: str) -> list[Json]:
    return work.cluster.items(work.path("pods"), labelSelector=f"batch.kubernetes.io/job-name={job}")


def _why(work: Work, job: str) -> str:
    pods = _pods(work, job)
    one = Awaited(names.mark_of(job), by_job=True, pod=pods[0] if pods else None)
    return work.all_pods.explain(one).sentence


def _check_log(work: Work, job: str) -> None:
    for pod in _pods(work, job):
        # The two streams are written one after the other, and may be read in either order.
        lines = sorted(work.log(str(pod["metadata"]["name"])).splitlines())
        wrong = first_wrong(lines, sorted([programs.OUT, programs.ERR]))
        if wrong:
            raise CaseFailed(f"the log of the Job {job}: {wrong}", command=work.by_hand("logs", f"job/{job}"))
