"""``python -m fd_postproc``: the same as the command ``fd-postproc``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
