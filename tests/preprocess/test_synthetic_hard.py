"""The synthetic-hard data set: twins, labels that are independent of the class, its index."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from gdt.common.errors import UserError
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.layout import preprocess_command
from gdt.preprocess.stage import Preprocess
from gdt.preprocess.synthetic import Synthetic, generate
from gdt.preprocess.synthetic.beat import Beat
from gdt.preprocess.synthetic.drawing import SAMPLE_RATE, SHAPES
from gdt.preprocess.synthetic.hard import (
    ACTIONS,
    COLOURS,
    GAP,
    SOUNDS,
    TEMPI,
    TIMBRES,
    Scene,
    SyntheticHard,
    draw_scene,
    idle,
    picture,
    sound,
)  # fmt: skip
from tests.conftest import preprocess

DEFAULT = SyntheticHard()
SMALL = SyntheticHard(train=2, val=1, test=1, seconds=1.2, size=32)
NAMES = tuple(ACTIONS)
DIRECTED = [(a, b) for a, b in zip(NAMES[::2], NAMES[1::2], strict=True) if ACTIONS[a].direction]
ORDERED = [(a, b) for a, b in zip(NAMES[::2], NAMES[1::2], strict=True) if ACTIONS[a].order]
COLUMNS = ["action", "motion", "direction", "order", "shape", "colour", "tempo", "timbre", "sound"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hard") / "set"
    generate(folder, SMALL, workers=2, progress=False)
    return folder


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Of every class as many."""
    return [draw_scene(DEFAULT, "train", action, n) for action in ACTIONS for n in range(150)]


def alone(action: str, n: int) -> Scene:
    """A video in which the actor is all that moves, and all that is heard, in time."""
    settings = replace(DEFAULT, distractors=0, late=0.0, missing=0.0, offscreen=0.0)
    return replace(draw_scene(settings, "train", action, n), pan=(0.0, 0.0), shake=0.0, noise=0.0)


def reversed_twin(scene: Scene, twin: str, last: float) -> Scene:
    """The same draws for the twin, which begins where the scene ends, `last` seconds later."""
    tempo = replace(scene.tempo, start=-(scene.tempo.start + scene.tempo.rate * last) % 1)
    voices = tuple(replace(voice, action=twin, tempo=tempo) for voice in scene.voices)
    return replace(scene, action=twin, tempo=tempo, voices=voices)


def loudness(waveform: np.ndarray) -> np.ndarray:
    """Levels, frames of 20 ms by frequencies, with as many frames before the middle as after it."""
    frames = np.lib.stride_tricks.sliding_window_view(waveform, 480)[::240] * np.hanning(480)
    return np.abs(np.fft.rfft(frames, axis=1))[:, :200]


@pytest.mark.parametrize(("forwards", "backwards"), DIRECTED)
@pytest.mark.parametrize("n", range(3))
def test_a_video_played_backwards_is_one_of_the_twin(forwards: str, backwards: str, n: int) -> None:
    scene = alone(forwards, n)
    frames = picture(scene, DEFAULT)
    last = (len(frames) - 1) / DEFAULT.fps
    twin = picture(reversed_twin(scene, backwards, last), DEFAULT)
    differences = np.abs(twin[::-1].astype(int) - frames)
    assert np.abs(np.diff(frames.astype(int), axis=0)).max(axis=(1, 2, 3)).mean() > 60
    assert differences.mean() < 0.01 and np.abs(twin.astype(int) - frames).mean() > 50 * differences.mean()
    count = round(DEFAULT.seconds * SAMPLE_RATE)
    heard = loudness(sound(scene, DEFAULT))
    played = loudness(sound(reversed_twin(scene, backwards, (count - 1) / SAMPLE_RATE), DEFAULT)[::-1])
    straight = loudness(sound(reversed_twin(scene, backwards, (count - 1) / SAMPLE_RATE), DEFAULT))
    unlike = np.abs(heard - played).sum() / heard.sum()
    assert unlike < 0.1 and np.abs(heard - straight).sum() / heard.sum() > 5 * unlike


def beat_of_a_cycle(count: int = 3000) -> Beat:
    return Beat(np.arange(count, dtype=np.float32) / np.float32(count), np.full(count, 1.25, np.float32))


def events(action: str) -> tuple[np.ndarray, np.ndarray]:
    """Where in a cycle each of two events begins, in the picture and in the sound; in an order of their own."""
    beat = beat_of_a_cycle()
    motion = ACTIONS[action].move(beat)
    seen = (motion.glow, motion.y) if "flash" in action else (motion.x, motion.width)
    heard = sorted(ACTIONS[action].sound(beat), key=lambda part: -np.max(part.octave))  # click or whirr, thud or boing
    onsets = [np.abs(np.diff(values, append=values[:1])).argmax() for values in seen]
    sounds = [np.diff(part.loudness, append=part.loudness[:1]).argmax() for part in heard]
    return (np.array(onsets) + 1) / len(beat.phase) % 1, (np.array(sounds) + 1) / len(beat.phase) % 1


@pytest.mark.parametrize(("one", "other"), ORDERED)
def test_twins_by_order_differ_in_nothing_else(one: str, other: str) -> None:
    for action, gap in ((one, GAP), (other, 1 - GAP)):
        seen, heard = events(action)
        assert seen == pytest.approx(heard, abs=1e-3)
        assert ACTIONS[action].order == ("high first" if gap == GAP else "low first")
        assert (seen[1] - seen[0]) % 1 == pytest.approx(gap, abs=1e-3)
    assert min(TEMPI.values()) * GAP > 0.2
    # each event alone is that of the twin, at another time
    beat = beat_of_a_cycle()
    for mine, its in zip(ACTIONS[one].move(beat), ACTIONS[other].move(beat), strict=True):
        assert np.sort(np.ravel(mine)) == pytest.approx(np.sort(np.ravel(its)), abs=2e-3)
    for a, b in zip(ACTIONS[one].sound(beat), ACTIONS[other].sound(beat)[::-1], strict=True):
        assert np.sort(a.loudness) == pytest.approx(np.sort(b.loudness), abs=2e-3) and a.breath == b.breath


@pytest.mark.parametrize("action", [name for pair in ORDERED for name in pair])
def test_events_begin_at_once_and_fade(action: str) -> None:
    """So a reversed video is of no class: there, they would swell and end at once."""
    for part in ACTIONS[action].sound(beat_of_a_cycle()):
        steps = np.diff(part.loudness, append=part.loudness[:1])
        assert steps.max() > 20 * -steps.min()


def test_nothing_else_depends_on_the_action_or_on_each_other(scenes: list[Scene]) -> None:
    labels = [scene.labels for scene in scenes]
    drawn = ["action", "shape", "colour", "tempo", "timbre", "sound"]
    columns = {name: np.array([row[name] for row in labels]) for name in drawn}
    columns["pitch"] = np.array([f"{scene.voices[0].pitch:.1f}" if scene.voices else "" for scene in scenes])
    columns["size"] = np.array([f"{scene.actor.radius:.2f}" for scene in scenes])
    columns["texture"] = np.array([f"{scene.texture:.1f}" for scene in scenes])
    columns["others"] = np.array([len(scene.idle) for scene in scenes])
    columns["mirrored"] = np.array([scene.mirrored for scene in scenes])
    for one, other in combinations(columns, 2):
        if {one, other} == {"pitch", "sound"}:
            continue  # a missing sound has no pitch
        rows, places = (np.unique(columns[name], return_inverse=True)[1] for name in (one, other))
        table = np.zeros((rows.max() + 1, places.max() + 1), int)
        np.add.at(table, (rows, places), 1)
        assert chi2_contingency(table).pvalue > 1e-3, (one, other)


def test_actors_and_others_look_alike(scenes: list[Scene]) -> None:
    actors, others = [s.actor for s in scenes], [other.thing for scene in scenes for other in scene.idle]
    assert {a.shape for a in actors} == {o.shape for o in others} == set(SHAPES)
    sizes = np.mean([a.radius for a in actors]), np.mean([o.radius for o in others])
    assert sizes[0] == pytest.approx(sizes[1], abs=0.003)
    assert {len(scene.idle) for scene in scenes} == {1}
    more = replace(DEFAULT, distractors=3)
    assert {len(draw_scene(more, "train", "rise", n).idle) for n in range(30)} == {1, 2, 3}


def test_others_move_slowly_and_are_of_every_kind(scenes: list[Scene]) -> None:
    times = np.arange(0, 4, 0.01)
    fastest: dict[str, float] = {}
    for other in (other for scene in scenes[::15] for other in scene.idle):
        motion = idle(other, times)
        speed = np.hypot(*(np.diff(np.broadcast_to(v, times.shape)) for v in (motion.x, motion.y))).max() / 0.01
        fastest[other.kind] = max(fastest.get(other.kind, 0), speed)
    assert set(fastest) == {"drift", "circle", "wobble", "walk"} and min(fastest.values()) > 0.05
    assert max(fastest.values()) < 1.2  # an action of the first kind comes back over 0.9 in 0.13 s


def test_every_label_occurs(scenes: list[Scene]) -> None:
    found = {name: {scene.labels[name] for scene in scenes} for name in COLUMNS}
    assert list(scenes[0].labels) == COLUMNS
    assert found["action"] == set(ACTIONS) and len(found["motion"]) == 5
    assert found["direction"] == {"forwards", "backwards", ""}
    assert found["order"] == {"high first", "low first", ""}
    assert (found["shape"], found["colour"]) == (set(SHAPES), set(COLOURS))
    assert (found["tempo"], found["timbre"], found["sound"]) == (set(TEMPI), set(TIMBRES), set(SOUNDS))
    for scene in scenes:
        assert bool(scene.labels["direction"]) != bool(scene.labels["order"])


def test_twins_share_their_motion_alone() -> None:
    for one, other in (*DIRECTED, *ORDERED):
        assert ACTIONS[one].motion == ACTIONS[other].motion
        assert (ACTIONS[one].direction, ACTIONS[one].order) != (ACTIONS[other].direction, ACTIONS[other].order)
    assert len({ACTIONS[name].motion for name in NAMES[::2]}) == 5


def test_sounds_are_late_missing_or_of_others_as_often_as_is_set(scenes: list[Scene]) -> None:
    for kind, share in (("late", DEFAULT.late), ("missing", DEFAULT.missing), ("offscreen", DEFAULT.offscreen)):
        assert np.mean([scene.sound == kind for scene in scenes]) == pytest.approx(share, abs=0.03)
    for scene in scenes:
        delays = [voice.delay for voice in scene.voices]
        actions = [voice.action for voice in scene.voices]
        if scene.sound == "late":
            assert 0.1 <= delays[0] <= 0.3 and actions == [scene.action]
        elif scene.sound == "missing":
            assert not actions
        elif scene.sound == "offscreen":
            assert actions[0] == scene.action != actions[1] and not any(delays)
            assert 0.4 <= scene.voices[1].loudness / scene.voices[0].loudness <= 1
        else:
            assert actions == [scene.action] and delays == [0]


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_moves_and_sounds(action: str) -> None:
    scene = alone(action, 0)
    frames, waveform = picture(scene, DEFAULT), sound(scene, DEFAULT)
    assert frames.shape == (60, 64, 64, 3) and frames.dtype == np.uint8
    assert waveform.shape == (4 * SAMPLE_RATE,) and waveform.dtype == np.float32
    assert 0.1 < np.abs(waveform).max() <= 1
    assert np.abs(np.diff(frames.astype(int), axis=0)).max(axis=(1, 2, 3)).mean() > 20


def test_a_missing_sound_leaves_the_room() -> None:
    settings = replace(DEFAULT, late=0.0, missing=1.0, offscreen=0.0)
    waveform = settings.render("train", "rise", 0).waveform
    assert 0.001 < waveform.std() < 1.1 * settings.noise


def test_invalid_settings_and_folders_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"--size is 33; it must be even.*--noise is 2.*--late is 0.6, --missing is 0.6"
    ) as raised:
        SyntheticHard(size=33, noise=2, late=0.6, missing=0.6)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="--distractors is -1; it must be 0 or more"):
        SyntheticHard(distractors=-1)
    with pytest.raises(UserError, match=r"no synthetic\.json, so it is not synthetic; "):
        generate(made, Synthetic(), progress=False)
    (tmp_path / "my video.mp4").touch()
    with pytest.raises(UserError, match=r"holds my video\.mp4, but no synthetic-hard\.json"):
        generate(tmp_path, SMALL, progress=False)


def test_every_label_is_in_the_index(made: Path, tmp_path: Path) -> None:
    preprocess(Preprocess("synthetic-hard", made, tmp_path / "shards", videos_per_shard=20))
    index = Index.open(tmp_path / "shards")
    assert list(index.classes) == sorted(ACTIONS) and sorted(index.columns) == sorted(COLUMNS)
    with (made / "labels.csv").open() as file:
        rows = {Path(row.pop("path")).stem: row for row in csv.DictReader(file)}
    assert set(rows) == set(index.id) and len(rows) == 4 * len(ACTIONS)
    for k, name in enumerate(index.id):
        assert {column: index.columns[column][k] for column in COLUMNS} == rows[name]
        assert index.label[k] == rows[name]["action"] and name.startswith(index.split[k])
    assert index.labelled("direction").classes == ["backwards", "forwards"]
    assert len(index.labelled("motion").classes) == 5


def test_it_is_a_data_set_that_nobody_has_to_bring() -> None:
    assert preprocess_command(Path("data/shards/synthetic-hard")) == "make preprocess DATASET=synthetic-hard"
