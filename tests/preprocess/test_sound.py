"""Files of sound: shards without frames, and ESC-50."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdt.common.errors import UserError
from gdt.pipeline.shards.reader import ShardReader
from gdt.preprocess.settings import Preprocess
from tests.conftest import preprocess
from tests.preprocess.media import encode
from tests.preprocess.test_datasets import collected, refused
from tests.sounds import esc50, logmel, tone


def test_files_of_sound_become_shards_without_frames(tmp_path: Path) -> None:
    """Whatever their format, and with cover art; next to a video of the same name they are its sound."""
    from gdt.pipeline.leaves import Clip  # slow imports
    from gdt.pipeline.tree import sampling_tree
    from tests.composed import composed

    source = tmp_path / "sounds"
    (source / "low").mkdir(parents=True)
    wav = source / "low" / "a.wav"
    tone(wav, 300, seconds=3.0)
    suffixes = ("aac", "aiff", "flac", "m4a", "mp3", "ogg", "opus")
    for suffix in suffixes:
        encode(source / "low" / f"{suffix}.{suffix}", "-i", wav)
    encode(source / "low" / "adts.m4a", "-i", wav, "-f", "adts")  # AAC without a container
    picture = ["-f", "lavfi", "-i", "color=red:s=64x64:d=0.1"]
    cover = ["-map", 0, "-map", 1, "-disposition:v", "attached_pic", "-frames:v", 1]
    encode(source / "cover.mp3", "-i", wav, *picture, *cover)
    encode(source / "video.mp4", "-i", wav, "-f", "lavfi", "-i", "testsrc=s=64x64:d=3", "-map", 1, "-map", 0)
    tone(source / "video.wav", 300, seconds=3.0)
    tone(source / "silent.wav", 300, seconds=3.0, volume=0)
    tone(source / "short.wav", 300, seconds=0.5)
    (source / "broken.flac").write_bytes(b"broken")
    summary = preprocess(Preprocess("folder", source, tmp_path / "shards"))
    index = summary.index
    frames = dict(zip(index.id.tolist(), index.frame_count.tolist(), strict=True))
    assert frames.pop("video.mp4") == 90
    names = [f"low/{suffix}.{suffix}" for suffix in suffixes]
    assert frames == dict.fromkeys(["cover.mp3", "low/a.wav", "low/adts.m4a", *names], 0)
    assert all(count == pytest.approx(299, abs=8) for count in index.mel_count)  # codecs pad
    assert sum(summary.reasons.values()) == 3
    row = index.id.tolist().index("low/a.wav")
    samples = np.frombuffer(wav.read_bytes()[44:], np.int16)
    assert np.array_equal(ShardReader(index).logmel(row, 0, 299), logmel(samples))
    none_shown = replace(index, frame_count=0 * index.frame_count)
    with pytest.raises(UserError, match="11 without pictures"):
        sampling_tree(none_shown, composed("l", 4), Clip(frames=8, stride=2), "train", 0)


def test_esc50_has_five_folds(tmp_path: Path) -> None:
    source = esc50(tmp_path / "esc50")
    (source / "audio" / "other.wav").write_bytes((source / "audio" / "1-000.wav").read_bytes())
    (source / "audio" / "5-010.wav").unlink()
    found = collected("esc50", source)
    assert len(found.videos) == 19
    assert found.videos["2-110"].folds == ("train", "test", "train", "train", "train")
    assert {sound.label for sound in found.videos.values()} == {"dog", "rain"}
    assert {item.id for item in found.left_out} == {"other", "5-010"}
    (source / "meta" / "esc50.csv").unlink()
    refused("esc50", source, "esc50.csv is missing")
