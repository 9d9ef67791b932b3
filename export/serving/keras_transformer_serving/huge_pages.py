"""Huge pages of Linux for weights."""

import contextlib
import ctypes
import errno
import mmap
import pathlib
import re
import threading
import time
from collections.abc import Iterator, Sequence

_SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TOTAL, _MAPPINGS, _DETAILS = map(pathlib.Path, ("/proc/self/statm", "/proc/self/maps", "/proc/self/smaps"))
# A private anonymous mapping that can be written: its ends, and in the details the kilobytes of it that are in memory.
_ANONYMOUS = r"^(\w+)-(\w+) rw-p \w+ \w+:\w+ 0 .*\n"
_RESIDENT = rf"{_ANONYMOUS}(?:\D.*\n)*?Rss: +(\d+) kB"
_SIZE = 2 << 20  # of a huge page
_LEAST = 16 << 20  # of new memory that is moved; stacks of threads, of 8 MiB, are hardly used
_SHARE = 0.9  # of a mapping that is in memory: all of it is once it has moved
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25

_Interval = tuple[int, int]  # of addresses


@contextlib.contextmanager
def for_new_memory(delays: Sequence[float] = (5.0, 60.0, 600.0)) -> Iterator[None]:
    """Move the memory that is allocated from the start of the context on to huge pages.

    A step of generation reads all weights, and the keys and values of all tokens before. In pages of 4 KiB, the
    processor looks up the address of each, and does not fetch the next one before. ONNX Runtime and the C library do
    not ask for larger ones. The context changes nothing on other systems than Linux, or if huge pages are disabled.
    Before Linux 6.1, the kernel moves the memory bit by bit.

    Args:
        delays: the seconds from the end of the context until the memory is moved, and from one time to the next, in a
            thread: later ones move what requests have taken, which ONNX Runtime keeps. With 0 only, it moves at the
            end of the context. That takes one or two milliseconds for each megabyte, and processes that end before
            would gain nothing from it.
    """
    memory, before = _memory(), _mappings()
    yield
    if not before or _memory() - memory < _LEAST:
        return
    thread = threading.Thread(target=_move_after, args=[delays, memory, before], daemon=True)
    thread.start()
    if not any(delays):
        thread.join()


def _move_after(delays: Sequence[float], memory: int, before: str) -> None:
    """Move memory after each delay if there is more of it than before the last one."""
    for delay in delays:
        time.sleep(delay)
        if _memory() - memory >= _LEAST:
            _move(before)
            memory = _memory()


def _memory() -> int:
    """Return the bytes of the process in memory, 0 where the system does not tell."""
    try:
        return int(_TOTAL.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _mappings() -> str:
    """Return the description of all mappings, "" if huge pages are not available."""
    try:
        return "" if "[never]" in _SETTING.read_text() else _MAPPINGS.read_text()
    except OSError:
        return ""


def _move(before: str) -> None:
    """Move the memory that is not in mappings of an earlier description."""
    try:
        details = _DETAILS.read_text()
    except OSError:  # as where a sandbox hides it
        return
    earlier = [_interval(*ends) for ends in re.findall(_ANONYMOUS, before, re.MULTILINE)]
    for *ends, kilobytes in re.findall(_RESIDENT, details, re.MULTILINE):
        start, end = _interval(*ends)
        if end - start >= _LEAST and int(kilobytes) << 10 >= _SHARE * (end - start):
            for part in _new_parts((start, end), earlier):
                _advise(*part)


def _interval(start: str, end: str) -> _Interval:
    return int(start, 16), int(end, 16)


def _new_parts(mapping: _Interval, before: list[_Interval]) -> list[_Interval]:
    """Return the large parts of a mapping that are not in earlier ones, from one huge page to another."""
    parts = [mapping]
    for start, end in before:
        parts = [
            part
            for first, last in parts
            for part in ((first, min(last, start)), (max(first, end), last))
            if part[0] < part[1]
        ]
    whole = [(-(-start // _SIZE) * _SIZE, end // _SIZE * _SIZE) for start, end in parts]
    return [(start, end) for start, end in whole if end - start >= _LEAST]


def _advise(start: int, end: int) -> None:
    """Move the memory between two addresses to huge pages."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if madvise(start, end - start, _MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL:
        madvise(start, end - start, _MADV_HUGEPAGE)
