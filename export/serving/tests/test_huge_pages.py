"""New memory moves to huge pages."""

import mmap
import os
import re
import time

import numpy as np
import pytest

from keras_transformer_serving import huge_pages

SIZE = 64 << 20


def written_memory():
    """Return anonymous memory that is written, as an array."""
    array = np.frombuffer(mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    array[:] = 7
    return array


def huge_bytes(array):
    """Return the bytes in huge pages of the mapping of an array."""
    text, address = huge_pages._DETAILS.read_text(), array.ctypes.data
    for start, end, huge in re.findall(
        r"^(\w+)-(\w+) .*\n(?:\D.*\n)*?AnonHugePages: +(\d+)", text, re.MULTILINE
    ):
        if int(start, 16) <= address < int(end, 16):
            return int(huge) << 10
    return 0


def wait_for_huge_pages(array, least=SIZE / 2):
    end = time.monotonic() + 30
    while huge_bytes(array) < least and time.monotonic() < end:
        time.sleep(0.01)
    assert huge_bytes(array) >= least


@pytest.fixture
def _huge_pages():
    if not huge_pages._mappings():
        pytest.skip("huge pages are not available")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("Linux moves memory at once from 6.1 on")
    if huge_bytes(written_memory()):
        pytest.skip("the kernel gives huge pages to all memory")


@pytest.mark.usefixtures("_huge_pages")
@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_memory_of_the_context_moves_to_huge_pages_after_it(delay):
    with huge_pages.for_new_memory([delay]):
        array = written_memory()
        assert huge_bytes(array) < SIZE / 2
    wait_for_huge_pages(array)
    assert (array == 7).all()


@pytest.mark.usefixtures("_huge_pages")
def test_memory_that_is_allocated_later_moves_after_the_next_delay():
    with huge_pages.for_new_memory([0.0, 0.5]):
        first = written_memory()
    wait_for_huge_pages(first)
    second = written_memory()
    before = huge_bytes(second)  # its mapping may be that of the first, too
    wait_for_huge_pages(second, before + SIZE / 2)


def test_memory_is_not_searched_again_where_none_was_allocated(monkeypatch):
    monkeypatch.setattr(huge_pages, "_mappings", lambda: "all")
    moved, memory = [], iter([0, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 2 << 30, 2 << 30])
    monkeypatch.setattr(huge_pages, "_move", moved.append)
    monkeypatch.setattr(huge_pages, "_memory", lambda: next(memory))
    with huge_pages.for_new_memory([0.0, 0.0, 0.0]):
        pass
    assert moved == ["all", "all"]  # not after the second delay


@pytest.mark.usefixtures("_huge_pages")
def test_earlier_memory_stays():
    earlier = written_memory()
    size = huge_bytes(earlier)
    huge_pages._move(huge_pages._mappings())
    assert huge_bytes(earlier) == size


def test_nothing_moves_where_huge_pages_are_disabled(monkeypatch, tmp_path):
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "_SETTING", setting)
    assert not huge_pages._mappings()
    monkeypatch.setattr(huge_pages, "_SETTING", tmp_path / "missing")
    assert not huge_pages._mappings()


def test_nothing_moves_where_the_system_does_not_describe_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(huge_pages, "_DETAILS", tmp_path / "missing")
    moved = []
    monkeypatch.setattr(huge_pages, "_advise", lambda *part: moved.append(part))
    with huge_pages.for_new_memory([0.0]):
        array = written_memory()
    assert (array == 7).all()
    assert not moved


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], [(0, 10)]),
        ([(2, 3), (5, 12)], [(0, 2), (3, 5)]),
        ([(0, 10)], []),
        ([(0, 1), (20, 30)], [(1, 10)]),
    ],
)
def test_new_parts_of_a_mapping_are_outside_of_earlier_ones(before, expected):
    size = huge_pages._LEAST
    found = huge_pages._new_parts((0, 10 * size), [(start * size, end * size) for start, end in before])
    assert found == [(start * size, end * size) for start, end in expected]


def test_new_parts_are_whole_huge_pages():
    size, page = huge_pages._LEAST, huge_pages._SIZE
    assert huge_pages._new_parts((1, size + page + 1), []) == [(page, size + page)]
    assert huge_pages._new_parts((1, size), []) == []
