"""What vendors say that their chips can do: the figure beside the measured one, with where it is printed.

All are rates of dense matrices at the boost clock. Where a datasheet prints only the rate with structured sparsity, which
counts products with zeros that are never made, half of it stands here, and it is said. A figure counts the units that a
matrix product would use: tensor or matrix cores where the chip has them for that precision, with sums in 32 bits (in 64 for
fp64), else the vector units. Nobody sustains these: a chip at full power lowers its clock below the boost clock that they
are computed with.

A chip stands here when its figures were found printed by others as well, word for word; the others are left out until somebody
has compared them with the sheet.
"""

from dataclasses import dataclass

HALF_OF_SPARSE = "half of the printed rates, which count structured sparsity"


@dataclass(frozen=True)
class Vendor:
    """Figures of one chip, by its normalised name: TFLOP/s (TOP/s of int8) by precision, and GB/s of its memory."""

    chip: str
    source: str
    memory_gb_per_s: float
    tflops: dict[str, float]
    note: str = ""

    def operations_per_s(self, precision: str) -> float | None:
        found = self.tflops.get(precision)
        return found * 1e12 if found is not None else None

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_gb_per_s * 1e9


def _ampere_a100(chip: str, memory_gb_per_s: float) -> Vendor:
    rates = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
    return Vendor(chip, "NVIDIA A100 Tensor Core GPU datasheet", memory_gb_per_s, rates, "fp64 by tensor cores")


def _volta(chip: str, fp64: float, fp32: float, fp16: float, memory_gb_per_s: float, sheet: str) -> Vendor:
    return Vendor(chip, sheet, memory_gb_per_s, {"fp64": fp64, "fp32": fp32, "fp16": fp16}, "fp16 by tensor cores")


def _hopper(chip: str, sheet: str, fp32: float, sparse_tf32: float, memory_gb_per_s: float) -> Vendor:
    """The sheets print tf32 with sparsity: 16 bits are twice that, 8 bits four times; fp64 by tensor cores equals fp32."""
    bits_16, bits_8 = sparse_tf32, 2 * sparse_tf32
    rates = {"fp64": fp32, "fp32": fp32, "tf32": sparse_tf32 / 2, "bf16": bits_16, "fp16": bits_16}
    rates |= {"fp8": bits_8, "int8": bits_8}
    return Vendor(chip, sheet, memory_gb_per_s, rates, f"fp64 by tensor cores; tf32 and below: {HALF_OF_SPARSE}")


_V100, _P100 = "NVIDIA V100 Tensor Core GPU datasheet", "NVIDIA Tesla P100 datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet"

_TABLE = (
    Vendor("NVIDIA P100", _P100, 732, {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}, "vector units: it has no others"),
    Vendor("NVIDIA P100 PCIe", _P100, 732, {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}, "vector units: it has no others"),
    _volta("NVIDIA V100 16GB", 7.8, 15.7, 125, 900, _V100),
    _volta("NVIDIA V100 32GB", 7.8, 15.7, 125, 900, _V100),
    _volta("NVIDIA V100 16GB PCIe", 7.0, 14.0, 112, 900, _V100),
    _volta("NVIDIA V100 32GB PCIe", 7.0, 14.0, 112, 900, _V100),
    Vendor(
        "NVIDIA T4", "NVIDIA T4 Tensor Core GPU datasheet", 300, {"fp32": 8.1, "fp16": 65, "int8": 130},
        "an older edition of the datasheet prints 320 GB/s",
    ),
    _ampere_a100("NVIDIA A100 40GB", 1555),
    _ampere_a100("NVIDIA A100 40GB PCIe", 1555),
    _ampere_a100("NVIDIA A100 80GB", 2039),
    _ampere_a100("NVIDIA A100 80GB PCIe", 1935),
    Vendor(
        "NVIDIA A40", "NVIDIA A40 datasheet", 696,
        {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3},
    ),
    Vendor(
        "NVIDIA L40", "NVIDIA L40 datasheet", 864,
        {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362, "int8": 362},
    ),
    Vendor(
        "NVIDIA L40S", "NVIDIA L40S datasheet", 864,
        {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733},
    ),
    _hopper("NVIDIA H100 80GB", _H100, 67, 989, 3350),
    _hopper("NVIDIA H100 80GB PCIe", _H100, 51, 756, 2000),
    _hopper("NVIDIA H200", "NVIDIA H200 Tensor Core GPU datasheet", 67, 989, 4800),
    Vendor(
        "NVIDIA B200", "NVIDIA Blackwell Architecture Technical Brief, HGX B200", 8000,
        {"fp64": 40, "fp32": 80, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500},
        "later datasheets print 37 and 75 TFLOP/s for fp64 and fp32, and 7.7 TB/s",
    ),
)  # fmt: skip
VENDORS = {vendor.chip: vendor for vendor in _TABLE}
