"""Write tests/golden anew: what every command prints over the stored experiments. Prints the names of files that changed.

    python scripts/write_golden.py

Look at the difference (`git diff tests/golden`; of compressed files `pytest tests/test_golden.py` shows it, before this is run).
"""

import sys
import tempfile
from pathlib import Path

for _folder in ("src", "tests"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _folder))

import golden_screens  # noqa: E402 - the folders above


def main() -> None:
    golden_screens.GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = golden_screens.shown(Path(folder)) | golden_screens.measured(Path(folder))
    for name in sorted(golden_screens.names() - set(made)):
        for path in golden_screens.GOLDEN.glob(f"{name}.txt*"):
            path.unlink()
        print(f"removed {name}")
    for name, text in made.items():
        if golden_screens.stored(name) != text:
            golden_screens.write(name, text)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
