"""The driver's library (NVML), asked by the names of its own functions; neither it nor its package need be there."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager


class Driver:
    """The driver's library, open. A call that this chip or driver does not know answers None."""

    def __init__(self, module: object) -> None:
        self._module = module
        error = getattr(module, "NVMLError", OSError)
        is_error = isinstance(error, type) and issubclass(error, Exception)
        self._errors: tuple[type[Exception], ...] = (error if is_error else OSError, AttributeError)

    def ask(self, name: str, *arguments: object) -> object:
        return self._call(name, arguments)[1]

    def do(self, name: str) -> bool:
        """A call that answers nothing: whether it worked."""
        return self._call(name, ())[0]

    def _call(self, name: str, arguments: tuple[object, ...]) -> tuple[bool, object]:
        try:
            return True, getattr(self._module, name)(*arguments)
        except self._errors:
            return False, None

    def count(self, name: str, *arguments: object) -> int | None:
        value = self.ask(name, *arguments)
        return value if isinstance(value, int) else None

    def word(self, name: str, *arguments: object) -> str:
        value = self.ask(name, *arguments)
        return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""

    def gpu(self, uuid: str) -> object:
        """The handle of the GPU with this UUID, with or without its `GPU-`; None of a slice, whose links are its GPU's."""
        for index in range(self.count("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None and _bare(self.word("nvmlDeviceGetUUID", handle)) == _bare(uuid):
                return handle
        return None


@contextmanager
def driver(module: object = None) -> Iterator[Driver | None]:
    """The library between its init and its shutdown; None where there is no driver, or no package to ask it by."""
    found = _open(module)
    try:
        yield found
    finally:
        if found:
            found.ask("nvmlShutdown")


def _open(module: object) -> Driver | None:
    try:
        module = importlib.import_module("pynvml") if module is None else module
    except ImportError:
        return None
    found = Driver(module)
    return found if found.do("nvmlInit") else None


def _bare(uuid: str) -> str:
    return uuid.strip().lower().removeprefix("gpu-")
