"""The base class of targets: the files of an export for a runtime."""

import abc
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import keras_transformer_serving as serving
from keras_transformer.models.model import flatten_layers
from keras_transformer.pipelines.pipeline import BATCH
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_serving import graph_files, precisions
from keras_transformer_serving.graph_files import BY_DEFAULT, FLOAT32
from keras_transformer_serving.targets import register
from keras_transformer_serving.tasks import FORWARD, Tensor, registered

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
        options: the arguments of its constructor that `bundle` has, too.
        converted: the precisions besides float32 that it can write.
        precisions: the precisions to write; None for float32, and float16 and int8 if they are close enough.
        classes: the subclasses, by name.
    """

    name: ClassVar[str]
    tags: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    converted: ClassVar[tuple[str, ...]] = BY_DEFAULT
    precisions: Sequence[str] | None = (FLOAT32,)
    classes: ClassVar[dict[str, type["ExportTarget"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**kwargs)
        register(ExportTarget.classes, cls)

    @staticmethod
    def named(part: str) -> type["ExportTarget"]:
        """Return the class of a name, or of a part of an export such as "saved_model/es-en/1"."""
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

    def check_float32(self, pipeline: Any, runtime: str) -> None:
        """Raise a ValueError unless a pipeline's model has float32 weights and computes with them, for a runtime."""
        model = pipeline.model
        received = None
        if model.compute_dtype != FLOAT32:
            received = f"a model that computes in {model.compute_dtype}"
        elif any(getattr(layer, "quantization_mode", None) is not None for layer in flatten_layers(model)):
            received = "a model with quantized layers"
        if received is not None:
            raise ValueError(
                f"`pipeline` must have a model that computes in float32 for {runtime}, with weights that are not "
                f"quantized. Copy the weights to one. Received: {received}"
            )

    def check_precisions(self, dtype: str) -> None:
        """Raise a ValueError unless the precisions are valid for a model that computes in `dtype`."""
        wanted = [FLOAT32] if self.precisions is None else self.precisions
        valid = (
            isinstance(wanted, list | tuple)
            and set(wanted) <= {FLOAT32, *self.converted}
            and FLOAT32 in wanted
        )
        if not valid or len(set(wanted)) != len(wanted):
            raise ArgumentError(
                f"{{precisions}} must be None or a list of {FLOAT32!r} and optionally "
                f"{' and '.join(map(repr, self.converted))} for the target {self.name!r}",
                precisions=self.precisions,
            )
        if len(wanted) > 1 and dtype != FLOAT32:
            raise ArgumentError(
                f"{{precisions}} must be ({FLOAT32!r},) for a model that does not compute in float32. "
                f"Received: {{precisions=}}, a model that computes in {dtype}",
                precisions=self.precisions,
            )

    def title(self, part: str) -> str:
        """Return the line that is shown when the part is written: its name, and its precisions."""
        return (
            f"{part}: {', '.join(self.precisions or (FLOAT32, *BY_DEFAULT))}"
            if "precisions" in self.options
            else part
        )

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
        compare.tokenizers()  # before the conversion, which takes longer
        left_out: dict[str, str] | None = {} if self.precisions is None else None
        self.write_compared(pipeline, folder, compare, left_out)
        report.update(self.compare(compare, folder, left_out))
        compare.store(folder, self.signatures_compared)
        if left_out:
            report["left_out"] = left_out
            for precision, reason in left_out.items():
                say(f"{self.name}/{precision} is left out: {reason}")

    def write_compared(
        self, pipeline: Any, folder: pathlib.Path, compare: "WithPipeline", left_out: dict[str, str] | None
    ) -> None:
        """Write the files of the part, by default those of `write`.

        Args:
            pipeline: the pipeline.
            folder: the folder to write into.
            compare: the comparison with the pipeline, which has example inputs.
            left_out: receives why precisions cannot be converted, by name, if given.
        """
        self.write(pipeline, folder)

    # Of a part that is written. The defaults are those of a target that a `ServedTarget` runs.

    signatures_compared: ClassVar[str | None] = FORWARD
    """The signature whose outputs are compared, of a pipeline that runs its model once; None for all."""

    @classmethod
    def compare(
        cls, compare: "WithPipeline", folder: pathlib.Path, left_out: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the report of the comparison of a part with its pipeline, for `parity.json`.

        Args:
            compare: the comparison with the pipeline.
            folder: the folder of the part.
            left_out: receives why precisions are not close enough, by name, if given; their files are then deleted.

        Raises:
            ParityError: if an output differs, in another precision than float32 too much.
        """
        as_ids = not serving.reads_text(compare.config)
        expected = compare.expected(cls.signatures_compared, as_ids)
        part, rows = serving.PartFiles.of_folder(folder), {}
        names = graph_files.converted_precisions(part.names)
        run = cls.runner(folder, compare.config, compare.tokenizer)
        report = compare.report(expected, run, has_precisions=bool(names))
        for precision in names:
            try:
                run = cls._served().runner(part, compare.config, compare.tokenizer, precision)
                task = type(compare.pipeline)
                row = precisions.compare(precision, expected, run, compare.config, task)
                rows[precision] = precisions.check(precision, row, compare.remedy)
            except Exception as error:  # of any class: those of the runtime, too
                if left_out is None:
                    raise
                left_out[precision] = precisions.reason(error)
                shutil.rmtree(folder / precision)
        return {**report, **({"precisions": rows} if rows else {})}

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

    @staticmethod
    def signature(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the entry of `signatures` for a model without default values, from its inputs and outputs of a row."""
        sides = {"inputs": inputs, "outputs": outputs}
        specs = {
            side: {tensor.name: [tensor.dtype, [BATCH, *tensor.shape]] for tensor in tensors}
            for side, tensors in sides.items()
        }
        return {**specs, "defaults": {}}

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
