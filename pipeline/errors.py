"""Mistakes that a user can mend are told in one sentence, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something outside the code is wrong; the message says what, why, and what to do."""


def exit_with_message(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` or a file that cannot be reached becomes one message on stderr and exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; check the path and its permissions", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
