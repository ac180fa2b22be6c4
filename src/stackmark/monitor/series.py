"""Expressions that rules and dashboards share.

GPU series come from this exporter or from DCGM's, where that runs already: each expression takes ours, and DCGM's for GPUs that
ours does not show. DCGM has other units (MHz, MiB, per cent).
"""

# How long results are watched after the last one (api/latest.py): an older machine may be gone.
SLOWER = "SLOWER|WORSE"
LIKELY = "LIKELY SLOWER|LIKELY WORSE"
NO_VERDICT = "FAILED|NOT COMPARABLE"


def _either(ours: str, dcgm: str) -> str:
    return f"({ours} or on (UUID) {dcgm})"


POWER_W = _either("stackmark_gpu_power_watts", "DCGM_FI_DEV_POWER_USAGE")
TEMPERATURE_C = _either("stackmark_gpu_temperature_celsius", "DCGM_FI_DEV_GPU_TEMP")
UTILIZATION = _either("stackmark_gpu_utilization_ratio", "DCGM_FI_DEV_GPU_UTIL / 100")
MEMORY_USED_BYTES = _either("stackmark_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED * 1048576")
MEMORY_USED_SHARE = _either(
    "stackmark_gpu_memory_used_bytes / stackmark_gpu_memory_bytes",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
)
SM_CLOCK_HZ = _either('stackmark_gpu_clock_hertz{clock="sm"}', "DCGM_FI_DEV_SM_CLOCK * 1000000")
# Per second, so watts: averaged over the window, where the gauge is of a moment.
ENERGY_W = _either(
    "rate(stackmark_gpu_energy_joules_total[5m])", "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000"
)
