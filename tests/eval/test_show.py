"""Compositions as pairs and as clips, against the algebra and the oracles of the loader's tests."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from gdt.common.errors import UserError
from gdt.eval.drawing import picture, save
from gdt.eval.settings import ShowBatch, ShowTree
from gdt.eval.show import IGNORED, draw_batch, labels, relations, show_tree, toy
from gdt.pipeline import presets
from gdt.pipeline.leaves import MODALITIES
from gdt.pipeline.loader import Loader
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.tree import sampling_tree
from gdt.pipeline.word2vec import WordVectors
from tests.composed import composed, inputs_of
from tests.conftest import Run
from tests.pipeline.test_loader import CLIP, CPU, audio_oracle, leaf_oracle, tree
from tests.pipeline.test_notation import FREEZE


def test_the_tree_of_a_cross_modal_row_is_printed(command: Run) -> None:
    done = command("show-tree", "--preset", "i", "--batch-size", 64, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["modality", "2", *["invariant,", "only", "pairs", "that", "differ", "in", "it", "count"]] in lines
    assert ["time_shift", "1", *["one", "random", "start", "per", "video"]] in lines
    # each leaf and the other modality's: positive with the same video and direction, negative with the other 127
    assert "a batch of 64 videos holds 256 leaves; each has 1 positive and 127 negative leaves\n" in done.stdout
    leaves = [(line[0], *line[-3:]) for line in lines if line and line[0].isdigit()]
    assert leaves[:5] == [  # + positive, - negative, . not compared
        ("0", "video,", "forward", "..+-..--"), ("1", "video,", "reversed", "..-+..--"),
        ("2", "audio,", "forward", "+-..--.."), ("3", "audio,", "reversed", "-+..--.."),
        ("4", "video,", "forward", "..--..+-"),
    ]  # fmt: skip
    assert len(leaves) == 8


def test_factors_are_shown_as_a_run_prints_them() -> None:
    factors = "video:d:64 time_shift:i:2 augmentation:i:1"
    told = show_tree(ShowTree(factors=factors))
    assert told == show_tree(ShowTree(factors=factors, batch_size=64)) and "a batch of 64 videos" in told
    with pytest.raises(UserError, match="takes 64 videos and --batch-size is 32"):
        show_tree(ShowTree(factors=factors, batch_size=32))


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_preset_can_be_shown(preset: str) -> None:
    composition = composed(preset, 2)
    two = toy(composition)
    columns = two.plan(0, 0).columns
    assert columns["time_shift"].max() <= 270  # 30 frames of 300
    relation = relations(composition.factors, columns, columns)
    assert (relation.diagonal() == IGNORED).all() and (relation == relation.T).all()
    assert len(labels(two, columns)) == len(relation)


@pytest.mark.parametrize("preset", ["a", "l"])
def test_a_batch_is_drawn_as_the_inputs_of_the_network(index: Index, preset: str) -> None:
    reader, planned = ShardReader(index), tree(index, preset)
    with Loader(index, [planned.plan(0, 1)], inputs_of(index, CLIP), CPU) as loader:
        batch = next(iter(loader))
        picture = draw_batch(batch, planned, index, preset)
    columns = batch.plan.columns
    mine = np.flatnonzero(columns["video"] == columns["video"][0])
    assert picture.get_suptitle().endswith(f"'{index.id[columns['video'][0]]}'")
    titles = {axes.get_title("left").split(":")[0]: axes for axes in picture.axes if axes.get_title("left")}
    assert len(titles) == len(mine) == {"a": 2, "l": 8}[preset]
    for leaf in mine:
        axes = titles[f"leaf {columns['leaf'][leaf]}"]
        shown = np.asarray(axes.images[0].get_array())
        seconds = [float(label.get_text().removesuffix(" s")) for label in axes.get_xticklabels()]
        if video := columns["modality"][leaf] == MODALITIES.index("video"):
            clip = leaf_oracle(index, reader, batch.plan, leaf)
            clip = np.clip(clip * index.statistics.pixel_std + index.statistics.pixel_mean, 0, 255)
            strip = shown.reshape(CLIP.size, 6, CLIP.size + 2, 3)[:, :, 1:-1]
            difference = np.abs(strip.astype(float) - clip.transpose(1, 0, 2, 3))
            assert difference.mean() < 1 and difference.max() < 6
        else:
            assert np.array_equal(shown, audio_oracle(index, reader, batch.plan, leaf))
        start, backwards = columns["time_shift"][leaf] / 30, bool(columns["time_reversal"][leaf])
        told = f": from {start:.2f} s, {'video' if video else 'audio'}, {'reversed' if backwards else 'forward'}"
        assert told in axes.get_title("left")
        span = 5 * CLIP.stride / 30 if video else (CLIP.mel_frames - 1) / 100
        assert seconds == sorted(seconds, reverse=backwards)
        assert (min(seconds), max(seconds)) == pytest.approx((start, start + span), abs=0.011)


def test_characters_without_a_glyph_are_noted_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure()
    figure.suptitle("映画の一覧")
    with warnings.catch_warnings(record=True) as caught:
        save(figure, tmp_path / "x.png")
        picture(figure, ["映"])
    assert capsys.readouterr().err.count("\n") == 1 and not caught


def test_captions_are_drawn_in_order(captioned: Path, word2vec: Path) -> None:
    index = Index.open(captioned)
    words = WordVectors.of(index, word2vec)
    planned = sampling_tree(index, composed("three", 2), CLIP, "train", 0)
    with Loader(index, [planned.plan(0, 0)], inputs_of(index, CLIP), CPU, words=words) as loader:
        batch = next(iter(loader))
        picture = draw_batch(batch, planned, index, "three", words.words)
    columns = batch.plan.columns
    said = {axes.get_title("left").split(":")[0]: axes.texts[0].get_text() for axes in picture.axes if axes.texts}
    reader, texts = ShardReader(index), 0
    for leaf in np.flatnonzero((columns["video"] == columns["video"][0]) & (columns["modality"] == 2)):
        tokens = reader.tokens(int(columns["video"][leaf]), columns["time_shift"][leaf] / index.fps).tolist()
        expected = [words.words[token] for token in (tokens[::-1] if columns["time_reversal"][leaf] else tokens)]
        assert said[f"leaf {columns['leaf'][leaf]}"] == (" ".join(expected) or "(no words)")
        texts += 1
    assert texts == len(said) == 4


def test_custom_factors_are_drawn_by_the_commands(command: Run, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FREEZE)
    own = ("--factors", "video:d freeze:d:2 augmentation:i:2", "--factors-from", "mine.py")
    done = command("show-tree", *own)
    assert done.returncode == 0 and "moving" in done.stdout and "frozen" in done.stdout, done.stderr
    done = command("show-batch", "--shards", shards, "--out", "x.svg", *own)
    assert done.returncode == 0 and done.stdout.endswith("image: x.svg\n"), done.stderr
    picture = (tmp_path / "x.svg").read_text()
    assert "moving" in picture and "frozen" in picture
    with pytest.raises(UserError, match=r"must end in \.png, \.svg or \.pdf"):
        ShowBatch(out=Path("batch.gif"))
