"""Mistakes that a user can mend are told in one sentence, without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class UserError(Exception):
    """Something outside the code is wrong; the message says what, why, and what to do."""


def exit_with_message(main: Callable[[], None]) -> None:
    """Run `main`; a `UserError` becomes one message on stderr and exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
