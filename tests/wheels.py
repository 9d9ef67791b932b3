"""Check the wheels of the distributions, and run them in new environments.

python tests/wheels.py dist      # the folder that `python -m build` wrote

The wheels contain the modules, data and licence of their source, and no tests. With keras-transformer-kit, the command
line starts and a pipeline is exported; with only the serving wheel, the export gives the pipeline's outputs. With
keras-transformer-core[jax], texts become batches, and a model trains and generates, without TensorFlow.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The folder of each distribution's sources, and its packages.
DISTRIBUTIONS = {
    "keras_transformer_core": (
        ROOT,
        ["keras_transformer", "keras_transformer_cli", "keras_transformer_options"],
    ),
    "keras_transformer_kit": (ROOT / "kit", []),
    "keras_transformer_serving": (ROOT / "export" / "serving", ["keras_transformer_serving"]),
}
EXPORT = """
    import json, sys
    import keras, keras_transformer as kt
    from keras_transformer.datasets import phrasebook
    keras.utils.set_random_seed(0)
    train = phrasebook.load_data(3000, num_validation=50, num_test=50)[0][:200]
    tokenizer = kt.text.SentencePieceTokenizer.train([text for pair in train for text in pair], 400)
    model = kt.models.Transformer(
        tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32
    )
    translator = kt.pipelines.TextToText(model, tokenizer, max_new_tokens=8)
    kt.export.onnx(translator, sys.argv[1])
    sources = [source for source, _ in train[:4]]
    print(json.dumps({"sources": sources, "answers": translator(sources)}))
"""
SERVE = """
    import json, sys
    import keras_transformer_serving
    print(json.dumps(keras_transformer_serving.load(sys.argv[1])(json.loads(sys.argv[2]))))
"""
TRAIN_ON_JAX = """
    import importlib.util, os, sys
    os.environ["KERAS_BACKEND"] = "jax"
    import keras, keras_transformer as kt
    from keras_transformer.datasets import phrasebook
    train = phrasebook.load_data(3000, num_validation=50, num_test=50)[0][:200]
    kt.text.SentencePieceTokenizer.train([text for pair in train for text in pair], 400).save(sys.argv[1])
    tokenizer = kt.text.load(sys.argv[1])
    model = kt.models.Transformer(
        tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32
    )
    model.compile("adam", kt.training.LabelSmoothedCrossentropy(0.1))
    losses = model.fit(kt.data.translation_pairs(train, tokenizer, 32), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    ids = tokenizer.encode([train[0][0]], add_end=True)
    texts = tokenizer.detokenize(kt.generation.generate(model, ids, max_new_tokens=8).best)
    assert isinstance(texts[0], str)
    assert importlib.util.find_spec("tensorflow") is None
    print("trained and generated without TensorFlow: losses", losses)
"""


def main() -> int:
    """Check, install and run the wheels; return 1 unless the export gives the pipeline's outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder.resolve()
    core, kit, serving = (check_wheel(folder, name, *sources) for name, sources in DISTRIBUTIONS.items())
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        with_kit = new_environment(work / "kit", f"{kit}[onnx]", str(core), str(serving))
        run(work, with_kit / "keras-transformer", "--help")
        result = json.loads(run(work, with_kit / "python", "-c", textwrap.dedent(EXPORT), work / "export"))
        with_serving = new_environment(work / "serving", f"{serving}[cpu]")
        sources = json.dumps(result["sources"])
        output = run(work, with_serving / "python", "-c", textwrap.dedent(SERVE), work / "export", sources)
        with_jax = new_environment(work / "jax", f"{core}[jax]", str(serving))
        print(
            run(work, with_jax / "python", "-c", textwrap.dedent(TRAIN_ON_JAX), work / "tokenizer"),
            flush=True,
        )
    equal = json.loads(output) == result["answers"]
    print(f"the export's answers {'equal' if equal else 'differ from'} the pipeline's: {output}")
    return not equal


def check_wheel(folder: pathlib.Path, name: str, source: pathlib.Path, packages: list[str]) -> pathlib.Path:
    """Return the wheel of a distribution.

    Raises:
        SystemExit: if the wheel does not contain exactly the files of its packages and the licence.
    """
    (wheel,) = folder.glob(f"{name}-*.whl")
    tools = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    modules = [path for package in packages for path in (source / package).rglob("*.py")]
    expected = {path.relative_to(source).as_posix() for path in modules}
    data = tools.get("package-data", {})
    expected |= {f"{package}/{each}" for package, names in data.items() for each in names}
    found = {each for each in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in each}
    licences = [each for each in zipfile.ZipFile(wheel).namelist() if each.endswith("/licenses/LICENSE")]
    if expected != found or not licences:
        missing = sorted(expected - found) + ["LICENSE"] * (not licences)
        raise SystemExit(f"{wheel.name}: missing {missing}, not in the sources {sorted(found - expected)}")
    print(
        f"{wheel.name}: {len(found)} files of {', '.join(packages) or 'no package'}, and the licence",
        flush=True,
    )
    return wheel


def new_environment(folder: pathlib.Path, *requirements: str) -> pathlib.Path:
    """Install requirements into a new environment; return its folder of executables."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    run(folder, programs / "python", "-m", "pip", "install", "--quiet", *requirements)
    return programs


def run(folder: pathlib.Path, *command: str | pathlib.Path) -> str:
    """Run a command in a folder outside the sources; return its output."""
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command], cwd=folder, env=apart, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
