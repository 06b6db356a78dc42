"""A fault of the machine stops the run, is never a video's, and costs nothing once it is mended."""

from dataclasses import replace
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.common.machine import killed_with_parent
from gdt.pipeline.shards.container import Header
from gdt.preprocess import checks, cluster
from gdt.preprocess.settings import Preprocess
from gdt.preprocess.stage import dry_run, run
from tests.conftest import few
from tests.preprocess.intact import rejected_of
from tests.preprocess.media import Fake
from tests.preprocess.test_stage import digests, four  # noqa: F401 - a fixture

REAL = 'exec $real "$@"'


@pytest.fixture
def undisturbed(four: Preprocess, tmp_path: Path) -> dict[str, str]:  # noqa: F811
    """Digests of the shards of a run without faults."""
    assert run(replace(four, destination=tmp_path / "undisturbed")).kept == 4
    return digests(tmp_path / "undisturbed")


def rejected(settings: Preprocess) -> list[dict[str, str]]:
    return [row for path in sorted(settings.shard_folder.root.glob("shard-*.h5")) for row in rejected_of(path)]


@pytest.mark.parametrize(
    ("script", "message"),
    few([
        ('case "$*" in *fps_mode*) echo "[error] Unrecognized option fps_mode" >&2; exit 1;; esac; exec $real "$@"',
         r"ffmpeg \d.* \(build .*Unrecognized option fps_mode.*5\.1"),  # before 5.1
        ('exec $real "${@//setts=/unknown=}"', "sound cannot be decoded"),  # before 4.4
        ('exec $real "${@//out_color_matrix=bt601/out_color_matrix=bt709}"', "its colour is"),
        ('exec $real "${@//fps=30/fps=30:start_time=0.1}"', "its frames are"),
        ('exec $real "${@//aresample=24000/aresample=24000,adelay=5}"', "with a tone from"),
        ('ulimit -n 6; exec $real "$@"', "Too many open files|cannot open shared"),
        ('ulimit -f 1; exec $real "$@"', "limit on the size of files"),
        ('ulimit -t 0; exec $real "$@"', "limit on the time of processes|was killed twice"),
        ('kill -KILL $$', "was killed twice"),
    ], 3),
)  # fmt: skip
def test_tools_that_do_not_decode_the_clip_are_refused_before_the_first_video(
    undisturbed: dict[str, str], four: Preprocess, fake: Fake, script: str, message: str  # noqa: F811
) -> None:  # fmt: skip
    fake(script)
    with pytest.raises(UserError, match=message):
        dry_run(four)
    with pytest.raises(UserError, match=message):
        run(four)
    assert [path.name for path in four.shard_folder.root.iterdir()] == [".lock"]
    fake(REAL)
    assert run(four).kept == 4 and digests(four.shard_folder.root) == undisturbed


@pytest.mark.parametrize(
    "fault",
    few([
        "echo '[AVFilterGraph @ 0x1] [error] No such filter: yadif' >&2; exit 1", "kill -SEGV $$", "kill -KILL $$",
        "echo '[error] Cannot allocate memory' >&2; exit 1", 'ulimit -f 1; exec $real "$@"',
        "echo '[out#0 @ 0x1] [error] Error writing trailer: Read-only file system' >&2; exit 1",
        "echo '[out#0 @ 0x1] [error] Error writing trailer: File too large' >&2; exit 1",
        "echo '[out#0 @ 0x1] [error] Error muxing a packet: Input/output error' >&2; exec $real \"$@\"",
        'exec $real "${@//setts=/unknown=}"',
    ], 3),
)  # fmt: skip
def test_a_fault_of_the_machine_during_the_run_stops_it_and_rejects_no_video(
    undisturbed: dict[str, str], four: Preprocess, tmp_path: Path, fake: Fake, fault: str  # noqa: F811
) -> None:  # fmt: skip
    fake(f'case "$*" in *3.mp4*) touch {tmp_path}/broken;; esac; [ -e {tmp_path}/broken ] || {REAL}; {fault}')
    with pytest.raises(UserError, match="test clip|limit on the size of files|Read-only|Input/output"):
        run(four)
    assert (tmp_path / "broken").exists() and rejected(four) == []
    fake(REAL)
    assert run(four).kept == 4 and digests(four.shard_folder.root) == undisturbed


@pytest.mark.parametrize("number", few(["KILL", "SEGV"]))
def test_a_video_that_kills_ffmpeg_is_rejected_and_can_be_retried(
    undisturbed: dict[str, str], four: Preprocess, tmp_path: Path, fake: Fake, number: str  # noqa: F811
) -> None:  # fmt: skip
    fake(f'case "$*" in *3.mp4*) kill -{number} $$;; esac; {REAL}')
    summary = run(four)
    assert summary.kept == 3 and [row["id"] for row in rejected(four)] == ["3.mp4"]
    assert "kill" in rejected(four)[0]["reason"] or number in rejected(four)[0]["reason"]
    # a kill may be for the memory of another process, so the next run tries again
    assert run(four).shards_made == (number == "KILL")
    fake(f'case "$*" in *3.mp4*) [ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -KILL $$; }};; esac; {REAL}')
    assert run(four).shards_made == (number == "KILL")  # killed once, it decodes
    assert run(replace(four, retry_rejected=True)).shards_made == (number != "KILL")
    assert digests(four.shard_folder.root) == undisturbed
    assert run(replace(four, retry_rejected=True)).shards_made == 0


def test_a_run_whose_first_videos_fail_for_one_reason_stops(
    undisturbed: dict[str, str], four: Preprocess, fake: Fake, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(checks, "_FIRST", 4)
    fake(f'case "$*" in *[13].mp4*) echo "[error] nothing found at $RANDOM" >&2; exit 1;; esac; {REAL}')
    with pytest.raises(UserError, match="2 of the first 4 videos .* 1.mp4: .*nothing found .* --allow-rejected"):
        run(four)
    assert rejected(four) == []
    # shards that other workers finish meanwhile are not kept with their rejected videos either
    with monkeypatch.context() as patch, pytest.raises(UserError, match="1 of the first 2 videos"):
        patch.setattr(checks, "_FIRST", 1)
        patch.setattr(cluster, "map_unordered", lambda client, function, tasks, *_: iter([*map(function, tasks)]))
        run(four)
    headers = [Header.read(path) for path in four.shard_folder.root.glob("shard-*.h5")]
    assert [header.arrays["rejected"].shape[0] for header in headers] == [0] * len(headers)
    assert run(replace(four, allow_rejected=True)).kept == 2
    fake(REAL)
    assert run(replace(four, retry_rejected=True)).kept == 4 and digests(four.shard_folder.root) == undisturbed


def test_setpriv_is_used_if_it_can_end_a_process_with_its_parent(fake: Fake) -> None:
    prefix = killed_with_parent.__wrapped__
    fake('exec "${@:3}"', "setpriv")
    assert prefix() == ("setpriv", "--pdeathsig", "KILL")
    fake("echo unrecognized option >&2; exit 1", "setpriv")
    assert prefix() == ()
