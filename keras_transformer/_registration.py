"""Makes Keras know this package's classes, in whichever order the two are imported.

`keras.models.load_model` finds a class by its registered name alone. Registering means importing the modules
that define the classes, which needs Keras; importing Keras from `keras_transformer/__init__.py` would make
`keras_transformer.serving` slow to start. So the import waits until Keras itself is there.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_MODULES = ("relations", "layers", "models", "training")


def register() -> None:
    """Import every module that defines Keras-serialisable classes."""
    for name in _MODULES:
        importlib.import_module(f"keras_transformer.{name}")


def install() -> None:
    """Register now if Keras is imported, or else as soon as it is."""
    if _keras_is_imported():
        register()
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())


def _keras_is_imported() -> bool:
    return hasattr(sys.modules.get("keras"), "saving")


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Finds Keras and our subpackages as the other finders do, and registers once the outermost of them has run.

    Our own may be the first to import Keras: registering in the midst of that would need what is half imported.
    """

    def __init__(self) -> None:
        self.running = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "keras" and fullname.rpartition(".")[0] != __package__:
            return None
        sys.meta_path.remove(self)  # or it would find itself
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)  # being found is not being imported: TensorFlow only looks
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec

    def finished(self) -> None:
        """One of the modules has run."""
        if self.running == 0 and _keras_is_imported() and self in sys.meta_path:
            sys.meta_path.remove(self)
            register()


class _RegisteringLoader(importlib.abc.Loader):
    """Runs a loader and tells the finder; every other question goes to the loader it wraps."""

    def __init__(self, loader: importlib.abc.Loader, finder: _AfterKeras) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._finder.running += 1
        try:
            self._loader.exec_module(module)
        finally:
            self._finder.running -= 1
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._finder.finished()
