"""Verify results: compare with float64 once, and with the first result repeatedly during timing.

The reference costs more than the operator, so of a large result a sample of elements is compared, and a matrix product as a
whole by a random projection besides (gemm.py). What the samples leave out is found by the second comparison: a call with the
same operands gives the same bits, so a sum over the bits of what the timed calls wrote must stay what it was. A chip that
computes wrong now and then (a marginal core, a bad cell behind a broken check) is found there; its row fails.

The bound. Operands are exact: they are drawn, rounded to their precision, and the reference takes the rounded values. What is
left is the rounding of the operands to fewer bits inside the chip (tf32), of the sums as they grow, and of the result. For
random operands these add up like a random walk: relative to the root mean square of the result, a sum of K terms is off by
u_sum·√(K/2) at one standard deviation, a result of u_result times its own size. SIGMAS of them are allowed, since millions
of elements are compared and the largest error is taken; a wrong element is off by a thousand times as much.
"""

import math
from collections.abc import Callable, Sequence

import torch

from stackmark.units import counted
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor, accumulated_in
from stackmark.workloads.workload import WorkloadFailure

# Half the distance between two neighbours around 1, by precision.
ROUND_OFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "bf16": 2.0**-8,
    "fp16": 2.0**-11,
    "fp8": 2.0**-4,
    # Sums of integers are exact; what is left is that of the reference's own float64.
    "int32": 2.0**-53,
}
# Of 10^8 normal values the largest is at 5.7 standard deviations; a half more for what libraries do in other orders.
SIGMAS = 9.0
# How many sets' results are summed up at each check; of more, these are spread over all. A CPU has less time for it.
CHECKED_SETS = {"cuda": 16, "cpu": 4}
# Elements of a result that are compared one by one; of a matrix, rows and columns of them.
SAMPLED = 65_536
SIDE = int(SAMPLED**0.5)
# Elements of which a float64 copy is made at once.
_STRIPE_ELEMENTS = 2**21
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bound(terms: float, *, result: str, sums: str, operands: str | None = None) -> float:
    """Return the largest error that rounding explains, relative to the result's root mean square: see above.

    `terms` is the length of the sums; `operands` is named where the chip rounds them to fewer bits than they have in memory.
    """
    inside = ROUND_OFF[operands] * math.sqrt(2) if operands else 0.0
    return SIGMAS * (ROUND_OFF[result] + ROUND_OFF[sums] * math.sqrt(terms / 2 + 1) + inside)


def bound_of(terms: float, stand: Stand) -> float:
    """Return the bound for a matrix product in a precision."""
    result = {"tf32": "fp32", "fp8": "bf16", "int8": "int32"}.get(stand.precision, stand.precision)
    rounded = "tf32" if stand.precision == "tf32" else None
    return bound(terms, result=result, sums=accumulated_in(stand), operands=rounded)


def relative_error(got: Tensor, wanted: Tensor, size: float | None = None) -> float:
    """Return the largest difference, relative to the root mean square of the reference (or to `size`); infinite for a NaN."""
    scale = float(wanted.double().square().mean().sqrt()) if size is None else size
    worst = float((got.to(wanted.device, torch.float64) - wanted.double()).abs().max())
    if not math.isfinite(worst):
        return math.inf
    return worst / scale if scale > 0 else (0.0 if worst == 0 else math.inf)


def sample(length: int, most: int, generator: torch.Generator) -> Tensor:
    """Return indices spread over a length, ascending: all of them, or the two ends and a random draw between."""
    if length <= most:
        return torch.arange(length)
    wanted = max(most - 2, 0)
    # Of a long length many more are drawn than needed, and those that came twice dropped: a shuffle would take all of it.
    drawn = (
        torch.randperm(length - 2, generator=generator)
        if length < 4 * most
        else torch.randint(0, length - 2, (2 * most,), generator=generator).unique()
    )
    inner = drawn[torch.randperm(len(drawn), generator=generator)[:wanted]] + 1
    return torch.cat([torch.tensor([0]), inner.sort().values, torch.tensor([length - 1])])


def signs(length: int, generator: torch.Generator) -> Tensor:
    """Return a vector of 1 and -1 for a projection; one large normal number would make a column's rounding look large."""
    return torch.randint(0, 2, (length,), generator=generator).double() * 2 - 1


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply a matrix, or each of several, by a vector (or each by its own), in float64 and without a full copy."""
    at_once = max(1, _STRIPE_ELEMENTS // max(1, matrices[0].numel()))
    if vectors.dim() == 1:
        return torch.cat([part.double() @ vectors for part in matrices.split(at_once)])
    parts = zip(matrices.split(at_once), vectors.split(at_once), strict=True)
    return torch.cat([(part.double() @ own[:, :, None]).squeeze(2) for part, own in parts])


def say_compared(compared: int, of: int) -> str:
    """Format like `all 28,160` or `65,536 of 368,640,000`."""
    return f"{'all' if compared == of else f'{compared:,} of'} {of:,}"


def say_projected(compared: int, of: int) -> str:
    """Describe what was compared of a product of matrices."""
    return f"{say_compared(compared, of)} elements, and all rows through a random projection"


def refuse_wrong(compared: Compared) -> None:
    """Raise for a result that rounding does not explain."""
    if compared.error <= compared.bound:
        return
    raise WorkloadFailure(
        "wrong_result",
        f"its result is wrong by {compared.error:.3g} of its size; rounding explains {compared.bound:.3g}"
        f" ({compared.elements} compared with float64)",
        WRONG_HINT,
    )


WRONG_HINT = (
    "run it again; if it stays wrong, the device, its memory or the library is faulty: "
    "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep -i xid"
)


class Guard:
    """The results of some sets' calls, and whether later calls still give them."""

    def __init__(self, prepared: Prepared, allowed: float, device: torch.device) -> None:
        self._prepared, self._allowed = prepared, allowed
        most = CHECKED_SETS[device.type]
        self._sets = list(range(0, prepared.copies, max(1, prepared.copies // most)))[:most]
        self._bits: Tensor | None = None
        self._kept: list[list[Tensor]] = []
        self.same_bits = prepared.same_bits
        self.times = 0

    def remember(self, again: Callable[[Sequence[int]], None]) -> None:
        """Remember what `again`, which calls these sets (or more) as they will be timed, gives.

        Where two calls differ in bits, results are kept and compared within the bound.
        """
        again(self._sets)
        first = self._fingerprints()
        again(self._sets)
        if self.same_bits and torch.equal(first, self._fingerprints()):
            self._bits = first
            return
        self.same_bits = False
        self._sets = self._sets[:2]
        self._kept = [[tensor.clone() for tensor in self._prepared.outputs(i)] for i in self._sets]

    def _fingerprints(self) -> Tensor:
        return torch.stack([fingerprint(self._prepared.outputs(i)) for i in self._sets]).cpu()

    def check(self) -> None:
        """Return whether the timed calls left what was there before. Waits for the device."""
        self.times += 1
        if self._bits is not None:
            now = self._fingerprints()
            wrong = (now != self._bits).nonzero().flatten().tolist()
            if wrong:
                raise WorkloadFailure(
                    "wrong_result",
                    f"during timing, the same call returned different bits than before (set {self._sets[wrong[0]]} of "
                    f"{self._prepared.copies}, check {self.times})",
                    WRONG_HINT,
                )
            return
        for i, kept in zip(self._sets, self._kept, strict=True):
            for tensor, before in zip(self._prepared.outputs(i), kept, strict=True):
                error = relative_error(tensor, before)
                if error > 2 * self._allowed:  # both may be off by the bound
                    raise WorkloadFailure(
                        "wrong_result",
                        f"during timing, the same call returned a result that differs by {error:.3g} of its size from the "
                        f"previous one; rounding explains {2 * self._allowed:.3g}",
                        WRONG_HINT,
                    )

    def said(self) -> str:
        how = "the same bits" if self._bits is not None else "within the bound (bits differ from call to call)"
        sets = f"{len(self._sets)} of {self._prepared.copies} sets"
        return f"{how} {counted(self.times, 'time')} during and after timing, {sets}"


def fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """Sum over the bits of some tensors, on their device: one changed bit changes the sum."""
    # Each by its number, so that two tensors that changed places are seen.
    sums = [_bits(tensor).sum(dtype=torch.int64) * (1 + number) for number, tensor in enumerate(tensors)]
    return torch.stack(sums).sum()


def _bits(tensor: Tensor) -> Tensor:
    """A tensor's bits as whole numbers, as long as they go in: a CPU adds up 64 bits at a time thirty times as fast."""
    flat = tensor.detach().reshape(-1)
    whole = flat.numel() * flat.element_size() % 8 == 0 and flat.data_ptr() % 8 == 0
    return flat.view(torch.int64 if whole else _BITS[flat.element_size()])
