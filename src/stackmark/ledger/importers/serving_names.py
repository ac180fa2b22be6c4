"""What a log of MLPerf Inference served: its result lines name no model, the lines around them may.

Logs of several models are often put into one file. Then each result belongs to the name that stands last before it:

    INFO:main:Namespace(…, backend='onnxruntime', …, model_name='ssd-mobilenet', …, profile='ssd-mobilenet-onnxruntime')
    + python python/main.py --profile resnet50-tf --model …          (a shell's trace)
    ./run_local.sh tf mobilenet gpu
    ==> results/resnet50/Offline/mlperf_log_summary.txt <==          (head and tail, of several files)
    ## mobilenet                                                     (somebody's own heading)

and a name in front of the result, in the same line, is that line's own: `mobilenet: TestScenario…`, `ssd.log:TestScenario…`.
"""

import re

from stackmark.ledger.importers.found import name_of

# The models of MLPerf Inference's rounds, as folders, profiles and files call them.
_MODELS = (
    "ssd-mobilenet", "ssd-resnet34", "ssd-large", "ssd-small", "ssd", "resnet50", "resnet", "mobilenet", "gnmt", "bert-99.9",
    "bert-99", "bert", "dlrm-v2", "dlrm", "3d-unet", "rnnt", "retinanet", "gptj", "llama2-70b", "mixtral-8x7b",
    "stable-diffusion-xl",
)  # fmt: skip
_OTHER_NAMES = {"resnet": "resnet50"}
_KNOWN = re.compile(
    rf"(?<![a-z0-9])({'|'.join(re.escape(name) for name in sorted(_MODELS, key=len, reverse=True))})(?![a-z])"
)
_ARGUMENTS = "Namespace("
_SETTINGS = {
    name: re.compile(rf"\b{name}=(?:'([^'$]{{1,300}})'|([0-9]{{1,9}})\b)")
    for name in ("model_name", "profile", "model", "backend", "max_batchsize")
}
# By the program's name, where its arguments name a model.
_COMMANDS = {
    "main.py": re.compile(r"--(?:profile|model-name)[ =](\S{1,200})"),
    "run_local.sh": re.compile(r"run_local\.sh {1,9}[\w-]{1,40} {1,9}([\w.-]{1,100})"),
    "run_and_time.sh": re.compile(r"run_and_time\.sh {1,9}[\w-]{1,40} {1,9}([\w.-]{1,100})"),
}
_HEADING = re.compile(r"^[\s#=*>-]{0,40}([A-Za-z0-9][\w./ -]{0,300}?)[\s#=*<:-]{0,40}$")
_IN_FRONT = re.compile(r"^[\s\"'#*>-]{0,20}([A-Za-z0-9][\w./-]{0,200})[\s\"'|,:;=-]{1,20}$")
# Words that loggers put there.
_LOGGERS = frozenset(
    {"info", "main", "debug", "warning", "error", "root", "stdout", "stderr", "log", "output", "result"}
)


class ServedModel:
    """The name that the next result belongs to, and what else was said with it."""

    def __init__(self) -> None:
        self.workload: str | None = None
        self.backend: str | None = None
        self.max_batch: int | None = None

    def feed(self, text: str) -> bool:
        """Take in a line; return whether it names a model."""
        if _ARGUMENTS in text and text.endswith(")"):
            arguments = text.partition(_ARGUMENTS)[2]
            said = {
                name: (found[1] or found[2]) for name, like in _SETTINGS.items() if (found := like.search(arguments))
            }
            self.backend = said.get("backend")
            batch = said.get("max_batchsize", "")
            self.max_batch = int(batch) if batch.isdecimal() and int(batch) > 0 else None
            return self._take(_of_arguments(said))
        for program, like in _COMMANDS.items():
            if program in text and (match := like.search(text)):
                self.backend = self.max_batch = None
                return self._take(known_model(match[1]) or match[1])
        if (
            len(text) <= 400
            and (match := _HEADING.match(text))
            and (name := known_model(match[1], alone="/" not in match[1]))
        ):
            self.backend = self.max_batch = None
            return self._take(name)
        return False

    def _take(self, name: str | None) -> bool:
        self.workload = served(name) if name else None
        return name is not None


def _of_arguments(said: dict[str, str]) -> str | None:
    """The model's own name, or the one in the profile or in the path of its file."""
    if name := said.get("model_name"):
        return known_model(name) or name
    return next((name for key in ("profile", "model") if (name := known_model(said.get(key, "")))), None)


def served(name: str) -> str:
    return name_of("serve", _OTHER_NAMES.get(name, name))


def known_model(text: str, *, alone: bool = False) -> str | None:
    """Return the model that a path, a profile or a heading names; `alone`: where it names nothing else."""
    plain = text.lower().replace("_", "-")
    match = _KNOWN.fullmatch(plain.strip()) if alone else _KNOWN.search(plain)
    return match[1] if match else None


def model_in_front(text: str) -> str | None:
    """Return the name that stands before a result in its own line."""
    match = _IN_FRONT.match(text)
    if match is None:
        return None
    stem = match[1].rpartition("/")[2].partition(".")[0]
    if name := known_model(match[1]):
        return name
    return stem if stem and stem.lower() not in _LOGGERS and not stem.isdecimal() else None
