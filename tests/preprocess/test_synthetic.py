"""The synthetic data set: reproducible files, their layout, and audio in sync with video."""

import colorsys
import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gdt.common.errors import UserError
from gdt.common.files import locked
from gdt.preprocess.settings import Generate
from gdt.preprocess.synthetic.actions import ACTIONS
from gdt.preprocess.synthetic.files import GROUP, MARKER, command, generate
from gdt.preprocess.synthetic.moments import FPS, SIZE, SPLITS, Scene, Synthetic
from gdt.preprocess.synthetic.scenes import SOUND_RATE
from tests.tamper import interrupted

# More videos than one ffmpeg process takes, so that two workers share them.
SMALL = Synthetic(train=8, val=1, test=1, classes=3, seconds=1.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "set"
    generate(folder, SMALL, workers=1)
    return folder


def decode(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """What a reader of the file gets: frames uint8 [T, H, W, 3] and samples float32 [N]."""
    command = ["ffmpeg", "-v", "error", "-i", str(path)]
    frames = subprocess.run([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], check=True, capture_output=True)
    samples = subprocess.run([*command, "-f", "f32le", "-"], check=True, capture_output=True)
    return np.frombuffer(frames.stdout, np.uint8).reshape(-1, SIZE, SIZE, 3), np.frombuffer(samples.stdout, np.float32)


def test_files_do_not_depend_on_workers(made: Path, tmp_path: Path) -> None:
    assert sum(getattr(SMALL, split) for split in SPLITS) * SMALL.classes > GROUP
    said = command(Generate(tmp_path / "typed", workers=2, videos=SMALL))
    assert said.endswith(f"gdt preprocess --dataset typed --layout synthetic --source {tmp_path}/typed")
    assert contents(tmp_path / "typed") == contents(made)


def test_layout_and_captions(made: Path) -> None:
    found = {path.parent.relative_to(made).as_posix() for path in made.rglob("*.mp4")}
    assert found == {f"{split}/{action}" for split in SPLITS for action in ("bounce", "swing", "spin")}
    assert sorted(path.name for path in made.iterdir()) == sorted([*SPLITS, "captions.json", MARKER])
    captions = json.loads((made / "captions.json").read_text())
    assert sorted(captions) == sorted(path.stem for path in made.rglob("*.mp4"))


def test_a_set_appears_whole_or_not_at_all_and_is_then_left_alone(made: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    generate(made, SMALL)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before
    with pytest.raises(UserError, match="synthetic.json is a file; set --destination to a new folder"):
        generate(made / "synthetic.json", SMALL)

    with locked(tmp_path / "set.partial"), pytest.raises(UserError, match="another run is writing to .*set.partial"):
        generate(tmp_path / "set", SMALL, workers=1)
    with interrupted("gdt.preprocess.synthetic.files._describe"):
        generate(tmp_path / "set", replace(SMALL, train=1), workers=1)
    assert not (tmp_path / "set").exists()
    generate(tmp_path / "set", replace(SMALL, train=1), workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    found, whole = contents(tmp_path / "set"), contents(made)
    videos = [name for name in found if name.endswith(".mp4")]
    assert len(videos) == 9 and all(found[name] == whole[name] for name in videos)


def test_other_settings_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seed was 0, now 1"):
        generate(made, replace(SMALL, seed=1))
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match=r"holds files, but no synthetic\.json, so it is not synthetic; set"):
        generate(tmp_path, SMALL)
    with pytest.raises(UserError, match="--identity 1.5; they must be 0.1 or more, and from 0 to 1"):
        Synthetic(identity=1.5)


def test_flash_and_click_fall_together(tmp_path: Path) -> None:
    settings = Synthetic(train=3, val=0, test=0, classes=tuple(ACTIONS).index("flash") + 1, seconds=4)
    generate(tmp_path, settings, workers=1)
    step = SOUND_RATE // 200
    for path in sorted((tmp_path / "train" / "flash").glob("*.mp4")):
        frames, samples = decode(path)
        # White is bright in every channel, a click is much faster than hum and noise.
        brighter = np.diff(frames.min(axis=-1).mean(axis=(1, 2)))
        flashes = (np.flatnonzero(brighter > 0.5 * brighter.max()) + 1) / FPS
        power = np.square(np.diff(samples))[: len(samples) // step * step - step].reshape(-1, step).mean(axis=1)
        louder = np.diff(np.log(power))
        clicks = (np.flatnonzero(louder > 0.5 * louder.max()) + 1) * step / SOUND_RATE
        assert len(clicks) >= 5
        delays = flashes - clicks[np.abs(flashes[:, None] - clicks).argmin(axis=1)]
        assert len(flashes) >= 5 and delays.min() >= -0.005 and delays.max() <= 1 / FPS + 0.005


def shown_and_heard(frames: np.ndarray, samples: np.ndarray) -> tuple[float, float]:
    """Hue of the background, and frequency of the loudest lasting tone in Hz."""
    hue = colorsys.rgb_to_hsv(*np.median(frames.reshape(-1, 3), axis=0) / 255)[0]
    windows = np.lib.stride_tricks.sliding_window_view(samples, 8192)[::1024] * np.hanning(8192)
    spectrum = np.quantile(np.abs(np.fft.rfft(windows)), 0.2, axis=0)
    low, high = (round(hz * 8192 / SOUND_RATE) for hz in (100, 1300))
    return hue, (low + int(spectrum[low:high].argmax())) * SOUND_RATE / 8192


def test_files_show_the_identity_and_have_its_label(tmp_path: Path) -> None:
    settings = Synthetic(train=1, val=0, test=1, seconds=2.0, identity=1.0, actions_per_video=3)
    generate(tmp_path, settings, workers=1)
    with (tmp_path / "labels.csv").open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    for action in ("bounce", "flash", "jump"):  # whose sound fades
        (path,) = (tmp_path / "test" / action).iterdir()
        row = rows[str(path.relative_to(tmp_path))]
        identity = Scene(settings, "test", action, 0).identity[0]
        hue, pitch = shown_and_heard(*decode(path))
        assert hue == pytest.approx(0.85 * identity, abs=0.02)
        assert np.log2(pitch / 110) / 3.5 == pytest.approx(identity, abs=0.03)
        assert (row["actions"], row["identity"]) == (action, str(int(10 * identity)))
    # training videos show three actions, and so have no class
    several = [row["actions"].split() for name, row in rows.items() if name.startswith("train/")]
    assert len(several) == len(list((tmp_path / "train").glob("*.mp4"))) == 10
    assert all(len(set(actions)) == 3 for actions in several)
