"""`python -m stackmark`, and the console script."""

import sys

from stackmark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
