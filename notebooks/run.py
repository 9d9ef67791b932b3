"""Run notebooks from top to bottom; an error in a cell is an error of the program.

The results are written to `runs/notebooks`, with `--write` to the notebooks themselves and to their translations in `es`.
"""

import argparse
import concurrent.futures
import pathlib
import sys
import time

import nbclient
import nbformat

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "runs" / "notebooks"


def main() -> int:
    """Run the notebooks named on the command line, by default all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=pathlib.Path, default=sorted(HERE.glob("*.ipynb")))
    parser.add_argument("--write", action="store_true", help="write the outputs to the notebooks")
    parser.add_argument("--jobs", type=int, default=1, help="the number of notebooks to run at once")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(run, path, path if options.write else RESULTS / path.name)
            for path in options.notebooks
        ]
        for done in concurrent.futures.as_completed(runs):
            if done.exception():
                pool.shutdown(cancel_futures=True)
            done.result()
    return 0


def run(path: pathlib.Path, result: pathlib.Path) -> None:
    """Run a notebook and write it with its outputs to `result`."""
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()

    def log(text: str) -> None:
        print(f"{path.name} {time.monotonic() - start:6.1f} s  {text}", flush=True)

    def log_cell(cell: nbformat.NotebookNode, cell_index: int) -> None:
        log(f"cell {cell_index}: {' '.join(cell.source.strip().splitlines()[:1])[:80]}")

    client = nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        on_cell_execute=log_cell,
        resources={"metadata": {"path": str(RESULTS)}},
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times differ in each run
        if "outputs" in cell:  # logs of libraries
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, result)
    translation = HERE / "es" / path.name
    if result.resolve() == HERE / path.name and translation.exists():
        copy_outputs(notebook, translation)
    log("done")


def copy_outputs(notebook: nbformat.NotebookNode, path: pathlib.Path) -> None:
    """Write the outputs of a notebook to its translation, which has the same code."""
    translation = nbformat.read(path, as_version=4)
    for cell, translated in zip(notebook.cells, translation.cells, strict=True):
        if cell.cell_type == "code":
            translated.outputs, translated.execution_count = cell.outputs, cell.execution_count
    nbformat.write(translation, path)


if __name__ == "__main__":
    sys.exit(main())
