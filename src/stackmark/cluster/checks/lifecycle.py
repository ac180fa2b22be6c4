"""Test create, logs, exec and delete, for one pod and for many, with devices and without; and Jobs that succeed or fail."""

from collections.abc import Callable
from itertools import zip_longest

from stackmark.cluster.checks import programs
from stackmark.cluster.checks.capacity import count_of_gpu_pods
from stackmark.cluster.checks.work import CaseFailed, Scope, Work, ended, node_of
from stackmark.kubernetes import names, status
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.pods import BATCH, Awaited, each
from stackmark.units import counted

Do = Callable[[Work], str]
FORCED_AT_MOST_S = 5.0
GRACE_S = 2


def create(kind: str, scope: Scope) -> Do:
    def do(work: Work) -> str:
        count = 1 if scope == "one" else count_of_gpu_pods(work) if kind == "gpu" else work.many
        group = work.start(f"{kind}-{scope}", count, programs.numbered_then_idle(), gpus=1 if kind == "gpu" else 0)
        nodes = sorted({node_of(pod) for name, pod in work.pods().items() if name in group.pods})
        where = ", ".join(nodes) if len(nodes) <= 3 else counted(len(nodes), "node")
        run = "runs" if count == 1 else "run"
        return f"{counted(count, 'pod')} {run} after {group.seconds:.1f} s on {where}"

    return do


def logs(kind: str, scope: Scope) -> Do:
    def do(work: Work) -> str:
        group = work.group(f"{kind}-{scope}")
        each(group.pods, lambda name: _whole_log(work, name))
        of = f"each of {len(group.pods)} pods" if len(group.pods) > 1 else "the pod"
        return f"{programs.LINES:,} numbered lines of {of}, complete and in order"

    return do


def _whole_log(work: Work, pod: str) -> None:
    expected = programs.numbered()
    while True:
        lines = work.log(pod).splitlines()
        if lines[-1:] == expected[-1:] or not work.left_s:
            break
        work.pause()
    wrong = first_wrong(lines, expected)
    if wrong:
        raise CaseFailed(f"the log of {pod}: {wrong}", command=work.by_hand("logs", pod))


def first_wrong(lines: list[str], expected: list[str]) -> str:
    """Return the first error in a log; None where it is correct."""
    for number, (seen, wanted) in enumerate(zip_longest(lines, expected), 1):
        if seen == wanted:
            continue
        if seen is None:
            return f"it ends after {len(lines):,} of {len(expected):,} lines"
        if wanted is None:
            return f"it has {len(lines):,} lines, but {len(expected):,} were written"
        return f"line {number:,} is {seen[:60]!r}, but {wanted[:60]!r} was written"
    return ""


def execute(kind: str, scope: Scope) -> Do:
    def do(work: Work) -> str:
        group = work.group(f"{kind}-{scope}")
        for code in (0, programs.CODE):
            each(group.pods, lambda name, code=code: _answer(work, name, code))  # type: ignore[misc]
        of = f"{len(group.pods)} pods at once: each" if len(group.pods) > 1 else "the pod"
        return f"{of} answered on both streams, with exit codes 0 and {programs.CODE}"

    return do


def _answer(work: Work, pod: str, code: int) -> None:
    done = work.execute(pod, programs.answers(code))
    seen = (done.code, done.out.strip(), done.err.strip())
    wanted = (code, f"{programs.OUT} {pod}", programs.ERR)
    for what, one, other in zip(("exit code", "standard output", "standard error"), seen, wanted, strict=True):
        if one != other:
            raise CaseFailed(
                f"exec in {pod}: its {what} is {str(one)[:100]!r}, expected {other!r}",
                command=work.by_hand("exec", pod, "--", "sh", "-c", f"'exit {code}'"),
            )


def delete(kind: str, scope: Scope) -> Do:
    def do(work: Work) -> str:
        group = work.group(f"{kind}-{scope}")
        pods = [pod for name, pod in work.pods().items() if name in group.pods]
        grace_s = min(int((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30) for pod in pods)
        work.groups.pop(f"{kind}-{scope}")
        seconds = work.delete(group.pods)
        if seconds > grace_s and scope == "one":
            raise CaseFailed(
                f"the pod took {seconds:.1f} s to end, although it ends at once on SIGTERM: it was killed "
                f"after its grace period of {grace_s} s"
            )
        are = "pod is" if len(group.pods) == 1 else "pods are"
        by = f"; SIGTERM was enough (grace period {grace_s} s)" if seconds <= grace_s else ""
        return f"{len(group.pods)} {are} gone after {seconds:.1f} s{by}"

    return do


def killed_after_grace(work: Work) -> str:
    """Test that a program that ignores SIGTERM gets its grace period and no more."""
    group = work.start("stubborn", 1, programs.stubborn(), keep=False)
    _wait_for_words(work, group.pods[0])
    seconds = work.delete(group.pods, grace_s=GRACE_S)
    if seconds < GRACE_S - 0.5:
        raise CaseFailed(f"it was killed after {seconds:.1f} s, but had a grace period of {GRACE_S} s")
    return f"it ignored SIGTERM and was gone after {seconds:.1f} s; its grace period was {GRACE_S} s"


def forced(work: Work) -> str:
    group = work.start("forced", 1, programs.stubborn(), keep=False)
    _wait_for_words(work, group.pods[0])
    seconds = work.delete(group.pods, grace_s=0)
    if seconds > FORCED_AT_MOST_S:
        raise CaseFailed(f"it was gone only after {seconds:.1f} s, but was deleted without a grace period")
    return f"it ignored SIGTERM and was gone after {seconds:.1f} s"


def _wait_for_words(work: Work, pod: str) -> None:
    """A shell that has not come to its trap yet would end at the signal, as anything does."""
    while work.left_s and not work.log(pod):
        work.pause()


def long_line(work: Work) -> str:
    """Test that a line of more than 16 KiB, which runtimes write in pieces, is read back complete."""
    (name,) = work.create([work.pod(work.request("long-line", programs.long_line()))])
    work.wait([name], ended, "end")
    lines = work.log(name).splitlines()
    wrong = first_wrong(lines, ["7".rjust(programs.LONG_LINE, "0"), "end"])
    if wrong:
        raise CaseFailed(f"the log of {name}: {wrong}", command=work.by_hand("logs", name))
    return f"a line of {programs.LONG_LINE:,} characters arrived complete, from a pod that had ended"


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
        return f"{count} {are} complete, and their output can be read afterwards"

    return do


def fails(work: Work) -> str:
    (name,) = _created(work, "job-fails", 1, programs.CODE)
    job = _finished(work, [name])[name]
    if _condition(job) != "Failed":
        raise CaseFailed(f"its pod ended with code {programs.CODE}, but the Job is {_condition(job)}")
    pods = _pods(work, name)
    if len(pods) != 1:
        raise CaseFailed(f"it was tried {len(pods)} times despite backoffLimit: 0")
    code = status.exit_code(pods[0])
    if code != programs.CODE:
        raise CaseFailed(f"its pod ended with code {programs.CODE}, but its status says {code}")
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
