"""Normalise chip names: one name for one chip, whoever wrote it.

NVML says "Tesla V100-SXM2-16GB", a vendor's table "NVIDIA DGX-1 (8x V100 16G)", a benchmark's CSV "LambdaCloud V100
16GB"; a look-up needs them to be equal. A table of all spellings would be out of date with the next driver, so a name
is taken apart instead: words that only repeat the brand, the socket or the memory technology are dropped, what changes
the speed is kept, and a word that is not understood is kept as well. So an unknown chip stays itself and is never
mistaken for a known one, and a slice of a GPU (MIG) or a laptop part never matches the whole card.

The SXM form is the plain name ("NVIDIA H100 80GB"); the others carry theirs ("NVIDIA H100 80GB PCIe"), because they
differ by a third in speed. Memory is part of the name only where a model was sold with several sizes.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "cpu", "unknown"]

# Oldest first: the distance between two generations is the difference of their places here.
_GENERATIONS: tuple[tuple[str, str], ...] = (
    ("Kepler", r"K\d+|GTX TITAN"),
    ("Maxwell", r"M\d+|GTX 9\d\d( Ti)?|TITAN X Maxwell"),
    ("Pascal", r"P\d+|GTX 10\d\d( Ti)?|TITAN X Pascal|TITAN Xp|Quadro GP100"),
    ("Volta", r"V100|TITAN V|Quadro GV100"),
    ("Turing", r"T\d+|RTX 20\d\d( Ti)?( SUPER)?|GTX 16\d\d( Ti)?( SUPER)?|TITAN RTX|Quadro RTX \d+"),
    ("Ampere", r"A\d+[A-Z]?|RTX A\d+|RTX 30\d\d( Ti)?"),
    ("Ada", r"L\d+[A-Z]?|RTX 40\d\d( Ti)?( SUPER)?|RTX \d+ Ada"),
    ("Hopper", r"G?H\d+"),
    ("Blackwell", r"G?B\d+|RTX 50\d\d( Ti)?|RTX PRO \d+"),
)
_FIRST_WITH_TF32 = 5  # Ampere

# Models that were sold with several memory sizes, where the size tells two products apart.
_MEMORY_TELLS = frozenset({"A100", "A800", "V100", "H100"})
# A form that exists in one size only, and whose NVML name leaves the size out.
_ONLY_MEMORY = {("H100", "PCIe"): "80GB", ("H100", "NVL"): "94GB"}

_BRAND = re.compile(r"\b(nvidia|tesla|geforce|quadro|titan|nv)\b", re.I)
_CPU = re.compile(r"\b(cpu|xeon|epyc|ryzen|core|neoverse|graviton|opteron|pentium|celeron|i[3579]-\d+)", re.I)
_DATACENTRE = re.compile(r"(?:[ABHKLMPTV]|GB|GH)\d{1,4}[A-Z]?")
_MEMORY = re.compile(r"(\d+)\s?GI?B?", re.I)
# Brand, socket, memory technology, marketing: nothing of these tells two chips apart that other words do not.
_NOISE = frozenset(
    {"nvidia", "nv", "tesla", "geforce", "amd", "instinct", "corporation", "gpu", "graphics", "tensor", "core"}
    | {"blackwell", "ultra", "generation", "edition", "workstation", "gen4", "gen5", "oam", "spx", "nps1", "dlc"}
    | {"sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"}
)
_SPELLING = {"pcie": "PCIe", "maxq": "Max-Q", "pro": "PRO", "se": "Server", "server": "Server", "nvl": "NVL"} | {
    "ti": "Ti", "super": "SUPER", "ada": "Ada", "rtx": "RTX", "gtx": "GTX", "titan": "TITAN", "quadro": "Quadro"
}  # fmt: skip
_VARIANTS = frozenset({"PCIe", "NVL", "Max-Q", "Server", "MIG", "Laptop"})


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip's name in parts; `str()` of it is the normalised name."""

    kind: Kind
    vendor: str
    model: str
    memory: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.vendor, self.model, self.memory, self.variant) if part)

    @property
    def short(self) -> str:
        """Return the short name: a GPU without its vendor."""
        return str(self).removeprefix("NVIDIA ").removeprefix("AMD ") if self.kind == "gpu" else str(self)

    @property
    def named(self) -> bool:
        """Return whether the chip is known: two unnamed CPUs are not the same CPU."""
        return not self.model.startswith("unnamed")

    @property
    def generation(self) -> int | None:
        """Return the chip's position among NVIDIA's architectures, or None where unknown."""
        if self.vendor != "NVIDIA":
            return None
        places = (place for place, (_, like) in enumerate(_GENERATIONS) if re.fullmatch(like, self.model))
        return next(places, None)

    @property
    def has_tf32(self) -> bool:
        """Return whether "fp32" on this chip may silently mean TF32 arithmetic."""
        return self.generation is not None and self.generation >= _FIRST_WITH_TF32


def normalise_chip(name: str) -> str:
    """Return the one name of the chip that `name` (from NVML, /proc/cpuinfo or a table) stands for."""
    return str(parse_chip(name))


def parse_chip(name: str) -> Chip:
    """Parse a chip's name. Never fails: an unknown name is kept as it is, of kind `unknown`."""
    text = re.sub(r"\((?:R|TM)\)|[®™]", " ", name, flags=re.I)
    text = re.sub(r"\s+", " ", text.replace("_", " ")).strip()
    if unnamed := re.fullmatch(r"(?:unnamed )?([CG]PU)(?: \(not named\))?", text, re.I):
        what = unnamed[1].upper()
        return Chip("cpu" if what == "CPU" else "gpu", "", f"unnamed {what}")
    if not _BRAND.search(text) and _CPU.search(text):
        return _parse_cpu(text)
    split = re.split(r"[\s(),\-]+", text.replace("Max-Q", "MaxQ"))
    words = [_SPELLING.get(word.lower(), word) for word in split if word]
    bare = [word for word in words if word.lower() not in _NOISE]
    if any(word == "AMD" for word in words) or any(re.fullmatch(r"MI\d+[A-Z]*", word) for word in bare):
        return _parse_amd(bare)
    if _BRAND.search(text) or (bare and (_DATACENTRE.fullmatch(bare[0]) or bare[0] in {"RTX", "GTX"})):
        return _parse_nvidia(bare) or Chip("gpu", "NVIDIA", "GPU")
    return Chip("unknown", "", text)


def _parse_nvidia(words: list[str]) -> Chip | None:
    memory = next((f"{found[1]}GB" for word in words if (found := _MEMORY.fullmatch(word))), "")
    rest = [word for word in words if not _MEMORY.fullmatch(word)]
    if not rest:
        return None
    if _DATACENTRE.fullmatch(rest[0]):
        split = 1
    else:
        split = next((place for place, word in enumerate(rest) if word in _VARIANTS), len(rest))
    model, variant = " ".join(rest[:split]), " ".join(rest[split:])
    if model in {"GTX TITAN X", "TitanX", "TITAN X"}:  # the Pascal one says so in its name
        model = "TITAN X Maxwell"
    if model not in _MEMORY_TELLS:
        # GH200's NVML name even gives the CPU's memory.
        memory = ""
    return Chip("gpu", "NVIDIA", model, memory or _ONLY_MEMORY.get((model, variant), ""), _without_form(model, variant))


def _without_form(model: str, variant: str) -> str:
    """Leaves PCIe out where no other form exists: RTX cards are PCIe cards, whether their name says so or not."""
    return " ".join(word for word in variant.split() if not (word == "PCIe" and model.startswith(("RTX", "GTX", "L4"))))


def _parse_amd(words: list[str]) -> Chip:
    plain = [word for word in words if not _MEMORY.fullmatch(word) and not re.fullmatch(r"\d+W", word)]
    if plain and re.fullmatch(r"MI\d+[A-Z]*", plain[0]):
        return Chip("gpu", "AMD", plain[0], variant=" ".join(plain[1:]))
    plain = [word for word in plain if word != "Radeon"]
    return Chip("gpu", "AMD", " ".join(["Radeon", *plain]))


def _parse_cpu(text: str) -> Chip:
    text = re.sub(r"@.*$|\b\d+(?:st|nd|rd|th) Gen\b|\b\d+-Core\b|\b(?:CPU|Processor)\b", " ", text)
    words = re.sub(r"\(\s*\)", " ", text).split()
    vendor = words.pop(0) if words and words[0] in {"Intel", "AMD", "ARM", "IBM"} else ""
    if words and re.match(r"i[3579]-\d", words[0]):
        words.insert(0, "Core")
    return Chip("cpu", vendor, " ".join(words) or "unnamed CPU")


def chip_distance(chip: Chip | None, other: Chip) -> int:
    """Return how far apart two chips are, for ranking only: 0 the same, 1 the same model, then by architecture and kind."""
    if chip is None or chip.kind == "unknown" or other.kind == "unknown":
        return 30
    if chip.kind != other.kind:
        return 25
    if not (chip.named and other.named):
        return 20
    if chip == other:
        return 0
    if chip.vendor == other.vendor and chip.model == other.model:
        return 1
    if chip.generation is not None and other.generation is not None:
        return 2 + abs(chip.generation - other.generation)
    return 15 if chip.vendor == other.vendor else 20
