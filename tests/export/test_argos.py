"""Packages of Argos Translate: their files, errors, and translations by Argos Translate itself.

The slow test needs an environment of its own, of which ARGOS_PYTHON is the interpreter: `pip install argostranslate`,
whose dependency stanza may be missing, as the test does not split texts into sentences.
"""

import json
import os
import pathlib
import subprocess
import zipfile

import keras
import pytest

from keras_transformer import data, export, generation, models, pipelines, text, training
from keras_transformer_cli import commands

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

CODES = {"from_code": "es", "to_code": "en"}
SEARCH = generation.Beam(4, length_penalty=0.2, normalization="length", early_stopping="num_beams")
# Sentence splitting would download a model.
TRANSLATE = """
import json, sys, types
try:
    import stanza
except ImportError:
    sys.modules["stanza"] = types.ModuleType("stanza")
from argostranslate import package, sbd, translate
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
names = [installed.from_name, installed.to_name, installed.package_version]
translations = [translate.translate(text, "es", "en") for text in json.loads(sys.argv[2])]
print(json.dumps([names, translations]))
"""


def test_other_pipelines_and_arguments_are_rejected_by_name(pipeline, tmp_path):
    path = tmp_path / "es_en.argosmodel"
    byte_tokenizer = text.ByteTokenizer()
    model = models.Transformer(byte_tokenizer.vocabulary_size, 1, 2, 8, 8)
    with pytest.raises(ValueError, match="`pipeline` must have a `SentencePieceTokenizer`"):
        export.argos_package(pipelines.TextToText(model, byte_tokenizer), path, **CODES)
    constrained = pipeline.with_settings(constraints=[generation.MinNewTokens(2)])
    with pytest.raises(ValueError, match="`pipeline` must be without constraints"):
        export.argos_package(constrained, path, **CODES)
    for expected, arguments in {
        "`file` must end in .argosmodel": {"file": tmp_path / "es_en.zip"},
        "`from_code` must be the code of a language": {"from_code": "Spanish"},
        "`to_code` must differ": {"to_code": "es"},
        "`precision` must be one of": {"precision": "int4"},
    }.items():
        with pytest.raises(ValueError, match=expected):
            export.argos_package(pipeline, **{"file": path, **CODES, **arguments})
    path.write_text("")
    with pytest.raises(FileExistsError, match="is not changed"):
        export.argos_package(pipeline, path, **CODES)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("translator", [], "must be named by its languages, such as es_en.argosmodel"),
        (
            "es_en.argosmodel",
            ["--precisions", "int8", "float32"],
            "argos. Received: --precisions int8 float32",
        ),
        ("es_en.argosmodel", ["--name", "x"], "must be None for the format argos"),
    ],
)
def test_the_command_names_wrong_options(file, options, message, pipeline, tmp_path, capsys):
    pipeline.save(tmp_path / "saved")
    arguments = ["export", str(tmp_path / "saved"), str(tmp_path / file), "--formats", "argos", *options]
    assert commands.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / file).exists()


@pytest.fixture(scope="module")
def translator(sentence_pairs):
    """Train a translator on a few sentences."""
    keras.utils.set_random_seed(0)
    sides = [side for pair in sentence_pairs for side in pair]
    tokenizer = text.SentencePieceTokenizer.train(sides, 100, byte_fallback=False)
    model = models.Transformer(tokenizer.vocabulary_size, 1, 4, 64, 128, dropout=0.0)
    model.compile(keras.optimizers.Adam(3e-3), training.LabelSmoothedCrossentropy(0.1))
    model.fit(data.translation_pairs(sentence_pairs * 50, tokenizer, batch_tokens=1024), epochs=40, verbose=0)
    return pipelines.TextToText(model, tokenizer, max_new_tokens=20)


@pytest.mark.slow
def test_the_command_writes_a_package(translator, tmp_path, capsys):
    translator.save(tmp_path / "saved")
    path = tmp_path / "es_en.argosmodel"
    assert commands.main(["export", str(tmp_path / "saved"), str(path), "--formats", "argos"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    with zipfile.ZipFile(path) as package:
        names = ["metadata.json", "README.md", "sentencepiece.model"]
        model = ["config.json", "model.bin", "shared_vocabulary.json"]
        assert package.namelist() == [f"es_en/{name}" for name in names] + [
            f"es_en/model/{name}" for name in model
        ]
        metadata = json.loads(package.read("es_en/metadata.json"))
        assert metadata["from_name"] == "Spanish"
        package.extractall(tmp_path)
    model = ctranslate2.Translator(str(tmp_path / "es_en" / "model"))
    assert model.compute_type.startswith("int8")


@pytest.mark.slow
def test_argos_translate_gives_the_translations_of_the_pipeline(translator, sentence_pairs, tmp_path):
    python = pathlib.Path(os.environ.get("ARGOS_PYTHON", ".venv-argos/bin/python"))
    if not python.exists():
        pytest.skip(f"Argos Translate needs an environment of its own: ARGOS_PYTHON is {python}, and absent")
    path = export.argos_package(translator, tmp_path / "it.argosmodel", **CODES, precision="float32")
    texts = [source for source, _ in sentence_pairs]
    environment = {
        **os.environ,
        **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path)),
        "ARGOS_PACKAGES_DIR": str(tmp_path / "packages"),
        "ARGOS_COMPUTE_TYPE": "float32",  # by default int8
        "PYTHONPATH": "",
    }
    command = [python, "-c", TRANSLATE, path, json.dumps(texts)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    names, translations = json.loads(found.stdout.splitlines()[-1])
    assert names == ["Spanish", "English", "1.0"]
    expected = translator.with_settings(SEARCH, max_new_tokens=256)(texts)
    assert translations == expected
    assert sum(output == target for output, (_, target) in zip(expected, sentence_pairs, strict=True)) > 4
