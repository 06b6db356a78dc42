"""Actions over a network, tried again after the faults that may pass, and after no others."""

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from gdt.common.errors import Damaged, UserError, first_line
from gdt.common.files import is_disk_full

T = TypeVar("T")
PAUSES = [1.0, 2.0, 4.0, 8.0, 16.0]
"""Seconds between attempts, on average; within each, fsspec's packages try about five times."""
_PASSING = re.compile(
    "ConnectionError|TimeoutError|HTTPException|HTTPClientError|ResponseParserError|ClientPayloadError|ChecksumError|"
    r"Damaged|\((SlowDown|InternalError|ServiceUnavailable|PreconditionFailed|4(09|12|29)|50[0234])\)"
)
"""Errors that may pass: classes of Python, botocore and aiohttp, and codes of a busy server or a conflict."""


def persist(what: str, action: Callable[[], T]) -> T:
    """The result of `action`, repeated after faults that may pass. Raises UserError: `what`, and the last cause."""
    before = ""
    for pause in (*PAUSES, 0.0):
        try:
            return action()
        except Exception as error:
            if isinstance(error, UserError) or is_disk_full(error):
                raise
            # the cause is botocore's, with the code of the answer, of which s3fs makes an OSError
            passing = _PASSING.search(f"{type(error).__mro__} {error.__cause__}")
            same = isinstance(error, Damaged) and str(error) == before  # not damaged on the way
            if not pause or same or not passing:
                raise UserError(
                    f"{what}: {_masked(error)}; check the network, the credentials and the object, then run the same "
                    "command again, which resumes"
                ) from None
            before = str(error)
        time.sleep(pause * random.uniform(0.5, 1.5))
    raise AssertionError


def _masked(error: BaseException) -> str:
    """The first line of an error, without passwords and queries of URLs."""
    said = re.sub(r"//[^/\s]*@", "//…@", first_line(error))
    return re.sub(r"(://[^\s?]*)\?[^\s\"']*", r"\1?…", said)[:300]
