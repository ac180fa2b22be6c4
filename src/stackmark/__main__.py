"""`python -m stackmark`, and the console script."""

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run a command; or, where a shell asks, say what may come next on its line. Completion must not wait for click."""
    if argv is None and "_STACKMARK_COMPLETE" in os.environ:
        from stackmark.cli.completing import answer

        return answer(os.environ)
    from stackmark.cli.main import main as run_command

    return run_command(argv)


if __name__ == "__main__":
    sys.exit(main())
