"""Where a model comes from: its id and commit on the Hugging Face Hub, its licence and base models."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Self

from keras_transformer.interop.hub import CARD, MAIN

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?\n)---\s*(\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+):\s*(.*)")
_ITEM = re.compile(r"\s*-\s+(.*)")
_OTHER = "other"  # the licence of models whose `license_name` is not in the hub's list
_MAX_BYTES = 2**16  # of a model card that are read


@dataclasses.dataclass(frozen=True)
class Source:
    """The published model from which a pipeline was read.

    Attributes:
        name: its id on the Hugging Face Hub, or the name of its folder.
        revision: the requested branch, tag or commit; None for the main branch, and for a folder.
        commit: the commit of its files; None for a folder.
        conversion: the commit of the hub's pull request with the weights, if they are from there.
        license: its licence, as the front matter of its model card names it.
        base_models: the models from which it was derived, by the same front matter.
        fine_tuned: whether the weights were trained further.
    """

    name: str
    revision: str | None = None
    commit: str | None = None
    conversion: str | None = None
    license: str | None = None
    base_models: tuple[str, ...] = ()
    fine_tuned: bool = False

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str], revision: str | None = None) -> Self:
        """Return the source of a folder, or of a folder in the cache of `huggingface_hub`.

        Args:
            folder: the folder, as `interop.hub.local_folder` returns it.
            revision: the requested revision.
        """
        path = pathlib.Path(folder).absolute()
        card = _front_matter(path / CARD)
        license_ = card.get("license", ())
        described: dict[str, Any] = {
            "license": ", ".join(card.get("license_name", license_) if license_ == (_OTHER,) else license_)
            or None,
            "base_models": card.get("base_model", ()),
        }
        repository = path.parents[1]
        if path.parent.name != "snapshots" or not repository.name.startswith("models--"):
            return cls(path.name, **described)
        commit, conversion = path.name, None
        references = repository / "refs"
        pull_requests = [file.read_text() for file in references.glob("refs/pr/*")]
        if revision in (None, MAIN) and commit in pull_requests and (references / MAIN).is_file():
            commit, conversion = (references / MAIN).read_text(), commit
        name = repository.name.removeprefix("models--").replace("--", "/")
        return cls(name, revision, commit, conversion, **described)

    @classmethod
    def of_json(cls, content: Any) -> Self | None:
        """Return the source that `as_json` has written; None for None."""
        if content is None:
            return None
        try:
            return cls(**{**content, "base_models": tuple(content["base_models"])})
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"`source` must describe the source of a model. Received: {content!r}"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, and the base models."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value or name == "base_models"}


def _front_matter(path: pathlib.Path) -> Mapping[str, tuple[str, ...]]:
    """Return the strings, and lists of strings, in the YAML before the text of a model card."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES).decode(errors="replace").replace("\r\n", "\n")
    entries: dict[str, tuple[str, ...]] = {}
    name = None
    matched = _FRONT_MATTER.match(text.removeprefix("\ufeff"))
    for line in matched[1].splitlines() if matched else ():
        if entry := _ENTRY.fullmatch(line):
            name, value = entry.groups()
            values = value[1:-1].split(",") if value.startswith("[") and value.endswith("]") else [value]
            entries[name] = tuple(filter(None, map(_plain, values)))
        elif name and (item := _ITEM.fullmatch(line)):
            entries[name] += tuple(filter(None, [_plain(item[1])]))
    return entries


def _plain(value: str) -> str:
    """Return a scalar of YAML without quotes and comment; "" for null."""
    value = re.sub(r"\s+#.*", "", value).strip()
    quoted = re.fullmatch(r"""(["'])(.*)\1""", value)
    return quoted[2] if quoted else "" if value in ("null", "~", ">", "|", ">-", "|-") else value
