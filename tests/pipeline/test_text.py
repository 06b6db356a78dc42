"""Text as a modality, from the plan to the loss, against examples and a slow oracle."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline.leaves import MODALITIES, Clip
from gdt.pipeline.loader import Batch, Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.shards.reader import ShardReader
from gdt.pipeline.sources.loading import Loading
from gdt.pipeline.sources.text import NOTHING, Words
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.tree import BatchPlan, Tree, sampling_tree
from gdt.pipeline.word2vec import WordVectors, load
from gdt.train.checkpoint import load_model
from tests.composed import composed, inputs_of
from tests.conftest import Run, write_word2vec
from tests.tamper import changed, edit_record

CPU = torch.device("cpu")
TEXT = MODALITIES.index("text")
CLIP = Clip(frames=4, stride=3, size=32, words=5, words_seconds=2.0)
AUGMENTATION = Augmentation(scale=(36, 40))


@pytest.fixture(scope="module")
def index(captioned: Path) -> Index:
    return Index.open(captioned)


@pytest.fixture(scope="module")
def vectors(index: Index, word2vec: Path) -> WordVectors:
    return WordVectors.of(index, word2vec)


def planned(index: Index, factors: str, videos: int = 4) -> tuple[Tree, BatchPlan]:
    tree = sampling_tree(index, parse(f"video:d {factors}", videos, AUGMENTATION), CLIP, "train", 0)
    return tree, tree.plan(0, 0)


def loaded(index: Index, plan: BatchPlan, vectors: WordVectors) -> Batch:
    with Loader(index, [plan], inputs_of(index, CLIP), CPU, Loading(), vectors) as loader:
        return next(iter(loader))


def test_a_batch_of_three_modalities_matches_its_plan(index: Index, vectors: WordVectors, word2vec: Path) -> None:
    """Words may be in another order, and of a longer time."""
    more = "order(2):i:2 speed(1,2):i:2 time_reversal:i:2"
    tree, plan = planned(index, f"time_shift:d:2 modality(video,audio,text):i:3:differs {more} augmentation:i:1")
    plan.leaves.words += 1  # as a transformation that takes later words
    batch = loaded(index, plan, vectors)
    assert tuple(batch.inputs) == MODALITIES and tree.composition.modalities == MODALITIES
    assert [len(batch.inputs[name]) for name in MODALITIES] == [64, 64, 64]
    leaves, reader, table = batch.plan.leaves, ShardReader(index), load(word2vec).vectors
    words: Words = batch.inputs["text"]
    for row, leaf in enumerate(np.flatnonzero(leaves.modality == TEXT)):
        value = {name: int(values[leaf]) for name, values in batch.plan.columns.items()}
        seconds = 2.0 * (1 + value["speed"])
        spoken = reader.tokens(value["video"], value["time_shift"] / index.fps, 6, seconds)[1:].tolist()
        places = [*spoken, *[NOTHING] * (5 - len(spoken))]
        places = places[3:] + places[:3] if value["order"] else places
        tokens = [token for token in places[:: 1 - 2 * value["time_reversal"]] if token != NOTHING]
        assert words.tokens[row].tolist() == tokens + [NOTHING] * (5 - len(tokens))
        assert words.mask[row].tolist() == [True] * len(tokens) + [False] * (5 - len(tokens))
        assert np.array_equal(words.vectors[row, : len(tokens)].numpy(), table[tokens])
        assert not words.vectors[row, len(tokens) :].any()
        assert batch.table["usable"][leaf] == (len(tokens) > 0)
    assert batch.table["usable"][leaves.modality != TEXT].all()


@pytest.mark.parametrize("what", ["frames/jpeg", "audio/logmel", "text/token"])
def test_damage_stops_the_run(captioned: Path, vectors: WordVectors, tmp_path: Path, what: str) -> None:
    shutil.copytree(captioned, tmp_path, dirs_exist_ok=True)
    index = Index.open(tmp_path)
    _, plan = planned(index, "time_shift:i:1 modality(video,audio,text):i:3:differs augmentation:i:1", 8)
    bad = int(plan.columns["video"][0])
    name = index.shard_names[index.shard[bad]]
    with changed(tmp_path / name) as file:
        frame, row, word = index.frame_start[bad], index.mel_start[bad], index.text_start[bad]
        begin, end = {
            "frames/jpeg": file["frames/offset"][[frame, frame + index.frame_count[bad]]],
            "audio/logmel": (row, row + index.mel_count[bad]),
            "text/token": (word, word + 1),
        }[what]
        file[what][begin:end] += 1
    message = rf"shard .*{name} is damaged: checksum mismatch in .* of '{index.id[bad]}'; remove .* `\S*gdt verify"
    with pytest.raises(UserError, match=message):
        loaded(index, plan, vectors)


def test_missing_words_and_vectors_are_reported(index: Index, shards: Path, word2vec: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="have no words; rebuild them from videos with captions"):
        WordVectors.of(Index.open(shards), word2vec)
    with pytest.raises(UserError, match="text needs word vectors: set --word2vec to the file"):
        WordVectors.of(index, None)
    write_word2vec(tmp_path / "other.txt", ["nobody says this"], 12)
    with pytest.raises(UserError, match="other.txt is not the word2vec file with which the shards in .* were made"):
        WordVectors.of(index, tmp_path / "other.txt")
    silent = replace(index, text_count=np.where(np.arange(len(index)) % 2, 0, index.text_count))
    messages: list[str] = []
    composition = composed("text-f", 2, AUGMENTATION)
    tree = sampling_tree(silent, composition, CLIP, "train", 0, messages.append)
    assert "12 without captions" in messages[0] and (silent.text_count[tree.pool.videos] > 0).all()


def test_text_is_pretrained_from_the_command_line(
    command: Run, captioned: Path, word2vec: Path, tmp_path: Path
) -> None:
    sizes = "--batch-size", 4, "--steps", 4, "--device", "cpu", "--out", "run"
    train = "pretrain", "--preset", "text-f", *sizes
    command(*train, "--shards", captioned, "--word2vec", word2vec, check=True)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    assert {name.split(".")[0] for name in state} == {"video_network", "text_network", "mlp_v", "mlp_t"}
    assert state["text_network.fc1.weight"].shape == (256, 12)
    # weights that count padding, such as the release's, go on doing so
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    network = json.loads(state["record"])["settings"]["network"] | {"text_padding": True}
    torch.save(edit_record(state, {"network": network}), tmp_path / "start.pt")
    started = *train, "--out", "second", "--init", "start.pt", "--shards", captioned, "--word2vec", word2vec
    command(*started, check=True)
    assert load_model(tmp_path / "second" / "checkpoint.pt").model.text_network.padding
    assert not load_model(tmp_path / "run" / "checkpoint.pt").model.text_network.padding
    lines = word2vec.read_text().splitlines()
    (tmp_path / "moved.txt").write_text("\n".join([*lines[:-1], lines[-1].split()[0] + " 9" * 12]) + "\n")
    done = command(*train, "--shards", captioned, "--word2vec", "moved.txt")
    assert done.returncode == 2 and "holds a run with different settings (the word vectors)" in done.stderr
    done = command("pretrain", "--steps", 4, "--shards", captioned, "--word2vec", word2vec)
    assert done.returncode == 2 and "--word2vec has no effect" in done.stderr and done.stderr.count("\n") == 1
