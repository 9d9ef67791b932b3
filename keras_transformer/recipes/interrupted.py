"""Interrupted runs that can be resumed: a folder beside the results, until the run is complete."""

import contextlib
import hashlib
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from keras_transformer import processes
from keras_transformer.recipes import distributed
from keras_transformer.recipes.pretrained import load_pipeline
from keras_transformer.recipes.recipe import AroundSteps, Recipe
from keras_transformer.training import ExactResume, states
from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_serving import files

_FORMAT = 1


class ResumableRun:
    """A run that can be resumed, with recipe, untrained pipeline and training states in `training/` of its folder."""

    def __init__(self, folder: pathlib.Path, recipe: Recipe) -> None:
        self.folder, self._recipe = folder / "training", recipe

    @classmethod
    def of(cls, folder: pathlib.Path, recipe: Recipe, resume: bool) -> Self:
        """Return a new run, or an interrupted one.

        Raises:
            FileExistsError: if `folder` exists and `resume` is False, or it has files but no run.
            FileNotFoundError: if the states of an interrupted run are missing.
            ValueError: if the run has another recipe or other data, or processes differ.
        """
        run = cls(folder, recipe)
        if folder.exists() and not resume:
            reason = "which exists and is not changed"
            if run._file.is_file():
                reason += ". It holds an interrupted run, which {resume=True} continues"
            raise FileExistsError(Message("{folder} must be new. Received: {path!s}, " + reason, path=folder))
        if run._file.is_file():
            saved = files.read_json(run._file)
            files.check_format(run._file, saved, _FORMAT)
            files.check_entries(run._file, saved, options=dict, task=str, examples=dict)
            check_same(folder, recipe, saved)
            for name, digest in run._digests().items():
                if saved["examples"].get(name) != digest:
                    raise ArgumentError(
                        "{} must have the same examples as the interrupted run in {folder!s}. Received: other examples",
                        name,
                        folder=folder,
                    )
        elif run._report.is_file():
            saved = files.read_json(run._report)
            files.check_entries(run._report, saved, options=dict, task=str)
            check_same(folder, recipe, saved)
            if saved.get("signal"):
                raise FileNotFoundError(
                    Message(
                        "{folder} must have the states of the interrupted run in training/, to resume it; {from_} "
                        "begins another run with its weights. Received: {path!s}, stopped by {signal!s}, without "
                        "training/run.json",
                        path=folder,
                        signal=saved["signal"],
                    )
                )
        else:
            if folder.exists() and not (folder.is_dir() and _is_empty(folder)):
                raise FileExistsError(
                    Message(
                        "{folder} must be new or a run to resume. Received: {path!s}, without a run",
                        path=folder,
                    )
                )
            files.nearest_folder(folder)
        run._check_agreement()
        return run

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the run, unless it is complete.

        Raises:
            BlockingIOError: if another process trains it.
        """
        folder = self.folder.parent.resolve()  # one lock for all links to it
        if self.is_complete or not processes.current().is_main:
            yield
            return
        lock = folder.with_name(f".{folder.name}.lock")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(files.locked_folder(lock))
            except BlockingIOError as error:
                raise BlockingIOError(
                    Message(
                        "{folder} must be written by one training at a time. Wait until the other has ended, or choose "
                        "another folder. Received: {path!s}, which {holder!s} is writing",
                        path=self.folder.parent,
                        holder=files.lock_holder(lock),
                    )
                ) from error
            yield

    @property
    def is_complete(self) -> bool:
        """True if the run has a report and nothing to resume."""
        return not self._file.is_file() and self._report.is_file()

    def pipeline(self, around_steps: AroundSteps = contextlib.nullcontext) -> Any:
        """Return the pipeline to train: the interrupted run's if it has a training state, otherwise a new one."""
        if states.num_batches(self.folder) is not None:
            self._check_files()
            return load_pipeline(self.folder / "pipeline")
        pipeline = self._recipe.untrained(around_steps)
        started = {
            "format": _FORMAT,
            "task": self._recipe.task,
            "options": self._recipe.options(),
            "examples": self._digests(),
        }
        if processes.current().is_main:
            with files.new_folder(self.folder, overwrite=True) as new:
                distributed.local(pipeline).save(new / "pipeline")
                files.write_json(new / self._file.name, {**started, "files": list(files.entries(new))})
        return pipeline

    def callback(self) -> ExactResume:
        """Return the callback that saves training states and continues from the last one."""
        return ExactResume(self.folder, "auto", on_signal="stop")

    def remove(self) -> None:
        """Remove the folder of training states when the run is complete."""
        self._file.unlink()  # first, so that a partly removed folder is not resumed
        shutil.rmtree(self.folder)

    def is_kept_after_error(self, error: BaseException) -> bool:
        """Return whether a run can be resumed after an error; if not, remove its folder.

        A run without a batch is kept after an error of the system only, such as a full disk.
        """
        batches = states.num_batches(self.folder)
        if batches or (batches is not None and isinstance(error, OSError)):
            return True
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and _is_empty(self.folder.parent):
            self.folder.parent.rmdir()
        return False

    @property
    def _file(self) -> pathlib.Path:
        return self.folder / "run.json"

    @property
    def _report(self) -> pathlib.Path:
        return self.folder.parent / "report.json"

    def _check_files(self) -> None:
        """Raise a FileNotFoundError if a file of the pipeline is missing."""
        for name in files.read_json(self._file).get("files", ()):
            if not (self.folder / name).is_file():
                raise FileNotFoundError(
                    Message(
                        "{folder} must have all files of the interrupted run, to resume it. "
                        "Received: a folder without {file!s}",
                        file=self.folder / name,
                    )
                )

    def _check_agreement(self) -> None:
        """Raise the same ValueError in all processes unless they have the same options, examples and folder."""
        if processes.current().count > 1:
            options = {**self._recipe.options(changed=False), **self._digests()}
            progress = "complete" if self.is_complete else f"batches {states.num_batches(self.folder)}"
            processes.check_agreement(task=self._recipe.task, **options, folder=progress)

    def _digests(self) -> dict[str, str]:
        """Return a hash of the examples of each split."""
        names = ("data", "validation", "test")
        return {name: _digest(split) for name, split in zip(names, self._recipe.splits, strict=True)}


def check_same(folder: pathlib.Path, recipe: Recipe, saved: dict[str, Any]) -> None:
    """Raise a ValueError unless a run has the task and options of a recipe; files of examples may have moved.

    Args:
        folder: the folder of the run, for the error.
        recipe: the recipe.
        saved: the "task" and "options" of the run.
    """
    options = json.loads(json.dumps(recipe.options()))
    pairs = {
        name: (options.get(name), saved["options"].get(name))
        for name in sorted({*options, *saved["options"]})
    }
    for name, (received, expected) in {"task": (recipe.task, saved["task"]), **pairs}.items():
        both_are_examples = name in ("data", "validation", "test") and not any(
            value is None or isinstance(value, float) for value in (received, expected)
        )
        if received != expected and not both_are_examples:
            shown = ["the default" if value is None else repr(value) for value in (received, expected)]
            raise ArgumentError(
                "{} must equal that of the run in {folder!s}, to resume it; "
                "{from_} starts another run with its weights. Received: {received!s}, expected: {expected!s}",
                name,
                folder=folder,
                received=shown[0],
                expected=shown[1],
            )


def _is_empty(folder: pathlib.Path) -> bool:
    return not any(folder.iterdir())


def _digest(examples: Any) -> str:
    def as_json(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value)).hexdigest()]
        return str(value)

    digest = hashlib.sha256()
    for example in () if examples is None else examples:
        digest.update(json.dumps(example, default=as_json).encode() + b"\n")
    return digest.hexdigest()
