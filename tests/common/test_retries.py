"""Which errors of a store are tried again."""

import errno
from http.client import IncompleteRead

import pytest

from gdt.common import retries
from gdt.common.errors import UserError, first_line
from gdt.pipeline.shards.container import Damaged

aiohttp = pytest.importorskip("aiohttp")
botocore = pytest.importorskip("botocore.exceptions")
FSTimeoutError = pytest.importorskip("fsspec.exceptions").FSTimeoutError
translate_boto_error = pytest.importorskip("s3fs.errors").translate_boto_error


def refused(status: int, code: str) -> Exception:
    """What s3fs makes of an answer."""
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(botocore.ClientError(answer, "GetObject"))


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [
        ([ConnectionResetError("reset"), TimeoutError("late"), IncompleteRead(b""), FSTimeoutError(),
          botocore.EndpointConnectionError(endpoint_url="here"), botocore.ReadTimeoutError(endpoint_url="here"),
          botocore.FlexibleChecksumError(error_msg="no"), aiohttp.ClientPayloadError("cut"),
          aiohttp.ServerDisconnectedError(), *(refused(code, str(code)) for code in (409, 412, 429, 502, 503, 504)),
          refused(503, "SlowDown"), refused(500, "InternalError"), refused(400, "RequestTimeout"),
          refused(412, "PreconditionFailed")], 5),
        ([Damaged("checksum mismatch")], 2),  # the same again: it is not the transfer
        ([FileNotFoundError("none"), PermissionError("forbidden"), refused(403, "403"), refused(404, "NoSuchKey"),
          refused(400, "InvalidBucketName"), botocore.NoCredentialsError(), OSError(errno.EIO, "disk"),
          OSError("bytes"), TypeError("a mistake")], 1),
    ],
    ids=["may pass", "damaged", "cannot heal"],
)  # fmt: skip
def test_only_errors_that_may_pass_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], attempts: int
) -> None:
    monkeypatch.setattr(retries, "PAUSES", [0.001] * 4)
    for error in errors:
        tried: list[int] = []

        def fail(tried: list[int] = tried, error: Exception = error) -> None:
            tried.append(1)
            raise error

        with pytest.raises(UserError, match="cannot read x: ") as said:
            retries.persist("cannot read x", fail)
        assert len(tried) == attempts and first_line(error)[:20] in str(said.value), repr(error)
