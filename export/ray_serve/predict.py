"""Run an export on every line of a large file with Ray Data.

    python export/ray_serve/predict.py runs/quickstart/export sentences.txt answers --workers 4

writes JSON lines with "text", "output" and "error" into files of the folder `answers`, in the order of the lines. It
needs `pip install 'keras-transformer-serving[cpu,tokenizers]' 'ray[data]'`.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

import keras_transformer_serving as serving


class Predictor:
    """The export, loaded once by each worker.

    Args:
        bundle: the folder of the export.
        threads: the number of threads of a worker.
        precision: "float32", "float16", "int8" or "int4".
    """

    def __init__(self, bundle: str, threads: int, precision: str) -> None:
        self._model = serving.load(bundle, threads=threads, precision=precision)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """Return the outputs of a batch of lines; one that is refused has an error, and does not change others."""
        lines = [bytes(line) for line in batch["line"]]
        outputs, errors = zip(*self._run(lines), strict=True)
        # Columns of text: labels, words and spans have different types.
        return {
            "text": [line.decode(errors="replace") for line in lines],
            "output": [
                json.dumps(output, ensure_ascii=False, default=np.ndarray.tolist) for output in outputs
            ],
            "error": list(errors),
        }

    def _run(self, lines: list[bytes]) -> list[tuple[Any, str]]:
        """Return the output and the error of each line; a batch with a refused one is halved."""
        try:
            return [(output, "") for output in self._model([line.decode() for line in lines])]
        except ValueError as error:  # of bytes that are not UTF-8, too
            if len(lines) == 1:
                return [(None, str(error))]
        middle = len(lines) // 2
        return self._run(lines[:middle]) + self._run(lines[middle:])


def read_lines(part: dict[str, Any]) -> list[dict[str, bytes]]:
    """Return the lines that begin in a part of a file: from "begin" to "end", in bytes, of the file "path"."""
    lines = []
    with open(part["path"], "rb") as file:
        if part["begin"]:
            file.seek(part["begin"] - 1)
            file.readline()  # it begins in the part before
        while file.tell() < part["end"] and (line := file.readline()):
            lines.append({"line": line.rstrip(b"\r\n")})
    return lines


def predict(
    bundle: str,
    texts: str,
    output: str,
    *,
    workers: int = 2,
    threads: int = 1,
    batch_size: int = 64,
    precision: str = serving.FLOAT32,
    part_bytes: int = 2**24,
) -> None:
    """Run an export on every line of a file.

    Args:
        bundle: the export, at the same place on every machine of the cluster.
        texts: a file of UTF-8, a text in each line, at the same place on every machine too.
        output: a new folder, for files of JSON lines.
        workers: the number of processes.
        threads: the number of threads, and of CPUs, of a process.
        batch_size: the number of texts that a process runs on at once.
        precision: "float32", or "float16", "int8" or "int4" if the export has them.
        part_bytes: the size of the parts of the file that are read at once.

    Raises:
        FileExistsError: if `output` exists.
        FileNotFoundError: if `texts` is not a file.
    """
    target = pathlib.Path(output).resolve()
    if target.exists():
        raise FileExistsError(f"`output` must be new. Received: output={output!r}")
    source = pathlib.Path(texts).resolve()
    if not source.is_file():
        raise FileNotFoundError(f"`texts` must be a file. Received: texts={texts!r}")
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    begins = range(0, source.stat().st_size, part_bytes)
    parts = [{"path": str(source), "begin": begin, "end": begin + part_bytes} for begin in begins]
    # Not `ray.data.read_text`, which reads a whole file into memory. Reading and writing take no CPUs, of which the
    # workers may have all.
    ray.data.from_items(parts).flat_map(read_lines, num_cpus=0).map_batches(
        Predictor,
        fn_constructor_args=(str(pathlib.Path(bundle).resolve()), threads, precision),
        batch_size=batch_size,
        num_cpus=threads,
        compute=ray.data.ActorPoolStrategy(size=workers),
    ).write_json(str(target), force_ascii=False, ray_remote_args={"num_cpus": 0})
    target.mkdir(parents=True, exist_ok=True)  # of an empty file


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Run an export on every line of a file with Ray Data.")
    parser.add_argument("bundle", help="the folder of the export")
    parser.add_argument("texts", help="a file of UTF-8, a text in each line")
    parser.add_argument("output", help="a new folder, for files of JSON lines")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default=serving.FLOAT32)
    parser.add_argument("--part-bytes", type=int, default=2**24, help="the size of parts read at once")
    options = parser.parse_args(arguments)
    try:
        predict(**vars(options))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
