"""Segments of audio between the timestamps that a model of speech writes, and subtitles of them.

They are those of Whisper: a window is read up to its last segment that is complete, and the next begins there.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """A part of audio and its text.

    Attributes:
        start: the second at which it begins.
        end: the second at which it ends.
        text: its text.
        window: the second at which the window of the model begins that it is in.
    """

    start: float
    end: float
    text: str
    window: float = 0.0


class Span(NamedTuple):
    """The ids of a segment of a window.

    Attributes:
        start: the index of the timestamp at which it begins.
        end: that at which it ends.
        ids: its ids, timestamps included.
    """

    start: int
    end: int
    ids: list[int]


def spans(ids: Sequence[int], first: int, count: int) -> tuple[list[Span], int]:
    """Return the segments of a window, and the index of the timestamp at which the next window begins.

    A text after the last pair of timestamps is incomplete, and is left to the next window. Without a pair, or if the
    window ends with a single timestamp, all of it is read.

    Args:
        ids: the ids of the window, without special tokens other than timestamps.
        first: the id of the first timestamp; greater ids are later ones.
        count: the number of timestamps in the window.

    Example:
        >>> spans([100, 7, 8, 102, 102, 9, 104, 104, 5], 100, 1500)
        ([Span(start=0, end=2, ids=[100, 7, 8, 102]), Span(start=2, end=4, ids=[102, 9, 104])], 4)
    """
    times = [id_ >= first for id_ in ids]
    cuts = [place for place in range(1, len(ids)) if times[place - 1] and times[place]]
    if not cuts:
        later = [id_ - first for id_ in ids if id_ > first]
        return [Span(0, later[-1] if later else count, [*ids])], count
    is_read = times[-2:] == [False, True]
    parts = [
        ids[begin:end]
        for begin, end in zip([0, *cuts], [*cuts, *([len(ids)] if is_read else [])], strict=False)
    ]
    found = [Span(part[0] - first, part[-1] - first, [*part]) for part in parts]
    return found, count if is_read else found[-1].end


def subtitles(segments: Sequence[Segment], is_webvtt: bool = False) -> str:
    """Return segments as subtitles in the format SubRip (`.srt`), or WebVTT (`.vtt`).

    Example:
        >>> print(subtitles([Segment(0.0, 2.5, "Good morning.")]))
        1
        00:00:00,000 --> 00:00:02,500
        Good morning.
        <BLANKLINE>
    """
    mark = "." if is_webvtt else ","
    blocks = ["WEBVTT\n"] if is_webvtt else []
    for number, segment in enumerate(segments, 1):
        times = " --> ".join(_clock(second, mark) for second in (segment.start, segment.end))
        # An arrow is a line of times, and an empty line the end of a block.
        text = " ".join(segment.text.split()).replace("-->", "->")
        blocks.append(("" if is_webvtt else f"{number}\n") + f"{times}\n{text}\n")
    return "\n".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    """Return a time as hours, minutes, seconds and milliseconds."""
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds // 1000, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}{mark}{milliseconds % 1000:03d}"
