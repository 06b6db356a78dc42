"""Captions: where they are, which words they say at what time, and which parts of a video they cover.

HowTo100M comes with about 10 GB of them, so they are read as a stream and looked up on disk.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import json
import math
import os
import re
import struct
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.errors import UserError
from preprocess.datasets.listing import Missing, Video, Words

JSON_NAMES = ("caption.json", "raw_caption.json", "captions.json", "raw_caption_superclean.json")
"""One file for all videos, the first that is there; the official caption.json has lost its stop words already."""
FOLDERS = ("captions", "csv")
"""One file per video, <id>.csv or <id>.json, in the first of these folders that holds any."""
COLUMNS = ("start", "end", "text")
EXPECTED = f"""\
source/{JSON_NAMES[0]} or {", ".join(JSON_NAMES[1:])}     {{id: {{start: [...], end: [...], text: [...]}}}}
source/{FOLDERS[0]}/<id>.csv or .json             one file per video, with the columns start,end,text
source/*.csv                              with the columns video_id,start,end,text"""
LAYOUT = "{start: [...], end: [...], text: [...]}"

_LONGEST = 1e6
"""Seconds that no video lasts (eleven days)."""
_STRETCHES = 1000
"""Most stretches of a video, which ffmpeg is told on its command line."""
_RECORD = struct.Struct("<qI")  # where the video's record before this one is (-1: nowhere), and bytes that follow
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # letters and digits of any script, with apostrophes inside


class Caption(NamedTuple):
    """What is said from `start` to `end`, in seconds from the start of the video."""

    start: float
    end: float
    text: str


class Captions(ABC):
    """The captions of a data set by the id of the video, read from disk when asked for. A context manager."""

    @staticmethod
    def find(source: Path, scratch: Path) -> Captions | None:
        """The captions in the folder `source`, or None where there are none.

        Looks for the JSON files of HowTo100M (JSON_NAMES, {id: LAYOUT}), then for one csv or JSON file per video
        (FOLDERS), then for any csv with the columns video_id, start, end, text. One file of many videos is read once,
        as a stream, into a compressed file in `scratch` that vanishes when it is closed, even if the process is
        killed; memory holds the id of each video and a position, about 120 bytes (140 MB for HowTo100M).
        Reading takes about 25 MB/s, some 7 minutes for 10 GB.

        Raises UserError for a file that is damaged or empty, and where `scratch` cannot be written.
        """
        for name in JSON_NAMES:
            if (path := source / name).is_file():
                return _Spool.of(_json_videos(path), scratch, path)
        for name in FOLDERS:
            if (source / name).is_dir() and any(_caption_files(source / name)):
                return _Folder(source / name)
        if tables := [path for path in sorted(source.glob("*.csv")) if _is_table(path)]:
            return _Spool.of(itertools.chain.from_iterable(map(_csv_videos, tables)), scratch, tables[0])
        return None

    @abstractmethod
    def get(self, id: str) -> list[Caption]:
        """Captions of one video by start time; none for an unknown id.

        Those without text, with times that are not finite, or that end before they start are left out.
        Raises UserError for a damaged file, where every video has its own.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Videos that have captions."""

    def close(self) -> None:  # noqa: B027 - only some have anything to close
        """Give back what is held, the scratch file too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Spool(Captions):
    """Compressed captions in a nameless file, as records that lead to the video's record before."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._last: dict[str, int] = {}
        self._size = 0
        with self._writing():
            scratch.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed by close()

    @staticmethod
    def of(videos: Iterable[tuple[str, list[Caption]]], scratch: Path, path: Path) -> _Spool:
        """All of `videos`, which come from `path`; an id may come again, with more captions."""
        spool = _Spool(scratch)
        try:
            for id, captions in videos:
                spool._add(id, captions)
            with spool._writing():
                spool._file.flush()
            if not len(spool):
                raise UserError(f"{path} holds no captions; expected {{id: {LAYOUT}}}, or rows of captions in a csv")
        except BaseException:
            spool.close()
            raise
        return spool

    def _add(self, id: str, captions: list[Caption]) -> None:
        if not captions:
            return
        block = zlib.compress(json.dumps(captions).encode(), level=1)
        with self._writing():
            self._file.write(_RECORD.pack(self._last.get(id, -1), len(block)) + block)
        self._last[id] = self._size
        self._size += _RECORD.size + len(block)

    def get(self, id: str) -> list[Caption]:
        records: list[list[Caption]] = []
        position = self._last.get(id, -1)
        while position >= 0:
            position_before, size = _RECORD.unpack(os.pread(self._file.fileno(), _RECORD.size, position))
            block = os.pread(self._file.fileno(), size, position + _RECORD.size)
            records.append([Caption(*row) for row in json.loads(zlib.decompress(block))])
            position = position_before
        return sorted(itertools.chain.from_iterable(reversed(records)), key=attrgetter("start"))

    def __len__(self) -> int:
        return len(self._last)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk had no room for is not needed any more
            self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot set captions aside in {self._scratch}: {error.strerror or error}; they take about half "
                "of the size of the file they come from"
            ) from error


class _Folder(Captions):
    """One file per video, opened when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, id: str) -> list[Caption]:
        if os.sep in id:  # it would lead to another folder
            return []
        path = self._folder / f"{id}.csv"
        if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            return _captions(_columns(_rows(path, COLUMNS)), str(path))
        path = path.with_name(f"{id}.json")
        if os.path.isfile(path):  # noqa: PTH113
            with _reading(path):
                return _captions(json.loads(path.read_text(encoding="utf-8-sig")), str(path))
        return []

    def __len__(self) -> int:
        return sum(1 for _ in _caption_files(self._folder))


def _caption_files(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".csv", ".json")) and not entry.name.startswith("._"):  # which macOS leaves
                yield entry.name


def _json_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Every video of a JSON file {id: LAYOUT}, one in memory at a time."""
    import ijson

    with _reading(path), path.open("rb") as file:
        try:
            for id, columns in ijson.kvitems(file, "", use_float=True):
                yield id, _captions(columns, f"{path}, video {id!r}")
        except ijson.JSONError as error:
            what = re.split(r"\n|\\n", str(error).removeprefix("b'"))[0].strip()  # the parser goes on with a drawing
            raise UserError(
                f"{path} is damaged or no JSON, up to byte {file.tell()}: {what}; copy or download it again"
            ) from error


def _csv_videos(path: Path) -> Iterator[tuple[str, list[Caption]]]:
    """Every run of rows with one video_id in a csv."""
    for id, rows in itertools.groupby(_rows(path, ("video_id", *COLUMNS)), key=itemgetter("video_id")):
        yield id, _captions(_columns(rows), f"{path}, video {id!r}")


def _is_table(path: Path) -> bool:
    with _reading(path), path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return {"video_id", *COLUMNS} <= set(next(csv.reader(file), []))


def _columns(rows: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name, values in columns.items():
            values.append(row[name])
    return columns


def _rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Rows of a csv that must have these columns, and may have others."""
    with _reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        if absent := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise UserError(f"{path} has no column {' and no column '.join(absent)}; expected {','.join(columns)}")
        for row in reader:
            if None in row or None in row.values():  # how DictReader marks what is over and what lacks
                raise UserError(f"{path}, line {reader.line_num}: not as many fields as the header has")
            yield row


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What can go wrong with a file is the user's to mend, and told with the file's name."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: {error.reason}; convert it, or copy or download it again"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged or no JSON: {error}; copy or download it again") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be understood: {error}; copy or download it again") from error
    except csv.Error as error:
        raise UserError(f"{path} is damaged or no csv: {error}; copy or download it again") from error


def _captions(columns: Any, where: str) -> list[Caption]:
    """Usable captions of one video by start time. Raises UserError, which tells `where`, for any other LAYOUT."""
    named = columns if isinstance(columns, dict) else {}
    lists = [values for name in COLUMNS if isinstance(values := named.get(name), list)]
    if len(lists) < len(COLUMNS):
        raise UserError(f"{where}: expected {LAYOUT}")
    if len({len(values) for values in lists}) > 1:
        counts = ", ".join(f"{len(values)} of {name}" for name, values in zip(COLUMNS, lists, strict=True))
        raise UserError(f"{where}: the lists differ in length, {counts}")
    captions = (
        Caption(_seconds(start, where), _seconds(end, where), "" if text is None else str(text).strip())
        for start, end, text in zip(*lists, strict=True)
    )
    usable = (caption for caption in captions if caption.text and -_LONGEST < caption.start <= caption.end < _LONGEST)
    return sorted(usable, key=attrgetter("start"))


def _seconds(value: Any, where: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: the time {value!r} is no number of seconds") from error


class Vocabulary:
    """Words of a word2vec file, each with its row there, and stop words, which are never looked up."""

    def __init__(self, rows: Mapping[str, int], stop_words: Iterable[str]) -> None:
        self._rows = rows
        self._stop_words = frozenset(word.lower() for word in stop_words)

    @staticmethod
    def load(word2vec: Path, stop_words: Path | None = None) -> Vocabulary:
        """Words of a file in word2vec format: binary if it ends in .bin or .bin.gz, else text.

        Where there is no file of stop words (one per line, '#' starts a comment), scikit-learn's English ones are
        taken. The vectors, read as float16, are let go again; for the 3 million words of Google News they take
        1.8 GB for that time, and the words then about 0.4 GB. Rows are counted as gensim does: a word that comes again
        does not count.

        Raises UserError for a file that is missing or of another kind.
        """
        stop = _stop_words(stop_words)  # first, since it fails at once
        return Vocabulary(_word2vec_rows(word2vec), stop)

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def stop_digest(self) -> str:
        """The same for the stop words."""
        return hashlib.sha256("\n".join(sorted(self._stop_words)).encode()).hexdigest()[:16]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that stand for the words in their order, and so for what the tokens mean."""
        digest = hashlib.sha256()
        for word in self._rows:
            digest.update(word.encode() + b"\n")
        return digest.hexdigest()[:16]

    def words(self, captions: Iterable[Caption]) -> Words:
        """The known words that are no stop words, by start time, each with its share of the time of its caption.

        A caption only tells when it starts and ends, so its words, stop words and unknown ones too, divide that time
        evenly. A word is looked up as it is written, then in lower case. Times before the video's start become 0.
        """
        spoken: list[tuple[float, float, int]] = []
        for start, end, text in captions:
            tokens = _TOKEN.findall(text.replace("’", "'"))
            edges = [max(0.0, start + (end - start) * k / len(tokens)) for k in range(len(tokens))] + [max(0.0, end)]
            for token, edge, next_edge in zip(tokens, edges, edges[1:], strict=False):
                lower = token.lower()
                row = self._rows.get(token, self._rows.get(lower))
                if row is not None and lower not in self._stop_words:
                    spoken.append((edge, next_edge, row))
        spoken.sort(key=itemgetter(0))
        return Words(
            token=[token for _, _, token in spoken],
            start=[start for start, _, _ in spoken],
            end=[end for _, end, _ in spoken],
        )


def _word2vec_rows(path: Path) -> dict[str, int]:
    from gensim.models import KeyedVectors

    if not path.is_file():
        state = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(
            f"the word2vec file {path} {state}; download one, such as GoogleNews-vectors-negative300.bin.gz, "
            "and give its path"
        )
    binary = path.name.lower().endswith((".bin", ".bin.gz"))
    try:
        with path.open("rb") as file:
            pickled = file.read(1) == b"\x80"
        if pickled or path.suffix.lower() in {".kv", ".model", ".pkl", ".pickle"}:
            raise UserError(
                f"{path} is a pickle, which runs what it holds when it is read, and is not accepted; save the vectors "
                "with gensim's save_word2vec_format"
            )
        vectors = KeyedVectors.load_word2vec_format(str(path), binary=binary, datatype=np.float16)
    # a damaged file can stop gensim at any step
    except (OSError, ValueError, EOFError, AssertionError, MemoryError, OverflowError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as a {'binary' if binary else 'text'} word2vec file "
            f"({error or type(error).__name__}); binary files must end in .bin or .bin.gz, and the first line must "
            "hold the numbers of words and of dimensions"
        ) from error
    if not len(vectors):
        raise UserError(f"the word2vec file {path} holds no words")
    return vectors.key_to_index


def _stop_words(path: Path | None) -> frozenset[str]:
    if path is None:
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return frozenset(ENGLISH_STOP_WORDS)
    words = set()
    with _reading(path):
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
            found = line.partition("#")[0].split()
            if len(found) > 1:
                raise UserError(f"{path}, line {number}: a file of stop words has one word per line")
            words.update(found)
    return frozenset(words)


def stretches(captions: Iterable[Caption], gap: float = 2.0, least: float = 4.0) -> tuple[tuple[float, float], ...]:
    """The parts of a video that captions cover, as (start, end) in seconds, in order and apart.

    Parts less than `gap` seconds apart are one. A part shorter than `least`, the longest text clip, grows to that on
    both sides, but not to before the video's start; it may end after the video does. Starts are rounded down and ends
    up to multiples of 0.1 s: these are whole numbers both of log-mel frames (10) and, at 30 fps, of video frames (3),
    so that cutting there keeps picture and sound aligned. At another frame rate this holds where fps / 10 is whole.
    """
    # in tenths of a second, as integers; rounding first, since 0.7 * 10 is a little more than 7
    covered = [
        (max(0, math.floor(round(start * 10, 6))), max(0, math.ceil(round(end * 10, 6)))) for start, end, _ in captions
    ]
    near, shortest = math.ceil(round(gap * 10, 6)), math.ceil(round(least * 10, 6))
    grown = []
    for start, end in _joined(covered, near):
        start = max(0, start - max(0, shortest - (end - start)) // 2)
        grown.append((start, max(end, start + shortest)))
    return tuple((start / 10, end / 10) for start, end in _joined(grown, near))  # what has grown may be near again


def _joined(parts: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The union of `parts`, those that touch or are less than `near` apart made one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if joined and (start - joined[-1][1] < near or start == joined[-1][1]):
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def on_kept_clock(words: Words, stretches: Sequence[tuple[float, float]]) -> Words:
    """The words with times, in seconds, in the video that is left when only `stretches` are kept, end to end.

    A word that lies partly outside loses that part; one that lies outside altogether, or is but a moment at the end
    of a stretch, is left out. No stretches stand for the whole video, as in `Video`.
    """
    if not stretches or not words.token:
        return words
    spoken = np.array([words.start, words.end])
    edges = np.array(stretches, np.float64)  # (stretches, 2)
    starts, ends = edges.T
    # the clock stands still between stretches
    kept = np.cumsum(ends - starts)
    clock = np.interp(spoken, edges.ravel(), np.stack([kept - (ends - starts), kept], axis=1).ravel())
    clock[1] = clock.max(axis=0)  # rounding must not end a word before it starts
    following = np.searchsorted(ends, spoken[0], side="right")  # the first stretch that ends after the word's start
    begins = np.append(starts, np.inf)[following]
    inside = (begins <= spoken[0]) | (begins < spoken[1])
    return Words(
        token=np.array(words.token)[inside].tolist(), start=clock[0, inside].tolist(), end=clock[1, inside].tolist()
    )


def attach(
    items: Iterable[Video | Missing], captions: Captions, vocabulary: Vocabulary, only_captioned: bool
) -> Iterator[Video | Missing]:
    """The videos with their words; with `only_captioned`, without what nobody speaks in, or captions are silent on.

    Captions go by a video's id, else by the name of its file. A video whose captions are damaged is named as missing.
    """
    for item in items:
        if isinstance(item, Missing):
            yield item
            continue
        try:
            said = captions.get(item.id) or captions.get(item.path.stem)
        except UserError as error:
            yield Missing(item.id, f"its captions cannot be read: {error}")
            continue
        words = vocabulary.words(said)
        if not only_captioned:
            yield replace(item, words=words)
        elif said:
            gap = 2.0
            while len(kept := stretches(said, gap)) > _STRETCHES:
                gap *= 2
            yield replace(item, words=on_kept_clock(words, kept), stretches=kept)
        else:
            yield Missing(item.id, "there are no captions of it")
