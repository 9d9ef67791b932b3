"""The model card of an export describes all parts, and its commands work."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from keras_transformer import export
from keras_transformer.export.card import call
from keras_transformer.export.model_card import model_card
from keras_transformer.generation import Sample
from keras_transformer.interop.source import Source
from keras_transformer.models import ViT
from keras_transformer.pipelines import ImageClassification, from_hugging_face
from keras_transformer.recipes import runs
from keras_transformer_serving import files


@pytest.fixture(scope="module")
def card(exported):
    return (exported / "README.md").read_text(encoding="utf-8")


def blocks(card, language):
    """Return the code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", card, flags=re.DOTALL)


def rows(card, head):
    """Return the rows of the table with the header `head` in the first column, by that column."""
    table = card[card.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    found = (row.strip("| ").split(" | ") for row in table)
    return {name.strip("`"): cells for name, *cells in found}


def commands(card):
    """Return the commands of a card, split into words."""
    return [
        shlex.split(line) for block in blocks(card, "sh") for line in block.replace("\\\n", "").splitlines()
    ]


def bodies(folder):
    """Return the paths and bodies of the REST requests in the card of an export."""
    for words in commands((folder / "README.md").read_text(encoding="utf-8")):
        if "curl" in words:
            file = words[words.index("-d") + 1].removeprefix("@")
            if file == "-":
                body = subprocess.run([sys.executable, *words[1:3]], capture_output=True, check=True).stdout
            else:
                body = (folder / file).read_bytes()
            yield json.loads(body), words[-1]


def test_every_signature_and_graph_is_listed(card, exported, pipeline):
    signatures = rows(card, "signature")
    assert set(signatures) == set(pipeline.signatures())
    assert next(iter(signatures)) == "serving_default"
    assert signatures["serving_default"] == [
        "`text` string (batch_size)",
        "`text` string (batch_size), `error` string (batch_size)",
    ]
    assert f"`ids` int32 (batch_size, {pipeline.max_new_tokens})" in signatures["generate_ids"][1]
    graphs = rows(card, "graph")
    folder = exported / "onnx"
    files_of = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.onnx")}
    assert set(graphs) == files_of
    most = pipeline.max_new_tokens
    assert graphs["generate_greedy"][0] == (
        "`input_ids` int64 (batch_size, encoder_sequence_length), "
        f"`max_new_tokens` int64 (batch_size or 1) = [{most}], `min_new_tokens` int64 (batch_size or 1) = [0], "
        "`prefix_ids` int64 (batch_size or 1, prefix_length) = [[]]"
    )
    assert f"`max_new_tokens` int32 (batch_size) = [{most}]" in signatures["generate"][0]
    assert "`past_key_values.{i}.decoder.key` float32" in graphs["optimum/decoder_model_merged"][0]


def test_settings_and_figures_equal_the_export(card, exported, pipeline):
    assert (
        f"a `Transformer` with {pipeline.model.count_params():,} parameters that computes in float32" in card
    )
    assert rows(card, "setting")["max_new_tokens"] == [str(pipeline.max_new_tokens)]
    assert rows(card, "setting")["generation"] == ['{"sampler": "greedy"}']
    figures = [line for line in card.splitlines() if line.startswith(("| onnx |", "| saved_model/"))]
    report = files.read_json(exported / "parity.json")
    assert len(figures) == sum(len(part["graphs"]) for part in report.values())
    count = report["onnx"]["graphs"]["onnx_loop"]["identical"]
    assert f"| onnx | onnx_loop | identical {count}, near ties 0 |" in figures


def front_matter(card):
    """Return what the Hugging Face Hub reads from a card."""
    return yaml.safe_load(card.split("---\n")[1])


def test_examples_are_outputs_of_the_model(card, exported, pipeline):
    table = card[card.index("| input |") :].split("\n\n")[0].splitlines()[2:]
    texts, answers = zip(*(row.strip("| ").split(" | ") for row in table), strict=True)
    assert 0 < len(texts) <= 3
    assert list(answers) == pipeline([*texts])
    body, response = map(json.loads, blocks(card, "json"))
    assert body == files.read_json(exported / "serving/requests/tiny/serving_default.json")
    assert response == {"predictions": [{"text": pipeline(body["instances"][0]), "error": ""}]}


@pytest.mark.parametrize(("seed", "comment"), [(None, ""), (3, '  # ["b"]')])
def test_an_output_that_is_drawn_anew_is_not_shown(pipeline, seed, comment):
    sampling = pipeline.with_settings(Sample(seed=seed))
    found = call(sampling, {"examples": {"texts": ["a"], "answers": ["b"]}})
    assert found == f'model(["a"]){comment}'


def test_scores_of_a_training_run_are_stated(card, pipeline, monkeypatch, tmp_path):
    assert "was not measured for this card" in card
    report = {"evaluated_on": "validation", "metrics": {"bleu": 31.25}, "counts": {"validation": 1200}}
    files.write_json(tmp_path / "report.json", report)
    assert runs.quality_of(tmp_path / "pipeline") == ""
    monkeypatch.setattr(pipeline, "quality", runs.quality_of(tmp_path))
    card = model_card("it", pipeline, {})
    assert "its scores on 1,200 validation examples were: bleu 31.25. Measure it on" in card
    assert "not measured" not in card


def test_limits_and_licence_are_stated(card, pipeline):
    assert f"- It reads texts of at most {pipeline.max_source_tokens} tokens." in card
    assert f"- It writes at most {pipeline.max_new_tokens} tokens." in card
    assert "No licence is recorded." in card
    assert front_matter(card) == {"library_name": "keras_transformer", "tags": ["keras", "onnx"]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cc-by-4.0", {"license": "cc-by-4.0"}),
        ("someone's: own", {"license": "other", "license_name": "someone's: own"}),
    ],
)
def test_the_hub_reads_the_origin_of_a_card(pipeline, monkeypatch, name, expected):
    monkeypatch.setattr(pipeline, "source", Source("someone/opus-mt-es-en", None, "a" * 40, license=name))
    card = model_card("it", pipeline, {})
    assert "it translates from Spanish (`es`) to English (`en`)." in card
    assert front_matter(card) == {
        "library_name": "keras_transformer",
        "pipeline_tag": "translation",
        "language": ["es", "en"],
        "base_model": "someone/opus-mt-es-en",
        "tags": ["keras"],
        **expected,
    }


def test_names_of_other_models_are_no_languages(pipeline):
    assert "translates" not in model_card("my-big-cat", pipeline, {})


def test_languages_have_names(request):
    folder = request.config.rootpath / "tests" / "interop" / "folders" / "M2M100"
    pipeline = from_hugging_face(folder)
    card = model_card("many", pipeline, {})
    assert f"It knows {len(pipeline.languages)} languages: " in card
    assert "English (`en`)" in card
    assert sorted(front_matter(card)["language"]) == sorted(pipeline.languages)


@pytest.mark.slow
def test_example_requests_match_the_signatures(exported, pipeline):
    signatures = tf.saved_model.load(str(exported / "saved_model" / "tiny" / "1")).signatures
    sent = list(bodies(exported))
    assert [body.get("signature_name", "serving_default") for body, _ in sent] == [
        "serving_default",
        "generate",
    ]
    for body, url in sent:
        assert url.endswith("/v1/models/tiny:predict")
        (row,) = body["instances"]
        inputs = row if isinstance(row, dict) else {"text": row}
        dtypes = dict.fromkeys(("max_new_tokens", "min_new_tokens"), tf.int32)
        signature = signatures[body.get("signature_name", "serving_default")]
        found = signature(**{name: tf.constant([value], dtypes.get(name)) for name, value in inputs.items()})
        assert found["error"].numpy().tolist() == [b""]
        assert found["text"].numpy()[0].decode() == pipeline(inputs["text"])


def test_commands_serve_the_files_of_the_export(card, exported, tmp_path):
    (docker,) = [words for words in commands(card) if "docker" in words]
    mounts = dict(words.removeprefix("$PWD/").split(":") for words in docker if words.startswith("$PWD/"))
    places = {place: exported / folder for folder, place in mounts.items()}
    assert places.keys() == {"/models", "/etc/tensorflow_serving"}
    files_of = [word.split("=")[1] for word in docker if "_file=" in word]
    assert len(files_of) == 3
    for file in files_of:
        folder, _, name = file.rpartition("/")
        assert (places[folder] / name).is_file()
    base_path = f'base_path: "/models/{next(places["/models"].iterdir()).name}"'
    assert base_path in (places["/etc/tensorflow_serving"] / "models.config").read_text()
    shutil.copytree(exported, tmp_path / "tiny", ignore=shutil.ignore_patterns("saved_model"))
    triton = next(block for block in blocks(card, "sh") if "triton" in block)
    subprocess.run(["sh", "-e", "-c", triton], cwd=tmp_path / "tiny", check=True)
    (config,) = tmp_path.rglob("model_repository/*/config.pbtxt")
    assert 'default_model_filename: "generate_greedy.onnx"' in config.read_text()
    assert (config.parent / "1" / "generate_greedy.onnx").is_file()
    assert (config.parent / "warmup" / "input_ids").is_file()


def test_python_examples_run(card, exported):
    (program,) = blocks(card, "python")
    *lines, last = program.strip().splitlines()
    names = {}
    with contextlib.chdir(exported):
        exec("\n".join(lines), names)
        assert eval(last, names) == files.read_json("parity.json")["onnx"]["examples"]["answers"][:1]


@pytest.mark.slow
def test_the_card_is_updated_with_each_exported_format(tmp_path):
    keras.utils.set_random_seed(0)
    model = ViT(8, 4, num_classes=3, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16)
    pipeline = ImageClassification(model, ["a", "b|c", "d"])
    path = export.saved_model(pipeline, tmp_path / "digits")
    card = (tmp_path / "digits" / "README.md").read_text()
    assert "ONNX" not in card
    assert '| labels | ["a", "b\\|c", "d"] |' in card
    ((body, _),) = bodies(tmp_path / "digits")
    images = np.array([row["pixel_values"] for row in body["instances"]], "float32")
    found = tf.saved_model.load(str(path)).signatures["serving_default"](pixel_values=tf.constant(images))
    assert found["error"].numpy().tolist() == [b""]
    assert found["label"].numpy()[0].decode() == pipeline(images)[0]
    export.onnx(pipeline, tmp_path / "digits")
    card = (tmp_path / "digits" / "README.md").read_text()
    assert set(rows(card, "signature")) == {"serving_default", "forward"}
    assert set(rows(card, "graph")) == {"model"}
    (program,) = blocks(card, "python")
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "digits",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
