"""The base class of targets: the files of an export for a runtime."""

import abc
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import keras_transformer_serving as serving
from keras_transformer_serving.targets import register
from keras_transformer_serving.tasks import FORWARD, registered

if TYPE_CHECKING:  # comparisons know targets
    from keras_transformer.export.parity.comparison import WithPipeline

Say = Callable[[str], None]


class ExportTarget(abc.ABC):
    """Base class of the files of an export for a runtime, which a subclass joins by its `name`.

    A subclass with the name "table" writes the folder "table" of exports, which the `ServedTarget` of the same name
    runs. A subclass defines `write`, and `check` if it does not support every pipeline. A module that nothing
    imports is found as an entry point of the group "keras_transformer.targets" with this name.

    Attributes:
        name: the name, for the argument `targets` of `bundle` and `--formats` of the command line.
        tags: tags of the model card on the Hugging Face Hub.
        classes: the subclasses, by name.
    """

    name: ClassVar[str]
    tags: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[dict[str, type["ExportTarget"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**kwargs)
        register(ExportTarget.classes, cls)

    @staticmethod
    def named(part: str) -> type["ExportTarget"]:
        """Return the class of a name, or of a part of an export such as "saved_model/es-en/1".

        Raises:
            ValueError: if there is none.
        """
        name = part.split("/")[0]
        target = registered(ExportTarget.classes, "keras_transformer.targets", name)
        if target is None:
            known = ", ".join(map(repr, ExportTarget.classes))
            raise ValueError(
                f"A target must be one of {known}, or of a package that is installed. Received: {name!r}"
            )
        return target

    def check(self, pipeline: Any) -> None:  # noqa: B027 (most need no check)
        """Raise an error that names what of a pipeline the target does not support, before anything is written.

        Raises:
            ImportError: if a package is missing.
            ValueError: if the pipeline or an option of the target is not supported.
        """

    def part(self, folder: pathlib.Path) -> str:
        """Return the folder of the files, relative to that of the export, with forward slashes."""
        return self.name

    def title(self, part: str) -> str:
        """Return the line that is shown when the part is written."""
        return part

    @abc.abstractmethod
    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the files of the part.

        Args:
            pipeline: the pipeline.
            folder: the folder to write into, which exists.

        Raises:
            ValueError: if an operation of the model is not supported.
        """

    def export(
        self, pipeline: Any, folder: pathlib.Path, report: dict[str, Any], compare: "WithPipeline", say: Say
    ) -> None:
        """Write the files of the part, and the report of their comparison with the pipeline.

        Args:
            pipeline: the pipeline.
            folder: the folder to write into.
            report: the part's entry of `parity.json`, which is updated.
            compare: the comparison with the pipeline.
            say: a function that prints a line of progress.

        Raises:
            ParityError: if an output differs.
        """
        compare.tokenizers()
        self.write(pipeline, folder)
        report.update(self.compare(compare, folder))
        compare.store(folder, self.signatures_compared)

    # Of a part that is written. The defaults are those of a target that a `ServedTarget` runs.

    signatures_compared: ClassVar[str | None] = FORWARD
    """The signature whose outputs are compared, of a pipeline that runs its model once; None for all."""

    @classmethod
    def compare(cls, compare: "WithPipeline", folder: pathlib.Path) -> dict[str, Any]:
        """Return the report of the comparison of a part with its pipeline, for `parity.json`.

        Raises:
            ParityError: if an output differs.
        """
        as_ids = not serving.reads_text(compare.config)
        return compare.report(
            compare.expected(cls.signatures_compared, as_ids),
            cls.runner(folder, compare.config, compare.tokenizer),
        )

    @classmethod
    def runner(
        cls, folder: pathlib.Path, config: dict[str, Any], tokenizer: serving.Tokenizer | None
    ) -> Callable[..., Any]:
        """Return a part as a function, for `parity.compare_generated` or `parity.compare_tensors`."""
        run: Callable[..., Any] = cls._served().runner(serving.PartFiles.of_folder(folder), config, tokenizer)
        return run

    @classmethod
    def verify(cls, bundle: serving.Bundle, part: str) -> dict[str, Any]:
        """Return the report of the comparison of a part with the outputs that were stored at export.

        Raises:
            ParityError: if an output differs.
        """
        return cls._served().verify(bundle, part)

    @classmethod
    def signatures(cls, folder: pathlib.Path) -> dict[str, Any]:
        """Return the inputs and outputs of signatures or graphs, for `parity.json`: by default none."""
        return {}

    @classmethod
    def serving_files(
        cls, config: Mapping[str, Any], reports: Mapping[str, Any]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of files of the folder `serving/`, from the reports of all parts."""
        yield from ()

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of a section of the model card that say how the part is used: by default none."""
        yield from ()

    @classmethod
    def _served(cls) -> type[serving.ServedTarget]:
        served = serving.ServedTarget.named(cls.name)
        if served is None:
            raise ValueError(
                f"`{cls.name}` must have a `ServedTarget` of this name, which runs it. Received: none"
            )
        return served


def targets_of(reports: Mapping[str, Any]) -> list[type[ExportTarget]]:
    """Return the targets of the parts of an export, from the content of `parity.json`."""
    return list(dict.fromkeys(ExportTarget.named(part) for part in reports))
