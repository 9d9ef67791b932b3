"""Runs the notebooks from top to bottom; a cell that raises makes it fail.

Results go to `runs/notebooks`; `--write` puts them into the notebooks themselves.
"""

import argparse
import pathlib
import sys
import time

import nbclient
import nbformat

HERE = pathlib.Path(__file__).parent


def main() -> int:
    """Run the notebooks named on the command line, by default all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=pathlib.Path, default=sorted(HERE.glob("*.ipynb")))
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebooks")
    options = parser.parse_args()
    results = HERE.parent / "runs" / "notebooks"
    results.mkdir(parents=True, exist_ok=True)
    for path in options.notebooks:
        notebook = nbformat.read(path, as_version=4)
        began = time.monotonic()

        def started(cell: nbformat.NotebookNode, cell_index: int, began: float = began) -> None:
            first = cell.source.strip().splitlines()[:1]
            print(
                f"  {time.monotonic() - began:6.1f} s  cell {cell_index}: {' '.join(first)[:80]}", flush=True
            )

        print(path.name, flush=True)
        client = nbclient.NotebookClient(
            notebook,
            timeout=900,
            kernel_name="python3",
            on_cell_execute=started,
            resources={"metadata": {"path": str(results)}},
        )
        client.execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times, which differ at every run
            if "outputs" in cell:  # what libraries log as they start
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path if options.write else results / path.name)
        print(f"  {time.monotonic() - began:6.1f} s  done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
