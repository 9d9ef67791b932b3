"""The engines of exports without TensorFlow: what runs the part that a target writes."""

import abc
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from keras_transformer_serving import precisions
from keras_transformer_serving.bundle import SERVING, TOKENIZER, Bundle
from keras_transformer_serving.graph_files import FLOAT32, converted_precisions
from keras_transformer_serving.model import Model
from keras_transformer_serving.parity import (
    EXAMPLES,
    GeneratingExport,
    ParityError,
    Reference,
    compare_with_stored,
    exported_tokenizer,
    load_examples,
    seeded,
)
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.sessions import Provider
from keras_transformer_serving.tasks import registered
from keras_transformer_serving.text import Tokenizer

T = TypeVar("T")


class EngineOptions(NamedTuple):
    """How an engine computes; see `keras_transformer_serving.load`.

    Attributes:
        precision: the precision.
        providers: ONNX Runtime's execution providers.
        threads: the number of threads that share an operation.
        workers: the number of batches that are computed at the same time.
        save_memory: whether memory is saved at the price of speed.
    """

    precision: str = FLOAT32
    providers: Sequence[Provider] | None = None
    threads: int | None = None
    workers: int = 1
    save_memory: bool = False


class ServedTarget(abc.ABC):
    """Base class of what runs the files of a target, which a subclass joins by the target's `name`.

    A subclass with the name "table" runs the folder "table" of exports. A module that nothing imports is found as an
    entry point of the group "keras_transformer_serving.targets" with this name.

    Attributes:
        name: the name of the target, and of its folder in exports.
        options: the names of the `EngineOptions` that its engine takes; others are refused.
        classes: the subclasses, by name.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[dict[str, type["ServedTarget"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by the name of its target."""
        super().__init_subclass__(**kwargs)
        register(ServedTarget.classes, cls)

    @staticmethod
    def named(part: str) -> type["ServedTarget"] | None:
        """Return the class that runs a part of an export, such as "onnx"; None if there is none."""
        return registered(ServedTarget.classes, "keras_transformer_serving.targets", part.split("/")[0])

    @classmethod
    @abc.abstractmethod
    def engine(cls, files: PartFiles, config: dict[str, Any], options: EngineOptions) -> Any:
        """Return the engine of a part.

        Args:
            files: the part's files.
            config: the export's settings.
            options: how it computes.

        Returns:
            A `GenerationEngine`, such as an `ExportedEngine`, if the pipeline generates, else a `ForwardEngine`.

        Raises:
            ImportError: if a package is missing.
        """

    @classmethod
    def size(cls, sizes: Mapping[str, int], options: EngineOptions) -> int:
        """Return the number of bytes of the files that the engine reads, of the sizes of all files of a part."""
        return sum(sizes.values())

    @classmethod
    def check_options(cls, options: EngineOptions) -> None:
        """Raise a ValueError if the engine does not take an option that is given."""
        for name, value in options._asdict().items():
            default = EngineOptions._field_defaults[name]
            if value != default and name not in cls.options:
                raise ValueError(
                    f"`{name}` must be {default!r} for the engine {cls.name!r}. Received: {name}={value!r}"
                )

    @classmethod
    def runner(
        cls, files: PartFiles, config: dict[str, Any], tokenizer: Tokenizer | None, precision: str = FLOAT32
    ) -> Any:
        """Return a part as a function, for `parity.compare_generated` or `parity.compare_tensors`.

        Args:
            files: the part's files.
            config: the export's settings.
            tokenizer: the export's tokenizer; None if it needs TensorFlow.
            precision: the precision.
        """
        options = EngineOptions(precision)
        if "generation" in config:
            config = seeded(config)
            return GeneratingExport(cls.name, cls.engine(files, config, options), config, tokenizer)
        model = Model(cls.engine(files, config, options), config)
        return lambda _graph, inputs: model.run(**inputs)

    @classmethod
    def verify(cls, bundle: Bundle, part: str) -> dict[str, Any]:
        """Compare a part, in each precision, with the outputs that were stored at export.

        Returns:
            The report of `parity.compare_with_stored`, and if there are other precisions than float32 "precisions",
            the reports of `precisions.compare` on them.

        Raises:
            ParityError: if an output differs, in another precision too much.
        """
        files, config = PartFiles.of_bundle(bundle, part), bundle.config
        tokenizer, stored = exported_tokenizer(bundle), bundle.parity[part]
        report = compare_with_stored(bundle, part, cls.runner(files, config, tokenizer))
        names, reports = converted_precisions(files.names), stored.get("precisions", {})
        if set(names) != set(reports):
            raise ParityError(
                f"`{bundle.folder / part}` must have the precisions {sorted(reports)}. "
                f"Export it again. Received: {sorted(names)}"
            )
        if not names:
            return report
        expected: Any = None
        if "examples" in stored:
            expected = Reference.stored(stored)
        else:
            expected = load_examples(io.BytesIO(bundle.read(f"{part}/{EXAMPLES}")))
        rows = {}
        for precision in names:
            # An export is verified with its own thresholds, those of the version that wrote it.
            thresholds = reports[precision].get("thresholds")
            run = cls.runner(files, config, tokenizer, precision)
            row = precisions.compare(precision, expected, run, config, thresholds=thresholds)
            rows[precision] = precisions.check(precision, row)
        return {**report, "precisions": rows}


def register(classes: dict[str, type[T]], target: type[T]) -> None:
    """Add the class of a target to `classes` by its name, which is that of a folder in exports."""
    name = getattr(target, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or name in (TOKENIZER, SERVING):
        raise TypeError(
            f"`{target.__name__}.name` must be a string of letters, digits and underscores, other than {TOKENIZER!r} "
            f"and {SERVING!r}. Received: name={name!r}"
        )
    classes[name] = target


def part_to_run(bundle: Bundle, engine: str | None = None) -> tuple[str, type[ServedTarget]]:
    """Return the part of an export that is run without TensorFlow, and the target that runs it.

    Args:
        bundle: the export.
        engine: the name of the target; by default "onnx", or the first that can be run.

    Raises:
        FileNotFoundError: if no part can be run.
        ValueError: if `engine` names none.
    """
    folders = sorted({name.split("/")[0] for name in bundle.manifest["files"] if "/" in name})
    found = {name: target for name in folders if (target := ServedTarget.named(name)) is not None}
    if not found:
        known = ", ".join(ServedTarget.classes)
        raise FileNotFoundError(
            f"`folder` must be an export with a part that runs without TensorFlow, such as {known}. Received: "
            f"folder={str(bundle.folder)!r}, with {', '.join(folders)}"
        )
    if engine is None:
        engine = "onnx" if "onnx" in found else next(iter(found))
    if engine not in found:
        raise ValueError(
            f"`engine` must be one of the export's: {', '.join(found)}. Received: engine={engine!r}"
        )
    return engine, found[engine]
