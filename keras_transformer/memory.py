"""Memory that the C library keeps for later allocations or returns, and garbage collection."""

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator

# Parameters of `mallopt` in malloc.h, and the values that glibc reaches itself after it freed a block of 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_DEFAULTS = {_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20, _MMAP_MAX: 65536}
# Environment variables and tunables that set one of them.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold", "glibc.malloc.mmap_max")

_lock = threading.Lock()
_open_contexts = 0


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in the process inside the context, and return it to the operating system at the end.

    Without XLA, TensorFlow allocates and frees the activations of each training step. glibc returns large blocks to the
    operating system at once, and each step waits until their pages are mapped and cleared again. The context changes
    nothing with another C library, or if an environment variable sets these thresholds of glibc. Contexts may overlap,
    also in several threads; the last one to end returns the memory.
    """
    global _open_contexts
    library = _glibc()
    if library is None or _is_configured():
        yield
        return
    with _lock:
        _open_contexts += 1
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _lock:
            _open_contexts -= 1
            if not _open_contexts:
                for parameter, value in _DEFAULTS.items():
                    library.mallopt(parameter, value)
                trim()


def trim() -> None:
    """Return freed memory to the operating system, if the C library is glibc: it keeps that of smaller tensors."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library of the process if it is glibc."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    return library if hasattr(library, "gnu_get_libc_version") else None


def _is_configured() -> bool:
    """Return whether an environment variable sets a threshold."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(name in os.environ for name in _VARIABLES) or any(name in tunables for name in _TUNABLES)


_RARE = (50_000, 20, 20)  # thresholds of garbage collection; Python's are 700, 10, 10


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Exclude the objects that exist from garbage collection, and collect less often.

    Keras collects garbage after each layer that it quantizes, for which Python searches all objects of the process, and
    graphs are traced in many small objects, few of which are garbage. What the program has set itself stays.
    """
    thresholds = gc.get_threshold()
    # Collections would begin, or are as rare already, as within another context; objects would be included again.
    # Counting them, which walks through all, comes last.
    if not 0 < thresholds[0] < _RARE[0] or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    gc.set_threshold(*map(max, thresholds, _RARE))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
