"""Transformations keep video and audio in sync: flashes and clicks coincide."""

import numpy as np
import pytest
import torch

from gdt.common.errors import UserError
from gdt.pipeline.leaves import MODALITIES, Clip, Leaves
from gdt.pipeline.loader import Loader
from gdt.pipeline.notation import parse
from gdt.pipeline.shards.index import Index
from gdt.pipeline.transformations.augmentation import Augmentation
from gdt.pipeline.transformations.order import Order
from gdt.pipeline.tree import sampling_tree
from gdt.preprocess.settings import Preprocess
from tests.composed import inputs_of
from tests.conftest import preprocess
from tests.preprocess.media import made

CLIP = Clip(size=16)
PLAIN = Augmentation(
    scale=(16, 16), flip=0.5, brightness=0.0, contrast=0.0, saturation=0.0, volume=0.0, frequency_mask=0, time_mask=0
)
FRAMES, ROWS = 30, 100  # per second


@pytest.fixture(scope="module")
def flashing(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Videos that flash and beep for 0.2 s every 0.7, 0.9 or 1.1 s."""
    folder = tmp_path_factory.mktemp("flashing")
    (folder / "videos").mkdir()
    for frames in (21, 27, 33):
        every = frames / FRAMES
        picture = f"color=black:s=32x32:r=30:d=8,geq=lum='if(lt(mod(N,{frames}),6),235,16)':cb=128:cr=128"
        sound = f"aevalsrc='lt(mod(t,{every}),0.2)*0.9*sin(2*PI*1000*t)':s=48000:d=8"
        made(folder / "videos" / f"{frames}.mkv", picture, sound, "-c:a", "pcm_s16le")
    preprocess(Preprocess("folder", folder / "videos", folder / "shards"))
    return Index.open(folder / "shards")


@pytest.mark.parametrize("clip", [CLIP, Clip(frames=8, stride=4, size=16)], ids=["paper", "tiny"])
def test_sound_is_cut_where_the_frames_are(clip: Clip) -> None:
    for segments in (2, 3, 4, 5):
        order = Order(segments)
        values = np.arange(len(order.values))
        leaves = Leaves.plain(len(values), clip, 40)
        order.act(leaves, values, np.random.default_rng(0))
        assert (np.sort(leaves.frames, 1) == np.arange(clip.frames) * clip.stride).all()
        assert (np.sort(leaves.mel_frames, 1) == np.arange(clip.mel_frames)).all()
        played = leaves.frames / clip.stride / clip.frames  # source of each frame, as a share of the clip
        middles = np.floor((np.arange(clip.frames) + 0.5) * clip.mel_frames / clip.frames).astype(int)
        heard = leaves.mel_frames[:, middles] / clip.mel_frames
        assert np.abs(heard - played - 0.5 / clip.frames).max() < 1 / clip.frames, segments
        assert len(np.unique(leaves.frames, axis=0)) == len(values)
    with pytest.raises(UserError, match="order has 5 segments and a clip 4 frames"):
        Order(5).act(Leaves.plain(1, Clip(frames=4), 40), np.zeros(1, np.int64), np.random.default_rng(0))


@pytest.mark.parametrize(
    "factors",
    [
        "time_reversal:i:2",
        "speed(1,2,0.5):i:3",
        "order(2):i:2",
        "order(4):i:3",
        "order(3):i:6 time_reversal:i:2",
        "rotation:i:4 speed(0.5,1.5):i:2",
        "speed(2,1):i:2 order(3):i:3 rotation:i:2 time_reversal:i:2",
    ],
)
def test_flashes_and_clicks_coincide(flashing: Index, factors: str) -> None:
    composition = parse(f"video:d time_shift:i:2 {factors} modality:i:2:differs augmentation:i:1", 3, PLAIN)
    tree = sampling_tree(flashing, composition, CLIP, "train", 0)
    with Loader(flashing, tree.plans(0, 4), inputs_of(flashing, CLIP), torch.device("cpu")) as loader:
        for batch in loader:
            columns = batch.plan.columns
            clips = batch.inputs["video"].floats().mean((1, 3, 4)).numpy()
            banks = batch.inputs["audio"][:, 0].mean(1).numpy()
            # modality is the last factor but one: leaf 2 k + 1 is the sound of leaf 2 k
            sounds = leaves_of(columns, MODALITIES.index("audio"))
            sound_of = {leaf - 1: bank for leaf, bank in zip(sounds, banks, strict=True)}
            both = 0
            for leaf, clip in zip(leaves_of(columns, MODALITIES.index("video")), clips, strict=True):
                white, loud = clip > clips.mean(), sound_of[leaf] > (banks.max() + banks.min()) / 2
                stored = batch.plan.leaves.frames[batch.plan.columns["leaf"] == leaf][0]
                steps = np.abs(np.diff(stored))
                for frame in range(2, CLIP.frames - 2):
                    near = slice(frame - 2, frame + 3)
                    # skip frames near an edge or a cut, which the 20 ms windows of sound overlap
                    if len(set(white[near].tolist())) == 1 and steps[near].max() <= 2:
                        rows = loud[round(frame * ROWS / FRAMES) : round((frame + 1) * ROWS / FRAMES)]
                        assert (rows.mean() > 0.5) == white[frame]
                        both += white[frame]
            assert both >= 4


def leaves_of(columns: dict[str, np.ndarray], modality: int) -> list[int]:
    """Leaf numbers of a modality, in the order of the batch."""
    return columns["leaf"][columns["modality"] == modality].tolist()
