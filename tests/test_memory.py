"""Memory that is freed and allocated again costs no new pages inside `freed_memory_kept` and `fit`."""

import ctypes
import gc
import resource

import keras
import numpy as np
import pytest

from keras_transformer import memory, models

pytestmark = [
    pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc"),
    pytest.mark.backend_neutral,
]
BLOCK = 64 << 20  # larger than any block that glibc keeps by default


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Remove the environment variables of glibc's allocator."""
    for name in (*memory._VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


def new_pages():
    """Allocate, fill and free a block twice, and return the number of page faults of the second time."""
    library = memory._glibc()
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        block = library.malloc(BLOCK)
        ctypes.memset(block, 1, BLOCK)
        library.free(block)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def resident():
    """Return the memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_freed_memory_is_kept_inside_the_context_only():
    outside = new_pages()
    with memory.freed_memory_kept():
        assert new_pages() < outside / 10
        kept = resident()
    assert resident() < kept - BLOCK // 2
    assert new_pages() >= outside / 2


def test_freed_memory_is_kept_until_the_last_of_several_contexts_ends():
    outside = new_pages()
    first, second = memory.freed_memory_kept(), memory.freed_memory_kept()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert new_pages() < outside / 10
    second.__exit__(None, None, None)
    assert new_pages() >= outside / 2


def test_the_thresholds_are_reset_after_an_error():
    outside = new_pages()
    with pytest.raises(KeyError), memory.freed_memory_kept():
        raise KeyError
    assert new_pages() >= outside / 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=65536:glibc.malloc.check=0"),
    ],
)
def test_thresholds_of_environment_variables_are_left_as_they_are(name, value, monkeypatch):
    outside = new_pages()
    monkeypatch.setenv(name, value)
    with memory.freed_memory_kept():
        assert new_pages() >= outside / 2


def test_other_environment_variables_change_nothing(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    outside = new_pages()
    with memory.freed_memory_kept():
        assert new_pages() < outside / 10


def test_without_glibc_nothing_changes(monkeypatch):
    outside = new_pages()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_glibc", lambda: None)
        context = memory.freed_memory_kept()
        context.__enter__()
        memory.trim()
    assert new_pages() >= outside / 2
    context.__exit__(None, None, None)


def test_fit_keeps_freed_memory():
    model = models.GPT(20, num_layers=1, num_heads=1, model_dim=8, hidden_dim=8, max_length=4, dropout=0.0)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids, pages = np.ones((4, 4), "int32"), []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: pages.append(new_pages())
    )
    outside = new_pages()
    model.fit(ids, ids, batch_size=2, verbose=0, callbacks=[callback])
    assert len(pages) == 2
    assert max(pages) < outside / 10
    assert new_pages() >= outside / 2


def is_excluded(value):
    """Return whether an object is excluded from garbage collection."""
    return all(each is not value for each in gc.get_objects())


def test_objects_that_a_program_excludes_from_garbage_collection_stay_excluded(usual_collections):
    values = [object()]
    gc.freeze()
    with memory.quick_collections():
        assert is_excluded(values)
    assert is_excluded(values)
    gc.unfreeze()
    assert not is_excluded(values)
    with memory.quick_collections():
        assert is_excluded(values)
    assert not is_excluded(values)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((700, 10, 30), (50_000, 20, 30)),
        ((60_000, 10, 10), (60_000, 10, 10)),  # as rare as a program may want
        ((0, 10, 10), (0, 10, 10)),
    ],
)
def test_garbage_is_collected_less_often_unless_a_program_set_it(own, expected, usual_collections):
    gc.set_threshold(*own)
    with memory.quick_collections():
        assert gc.get_threshold() == expected
    assert gc.get_threshold() == own


def test_a_context_within_another_does_not_count_excluded_objects(usual_collections, monkeypatch):
    """Python walks through all of them, which took as long as to build a small model."""
    with memory.quick_collections():
        monkeypatch.setattr(gc, "get_freeze_count", pytest.fail)
        with memory.quick_collections():
            assert gc.get_threshold() == (50_000, 20, 20)
