"""Read the processor: its model, and its settings.

Cores are counted from the kernel's topology in /sys rather than from /proc/cpuinfo, which names cores by different
fields on different architectures; cpuinfo is the fallback for kernels that hide the topology.
"""

from collections import Counter
from pathlib import Path

from stackmark.machine.reading import ROOT, Facts, Reading, cpu_set, need, number, scaled, table, text

# Instruction sets that decide which kernels a framework picks: x86 first, then Arm.
FLAGS = """
sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16
amx_tile amx_int8 amx_bf16 amx_fp16
asimd asimddp asimdhp bf16 i8mm sve sve2 svebf16 svei8mm sme
"""
# Where /proc/cpuinfo has no model name (Arm), the implementer's number is what there is.
IMPLEMENTERS = {"0x41": "Arm", "0x42": "Broadcom", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x50": "Ampere (APM)"}
IMPLEMENTERS |= {"0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"}


def read(root: Path = ROOT) -> Reading:
    source = need(root / "proc/cpuinfo")
    info = table(source)
    base = root / "sys/devices/system/cpu"
    features = set((info.get("flags") or info.get("Features") or "").split())
    facts: Facts = {
        "model": model(info),
        "vendor": info.get("vendor_id") or IMPLEMENTERS.get(info.get("CPU implementer", "")),
        "microcode": info.get("microcode"),
        **_counts(source, base),
        "flags": [flag for flag in FLAGS.split() if flag in features],
        "l2_cache": text(base / "cpu0/cache/index2/size"),
        "l3_cache": text(base / "cpu0/cache/index3/size"),
    }
    facts.update(_frequency(base))
    facts.update(_mitigations(base / "vulnerabilities"))
    return Reading(facts)


def model(info: dict[str, str]) -> str | None:
    """Return the marketing name, or maker and part number where the kernel has no name."""
    if "model name" in info:
        return info["model name"]
    if "CPU part" in info:
        maker = info.get("CPU implementer", "?")
        return f"{IMPLEMENTERS.get(maker, maker)} part {info['CPU part']}"
    return info.get("cpu") or info.get("Hardware")


def _counts(source: str, base: Path) -> Facts:
    online = sorted(cpu_set(text(base / "online")))
    packages: set[str] = set()
    cores: set[str] = set()
    for cpu in online:
        topology = base / f"cpu{cpu}/topology"
        packages.add(text(topology / "physical_package_id") or "0")
        siblings = text(topology / "core_cpus_list") or text(topology / "thread_siblings_list")
        if siblings:
            cores.add(siblings)
    if not cores:
        blocks = [table(block) for block in source.strip().split("\n\n")]
        packages = {block.get("physical id", "0") for block in blocks}
        cores = {f"{block.get('physical id', 0)}/{block.get('core id', i)}" for i, block in enumerate(blocks)}
        online = online or list(range(len(blocks)))
    smt = number(base / "smt/active")
    return {
        "sockets": len(packages),
        "cores": len(cores),
        "threads": len(online),
        "smt": bool(smt) if smt is not None else len(online) > len(cores),
    }


def _frequency(base: Path) -> Facts:
    """Governor, driver, turbo and the range of clocks. Virtual machines mostly show none of it."""
    policies = sorted((base / "cpufreq").glob("policy[0-9]*"))
    first = policies[0] if policies else base / "cpu0/cpufreq"
    no_turbo = number(base / "intel_pstate/no_turbo")
    boost = number(base / "cpufreq/boost")
    return {
        "governor": _common(policies, "scaling_governor") or text(first / "scaling_governor"),
        "energy_preference": _common(policies, "energy_performance_preference"),
        "frequency_driver": text(first / "scaling_driver"),
        "turbo": (no_turbo == 0) if no_turbo is not None else (boost == 1) if boost is not None else None,
        "clock_min_mhz": scaled(number(first / "cpuinfo_min_freq"), 1000),
        "clock_max_mhz": scaled(number(first / "cpuinfo_max_freq"), 1000),
        "clock_limit_mhz": scaled(number(first / "scaling_max_freq"), 1000),
    }


def _common(policies: list[Path], name: str) -> str | None:
    """One word where all agree, `performance ×96, powersave ×32` where they do not."""
    counted = Counter(value for policy in policies if (value := text(policy / name)))
    if len(counted) < 2:
        return next(iter(counted), None)
    return ", ".join(f"{value} ×{count}" for value, count in sorted(counted.items()))


def _mitigations(folder: Path) -> Facts:
    """Which holes are open and which are plugged: names only, since plugging is what costs time."""
    states = {path.name: text(path) or "" for path in sorted(folder.glob("*"))}
    return {
        "vulnerable": [name for name, state in states.items() if state.startswith("Vulnerable")],
        "mitigated": [name for name, state in states.items() if state.startswith("Mitigation")],
    }
