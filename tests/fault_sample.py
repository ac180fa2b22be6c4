"""What a fault did to a run, made up."""

from stackmark.verdict.interruption import DiskSeen, FaultFinding, LogSeen, NewPod, interruption


def a_finding(**changes: object) -> FaultFinding:
    ends = [0.1 * step for step in range(101)] + [10.0 + 2.0 + 0.1 * step for step in range(100)]
    common: dict[str, object] = {
        "experiment_id": "x-1", "run_id": "r-1", "created_unix_s": 0.0, "command": "", "workload": "train/resnet20",
        "part": "kubelet", "means": "script", "node": "node-2", "asked_s": 5.0, "fault_s": 5.0, "exact": True,
        "begin_t": 9.0, "end_t": 14.0, "step_ends_t": tuple(ends), "interruption": interruption(ends, 9.0, 14.0),
        "run_status": "done", "failure": "", "final_step": 200, "same_pod": True, "restarts": 0,
        "resource": "nvidia.com/gpu", "devices_before": 2, "devices_lowest": 0, "devices_away_s": 3.0,
        "devices_back_after_s": 1.0, "api_away_s": 0.0, "node_not_ready_s": 0.0, "new_pod": NewPod(1, 1.0, 2.0, 2.5),
        "log": LogSeen(70, 200, True, 1, 6.0), "disk": DiskSeen(True, 200, 0), "healthy": True, "healthy_after_s": 2.0,
        "sick": "", "recover_s": 300.0,
    }  # fmt: skip
    return FaultFinding(**{**common, **changes})  # type: ignore[arg-type]
