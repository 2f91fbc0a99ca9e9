"""The command `gradwire`, which `python -m gradwire` is too."""

from __future__ import annotations

import errno
import sys

from gradwire.terminal import interrupts

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Run the command line."""
    interrupts.exit_at_once()
    from gradwire.cli.app import app
    from gradwire.terminal.output import FAILED, complain, discard

    try:
        app(prog_name="gradwire")
    except OSError as error:  # of help and version; commands deliver results with more care
        if error.errno not in FULL or error.filename is not None:
            raise
        discard(sys.stdout)
        complain(f"standard output cannot be written: {error.strerror}.")
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
