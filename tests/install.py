"""Follow the install line of each page in a new environment, and do what the page asks first.

python tests/install.py [WORD ...]    # only the lines that have one of these words

A line runs in a clone of this checkout, as a newcomer's would. Pages that have the same line share an environment, and
every line that installs from a checkout must be known here.
"""

import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "README.es.md",
    "docs/*.md",
    "docs/es/*.md",
    "export/README.md",
    "export/serving/README.md",
)
_LINE = re.compile(r"pip install [^`#\n]*\./export/serving[^`#\n]*")
_GUIDES = "docs/own_*.md"  # for the first line; they have none of their own
_BLOCK = re.compile(r"(<!-- not executed[^\n]*-->\n)?^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SOURCES = ("La casa es azul.", "¿Dónde está la estación?")
_SECONDS = 600


class Environment:
    """A new environment with a folder for what runs in it.

    Args:
        folder: the folder.
        checkout: the clone.
    """

    def __init__(self, folder: pathlib.Path, checkout: pathlib.Path) -> None:
        self.folder, self.checkout = folder, checkout
        venv.create(folder / "venv", with_pip=True)
        self._variables = {
            "PATH": os.pathsep.join([str(folder / "venv" / "bin"), os.environ["PATH"]]),
            "HOME": str(folder),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))},
        }

    def install(self, line: str) -> None:
        """Run an install line of a page in the clone."""
        self.shell(line.replace("pip install", "pip install --quiet", 1), self.checkout)

    def shell(self, line: str, folder: pathlib.Path | None = None, **variables: str) -> None:
        """Run a line of a shell, by default in the environment's folder."""
        print(f"$ {line}", flush=True)
        subprocess.run(
            ["bash", "-c", line], cwd=folder or self.folder, env={**self._variables, **variables}, check=True
        )

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(command, cwd=self.folder, env=self._variables)


def program_of(page: pathlib.Path) -> str:
    """Return the blocks of a page as a program, with one epoch of each training and without the commands of make."""
    blocks = ["import subprocess"]
    for is_left_out, language, code in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if not is_left_out and not code.startswith("make"):
            blocks.append(
                code if language == "python" else f"subprocess.run({code!r}, shell=True, check=True)"
            )
    return re.sub(r"(epochs[= ])\d+", r"\g<1>1", "\n".join(blocks))


def run_pages(environment: Environment, pages: list[pathlib.Path]) -> None:
    """Run the pages and the guides, each different program once."""
    programs = {program_of(page): page for page in [*pages, *sorted(ROOT.glob(_GUIDES))]}
    for program, page in programs.items():
        print(f"the program of {page.relative_to(ROOT)}", flush=True)
        (environment.folder / f"{page.stem}.py").write_text(program, encoding="utf-8")
        environment.shell(f"python {page.stem}.py")
    environment.shell("keras-transformer --version && keras-transformer verify export/es-en > /dev/null")
    serve(environment, environment.folder / "export" / "es-en")


def train_on_jax(environment: Environment, _: list[pathlib.Path]) -> None:
    """Train, evaluate and use a classifier on JAX, without TensorFlow."""
    rows = [
        f"{adjective} {number},{label}"
        for number in range(40)
        for adjective, label in (("fine", "yes"), ("bad", "no"))
    ]
    (environment.folder / "reviews.csv").write_text("text,label\n" + "\n".join(rows))
    environment.shell("! python -c 'import tensorflow' 2> /dev/null")
    sizes = "--tokenizer unigram --layers 1 --model-dim 16 --heads 2 --vocabulary-size 320 --epochs 1"
    environment.shell(
        f"keras-transformer train classify --data reviews.csv {sizes} --output run "
        "&& echo 'a fine film' | keras-transformer predict run -",
        KERAS_BACKEND="jax",
    )


def serve(environment: Environment, export: pathlib.Path) -> None:
    """Serve an export, and ask for a translation."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = environment.start("keras-transformer-serve", f"es-en={export}", "--port", str(port))
    try:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + _SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{address}/v2/health/ready").close()
                break
            except OSError:
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < end, "the server is not ready"
                time.sleep(0.2)
        body = json.dumps({"instances": _SOURCES}).encode()
        with urllib.request.urlopen(f"{address}/v1/models/es-en:predict", body) as answer:
            print(answer.read().decode(), flush=True)
    finally:
        process.terminate()
        process.wait()


def serve_the_first_export(environment: Environment, _: list[pathlib.Path]) -> None:
    """Serve the export of the first environment, without TensorFlow."""
    environment.shell("! python -c 'import tensorflow' 2> /dev/null")
    serve(environment, environment.folder.parent / "0" / "export" / "es-en")


def use_the_first_export(environment: Environment, _: list[pathlib.Path]) -> None:
    """Run the export of the first environment in Python."""
    program = f"import keras_transformer_serving as s; print(s.load('../0/export/es-en')({list(_SOURCES)!r}))"
    environment.shell(f"python -c {shlex.quote(program)}")


def read_published_weights(environment: Environment, _: list[pathlib.Path]) -> None:
    """Import what reads published weights, which the Hugging Face Hub has."""
    environment.shell("python -c 'import safetensors, huggingface_hub, keras_transformer.interop'")
    environment.shell("keras-transformer convert --help > /dev/null")


FIRST: dict[str, Callable[[Environment, list[pathlib.Path]], None] | None] = {
    "pip install -e './export/serving[server]' -e '.[onnx,evaluation,inspection]'": run_pages,
    "pip install -e ./export/serving -e '.[jax]'": train_on_jax,
    "pip install './export/serving[cpu,server,tokenizers]'": serve_the_first_export,
    "pip install './export/serving[cpu,server]'": serve_the_first_export,
    "pip install './export/serving[cpu]'": use_the_first_export,
    "pip install -e './export/serving[server]' -e '.[onnx,hf]'": read_published_weights,
    # Ray needs a cluster, and has tests of its own.
    "pip install './export/serving[server,cpu,tokenizers]' 'ray[serve]'": None,
    "pip install './export/serving[cpu,tokenizers]' 'ray[data]'": None,
}
"""The first step after each install line; None where other tests have it."""


def lines() -> dict[str, list[pathlib.Path]]:
    """Return the pages with each install line."""
    found: dict[str, list[pathlib.Path]] = {}
    for page in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        for line in _LINE.findall(page.read_text(encoding="utf-8")):
            found.setdefault(line.strip(), []).append(page)
    return found


def main(words: list[str]) -> None:
    """Follow the lines."""
    found = lines()
    assert {*found} == {*FIRST}, f"lines without a first step: {[*found.keys() ^ FIRST.keys()]}"
    with tempfile.TemporaryDirectory() as temporary:
        base = pathlib.Path(temporary)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(base / "checkout")], check=True)
        for number, (line, step) in enumerate(FIRST.items()):
            if step is None or (number and words and not any(word in line for word in words)):
                continue
            (base / str(number)).mkdir()
            environment = Environment(base / str(number), base / "checkout")
            environment.install(line)
            step(environment, found[line])


if __name__ == "__main__":
    main(sys.argv[1:])
