"""keras-transformer-serving without the main package."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

PROJECT = pathlib.Path(__file__).resolve().parents[2] / "export" / "serving"
ABSENT = ("tensorflow", "keras", "jax", "keras_transformer")


@pytest.mark.slow
def test_a_standalone_installation_gives_the_pipeline_outputs(exported, pipeline, texts, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command):
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", f"{source}[cpu]")
    run(python, "-m", "pip", "check")
    program = """
        import importlib.util, json, sys
        import keras_transformer_serving as serving
        absent, folder, texts = map(json.loads, sys.argv[1:])
        found = [name for name in absent if importlib.util.find_spec(name)]
        print(json.dumps([found, serving.load(folder)(texts)]))
    """
    arguments = map(json.dumps, (ABSENT, str(exported), texts))
    found, answers = json.loads(run(python, "-c", textwrap.dedent(program), *arguments))
    assert found == []
    assert answers == pipeline(texts)
