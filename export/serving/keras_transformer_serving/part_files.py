"""The files of a part of an export: of one that is complete, or in the folder where it is written."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Self

from keras_transformer_serving.bundle import Bundle


@dataclasses.dataclass(frozen=True)
class PartFiles:
    """The files of a part.

    Attributes:
        names: their names, relative to the part's folder.
        read: a function from a name to the content of the file, after verifying it; or to its path, for files that do
            not change.
        left_out: why precisions are missing, by name.
    """

    names: Collection[str]
    read: Callable[[str], bytes | os.PathLike[str]]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def content(self, name: str) -> bytes:
        """Return the content of a file."""
        found = self.read(name)
        return found if isinstance(found, bytes) else pathlib.Path(found).read_bytes()

    @classmethod
    def of_bundle(cls, bundle: Bundle, part: str) -> Self:
        """Return the files of a part of an export."""
        start = f"{part}/"
        names = {name.removeprefix(start) for name in bundle.manifest["files"] if name.startswith(start)}
        return cls(names, lambda name: bundle.read(start + name), bundle.left_out(part))

    @classmethod
    def of_folder(cls, folder: pathlib.Path) -> Self:
        """Return the files of a part in its folder."""
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        return cls(names, lambda name: folder / name)
