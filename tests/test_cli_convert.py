"""The command `convert`, and `serve` with the name of a published model."""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from keras_transformer import export, interop, pipelines
from keras_transformer.models import BERT, SequenceClassifier
from keras_transformer_cli import commands, conversion
from keras_transformer_serving import bundle
from tests.published import write_hugging_face_folders

safetensors = pytest.importorskip("safetensors.numpy")

NAME = "someone/small-bert"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "la", "casa", "azul", "##es"]
CARD = b"---\nlicense: mit\nbase_model: someone/base\n---\n# A model\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The files of a classifier, by name, in a folder with two shards of weights."""
    folder = tmp_path_factory.mktemp("published") / "small-bert"
    interop.to_hugging_face(SequenceClassifier(BERT(len(PIECES), 1, 2, 8, 16, max_length=16), 2), folder)
    tensors = safetensors.load_file(folder / "model.safetensors")
    shards = {f"model-0000{i}-of-00002.safetensors": sorted(tensors)[i - 1 :: 2] for i in (1, 2)}
    for file, names in shards.items():
        safetensors.save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    (folder / "README.md").write_bytes(CARD)
    return folder


@pytest.fixture
def published(saved, tmp_path):
    """A copy of the folder, for tests that change it."""
    return pathlib.Path(shutil.copytree(saved, tmp_path / "small-bert"))


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def error_of(capsys, arguments):
    """Return the error of a command, which must be one line."""
    status = commands.main([str(argument) for argument in arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert line.startswith("keras-transformer: error: ")
    return line


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


SHARD = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
# The change of a folder, and the words of the error.
DAMAGES = {
    "no tokenizer": (lambda it: (it / "vocab.txt").unlink(), "vocab.txt"),
    "another model's tokenizer": (
        lambda it: (it / "vocab.txt").write_text("\n".join([*PIECES, "rojo"])),
        "must be at least",
    ),
    "another model's weights": (
        lambda it: change_json(it / "config.json", num_hidden_layers=2),
        "must have the weights of a BertForSequenceClassification as in its config.json",
    ),
    "another architecture": (
        lambda it: change_json(it / "config.json", model_type="bart", architectures=["BertModel"]),
        "config.json",
    ),
    "two configs that differ": (
        lambda it: change_json(it / "config.json", model_type="gpt2"),
        "must have architectures with 'GPT2LMHeadModel'. Received: architectures=['BertForSequenceClassification']",
    ),
    "an unknown architecture": (
        lambda it: change_json(it / "config.json", model_type="xyz"),
        "must have a model_type among",
    ),
    "an adapter": (lambda it: (it / "adapter_config.json").write_text("{}"), "merge the adapter first"),
    "a truncated shard": (lambda it: truncate(it / SHARD), "a damaged or truncated one"),
    "a missing shard": (lambda it: (it / SHARD).unlink(), f"Missing: {SHARD}"),
    "a file outside of the folder": (
        lambda it: change_json(it / INDEX, weight_map={"a": "../a.safetensors"}),
        "must name files in its folder. Received: '../a.safetensors'",
    ),
    "no config": (lambda it: (it / "config.json").unlink(), "which has no config.json"),
    "damaged config": (lambda it: truncate(it / "config.json"), "config.json` must be JSON"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_an_error_and_writes_nothing(damage, published, tmp_path, capsys):
    change, words = DAMAGES[damage]
    change(published)
    error = error_of(capsys, ["convert", published, "--output", tmp_path / "new"])
    assert words in error
    assert list(tmp_path.iterdir()) == [published]


# The settings of the model on the hub, None for no model, other options, and the words of the error.
UNREADABLE = {
    "unknown": (
        None,
        [],
        "`source` must be a folder, or a model of the Hugging Face Hub that `--token` may read. "
        f"Received: {NAME!r} with no token",
    ),
    "private": ({"token": "secret"}, ["--token", "hf_other"], f"has not answered for {NAME}"),
    "gated": (
        {"token": "secret", "is_gated": True},
        [],
        f"`--token` must be of a user who has accepted the conditions of {NAME}",
    ),
    "unknown revision": (
        {},
        ["--revision", "v2"],
        f"`--revision` must be a branch, a tag or a commit of {NAME}. Received: --revision v2",
    ),
    "tokens of a classifier": (
        {},
        ["--max-new-tokens", "3"],
        "`--max-new-tokens` must not be passed for a TextClassification. Received: --max-new-tokens 3",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_model_that_cannot_be_read_is_an_error_and_writes_nothing(case, hub, saved, tmp_path, capsys):
    settings, options, words = UNREADABLE[case]
    if settings is not None:
        hub.add(NAME, files_of(saved), **settings)
    error = error_of(capsys, ["convert", NAME, "--output", tmp_path / "new", *options])
    assert words in error
    assert not (tmp_path / "new").exists()


def test_a_damaged_download_is_an_error(hub, saved, tmp_path, capsys):
    hub.add(NAME, files_of(saved))
    hub.damaged.add(SHARD)
    error = error_of(capsys, ["convert", NAME, "--output", tmp_path / "new"])
    assert f"`{SHARD}` of {NAME} must have the sha256" in error


def test_a_model_that_is_not_cached_needs_a_network(hub, saved, tmp_path, capsys, monkeypatch):
    hub.add(NAME, files_of(saved))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = error_of(capsys, ["convert", NAME, "--output", tmp_path / "new"])
    assert "must be a folder, or a model in the cache where the Hugging Face Hub is not reached" in error


def test_a_full_disk_is_an_error_and_writes_nothing(saved, tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("keras_transformer.export.to_saved_model.write_signatures", full)
    error = error_of(capsys, ["convert", saved, "--output", tmp_path / "new"])
    assert f"No space left on device; the previous content is kept: '{tmp_path / 'new'}'" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precisions", ["bfloat16", "float32,bfloat16", ""])
def test_unknown_precisions_are_an_error(precisions, saved, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        commands.main(["convert", str(saved), "--output", str(tmp_path / "new"), "--precisions", precisions])
    assert stopped.value.code == 2
    assert "must be float32, float16, int8, int4. Received: " in capsys.readouterr().err


def test_unsupported_formats_are_an_error_and_write_nothing(saved, tmp_path, capsys):
    arguments = ["convert", saved, "--output", tmp_path / "new", "--formats"]
    assert "must be one of" in error_of(capsys, [*arguments, "moons"])
    error = error_of(capsys, [*arguments, "saved_model", "onnx", "--precisions", "float32", "int4"])
    assert "must be without 'int4' unless the model is a decoder-only language model" in error
    assert not list(tmp_path.iterdir())


def test_texts_of_a_file_are_compared(saved, tmp_path, capsys, monkeypatch):
    texts, given = tmp_path / "texts.txt", []
    texts.write_text("la casa\n")

    def bundle(pipeline, folder, *, texts, say, **_):
        given.append((texts, pathlib.Path(folder)))
        say("onnx/int8 is left out: pass `texts` of your own")
        raise ValueError("`precisions` must be close, or pass `texts`. Received: int8")

    monkeypatch.setattr(export, "bundle", bundle)
    pipelines.from_hugging_face(saved).save(tmp_path / "run")
    for command in (["convert", saved, "--output"], ["export", tmp_path / "run"]):
        arguments = [*command, tmp_path / "new", "--formats", "onnx", "--texts"]
        assert "`--texts` must name files that exist" in error_of(capsys, [*arguments, "none.txt"])
        assert commands.main([str(argument) for argument in [*arguments, texts]]) == 2
        printed = capsys.readouterr()
        assert "onnx/int8 is left out: pass `--texts` of your own\n" in printed.out
        assert "`--precisions` must be close, or pass `--texts`. Received: int8" in printed.err
    assert given == [(texts, tmp_path / "new")] * 2
    arguments = ["export", tmp_path / "run", tmp_path / "new", "--formats", "transformers", "--texts", texts]
    assert "`--texts` must be None for the format transformers" in error_of(capsys, arguments)


@pytest.mark.slow
def test_convert_writes_other_formats(tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    write_hugging_face_folders(tmp_path)
    out = tmp_path / "es-en"
    arguments = ["convert", str(tmp_path / "opus-mt-es-en"), "--output", str(out), "--formats", "ctranslate2"]
    assert commands.main([*arguments, "--precisions", "float32,int8", "--max-new-tokens", "8"]) == 0
    assert (
        f"Wrote {out}: models of CTranslate2 in float32, int8, compared with the model"
        in capsys.readouterr().out
    )
    assert {path.name for path in out.iterdir() if path.is_dir()} >= {"ctranslate2", "tokenizer"}
    assert not (out / "onnx").exists()


@pytest.mark.slow
def test_convert_writes_a_verified_export_with_its_source(hub, saved, tmp_path, capsys):
    commit = hub.add(NAME, files_of(saved))
    out = tmp_path / "reviews"
    arguments = ["convert", NAME, "--output", str(out), "--precisions", "float32,int8"]
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Reading {NAME}"
    assert f"{NAME} at {commit[:12]}: a TextClassification" in printed[1]
    assert printed[1].endswith("licence: mit")
    steps = [line.partition(" s  ")[2] for line in printed if " s  " in line]
    assert steps == [
        "Write the signatures",
        "Compare the signatures with the model",
        "Convert model",
        "Convert model to int8",
        "Compare the graphs with the model",
    ]
    assert f"  keras-transformer serve {out}" in printed
    exported = bundle.Bundle(out)
    exported.check()
    source = {"name": NAME, "commit": commit, "license": "mit", "base_models": ["someone/base"]}
    assert exported.manifest["source"] == source
    assert export.verify(out)
    assert "Its licence is `mit`." in (out / "README.md").read_text()
    assert {path.name for path in (out / "onnx").iterdir()} >= {"int8", "optimum"}
    assert "it exists already" in error_of(capsys, arguments)


@pytest.fixture
def converted(monkeypatch):
    """Replace the process of a conversion by one that writes a manifest; return the arguments of each."""
    calls = []

    def in_process(arguments, token):
        calls.append((arguments, token))
        output = pathlib.Path(arguments[arguments.index("--output") + 1])
        output.mkdir()
        (output / "manifest.json").write_text("{}")
        return 0

    monkeypatch.setattr(conversion, "_in_process", in_process)
    return calls


@pytest.fixture
def served(monkeypatch):
    """Replace the server; return the folders of each start."""
    from keras_transformer_serving import command_line

    folders = []
    monkeypatch.setattr(command_line, "run", lambda options: folders.append(options.folders))
    return folders


def test_a_model_is_converted_once_for_each_commit_and_options(hub, saved, converted, served, tmp_path):
    hub.add(NAME, files_of(saved))
    start = ["serve", NAME, "--cache-dir", str(tmp_path / "exports")]
    for _ in range(2):
        assert commands.main(start) == 0
    assert served[0] == served[1]
    name, _, folder = served[0][0].partition("=")
    assert (name, pathlib.Path(folder).name) == ("small-bert", "small-bert")
    assert pathlib.Path(folder).is_relative_to(tmp_path / "exports")
    assert len(converted) == 1
    texts = tmp_path / "texts.txt"
    for more in (["--precision", "int8"], ["--max-new-tokens", "3"], ["--texts", str(texts)]):
        texts.write_text("la casa\n")
        assert commands.main([*start, *more]) == 0
    assert converted[1][0][-2:] == ["float32", "int8"]
    assert converted[2][0][-2:] == ["--max-new-tokens", "3"]
    assert converted[3][0][-2:] == ["--texts", str(texts)]
    texts.write_text("la casa azul\n")
    assert commands.main([*start, "--texts", str(texts)]) == 0
    hub.models[NAME].commits["c" * 40] = files_of(saved)
    hub.models[NAME].references["main"] = "c" * 40
    assert commands.main(["serve", f"mine={NAME}", *start[2:], "--token", "hf_secret"]) == 0
    assert served[-1][0].startswith("mine=")
    assert len({folders[0].partition("=")[2] for folders in served}) == len(converted) == 6
    assert converted[5][1] == "hf_secret"
    assert not any("hf_secret" in arguments for arguments, _ in converted)


def test_a_changed_folder_is_converted_again(published, converted, served, tmp_path):
    start = ["serve", str(published), "--cache-dir", str(tmp_path / "exports")]
    for _ in range(2):
        assert commands.main(start) == 0
    truncate(published / "README.md")
    assert commands.main(start) == 0
    assert len(converted) == 2
    assert served[0] == served[1] != served[2]


def test_a_cached_conversion_is_served_without_network(hub, saved, converted, served, tmp_path, monkeypatch):
    hub.add(NAME, files_of(saved))
    interop.from_hugging_face(NAME)  # the conversion downloads the files
    start = ["serve", NAME, "--cache-dir", str(tmp_path / "exports")]
    assert commands.main(start) == 0
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert commands.main(start) == 0
    assert len(converted) == 1
    assert served[0] == served[1]


def test_a_failed_conversion_is_not_served_and_leaves_nothing(
    hub, saved, converted, served, tmp_path, monkeypatch
):
    hub.add(NAME, files_of(saved))
    succeeding = conversion._in_process

    def failing(arguments, token):
        succeeding(arguments, token)
        return 2

    monkeypatch.setattr(conversion, "_in_process", failing)
    start = ["serve", NAME, "--cache-dir", str(tmp_path / "exports")]
    assert commands.main(start) == 2
    assert not served
    assert not list((tmp_path / "exports").rglob("manifest.json"))
    monkeypatch.setattr(conversion, "_in_process", succeeding)
    assert commands.main(start) == 0
    assert len(served) == 1


def test_remains_of_a_killed_conversion_are_not_served(hub, saved, converted, served, tmp_path):
    hub.add(NAME, files_of(saved))
    start = ["serve", NAME, "--cache-dir", str(tmp_path / "exports")]
    assert commands.main(start) == 0
    done = pathlib.Path(served[0][0].partition("=")[2]).parent
    left = done.rename(done.with_name(f".{done.name}.x"))
    assert commands.main(start) == 0
    assert len(converted) == 2
    assert not left.exists()


def test_an_export_is_served_with_a_published_model(hub, saved, converted, served, tmp_path):
    hub.add(NAME, files_of(saved))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    mine = f"a={tmp_path / 'mine'}"
    assert commands.main(["serve", mine, NAME, "--cache-dir", str(tmp_path / "exports")]) == 0
    assert served[0][0] == mine
    assert len(converted) == 1


def program(*arguments):
    return [sys.executable, "-m", "keras_transformer_cli", *map(str, arguments)]


def answer_of(process):
    """Return the answer to a text of a server that a process starts, and the lines that it prints before."""
    printed = []
    for line in process.stdout:
        printed.append(line.rstrip("\n"))
        if found := re.fullmatch(r"(http://.*/v1/models/small-bert):predict\n", line):
            request = urllib.request.Request(f"{found[1]}:predict", b'{"instances": ["la casa"]}')
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)["predictions"][0], printed
    raise AssertionError(f"no address in {printed}")


@pytest.mark.slow
def test_a_new_user_converts_and_serves_a_model_by_its_name(hub, saved, tmp_path):
    """Two servers start at the same time: one converts, the other waits for it."""
    hub.add(NAME, files_of(saved))
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "downloads"),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        "KERAS_BACKEND": "tensorflow",
    }
    texts = {"text": True, "env": environment, "cwd": tmp_path}
    convert = program("convert", NAME, "--output", "small-bert", "--precisions", "float32")
    done = subprocess.run(convert, capture_output=True, **texts)
    assert done.returncode == 0, done.stderr
    command = program("serve", NAME, "--cache-dir", "exports", "--port", 0)
    starts = [
        [command, command],  # both of a model that is not converted
        [command, program("serve", "small-bert", "--port", 0)],
    ]
    answers = []
    for both in starts:
        with contextlib.ExitStack() as stack:
            processes = []
            for each in both:
                process = subprocess.Popen(each, stdout=subprocess.PIPE, **texts)
                processes.append(stack.enter_context(process))
                stack.callback(process.terminate)
            found = [answer_of(process) for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        answers += [answer for answer, _ in found]
        lines = [line for _, printed in found for line in printed]
        assert sum(line.startswith("Reading") for line in lines) == (both is starts[0])
    assert answers == [answers[0]] * 4
    assert answers[0]["error"] == ""


@pytest.mark.slow
def test_a_terminated_conversion_leaves_nothing(hub, saved, tmp_path):
    hub.add(NAME, files_of(saved))
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "downloads"),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }
    with subprocess.Popen(
        program("serve", NAME, "--cache-dir", tmp_path / "exports", "--port", 0),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        for line in process.stdout:
            if line.startswith("[1/2]"):
                process.terminate()
        assert process.wait(60) == 143
    assert [path.suffix for path in (tmp_path / "exports").rglob("*") if path.is_file()] == [".lock"]
