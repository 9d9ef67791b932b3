import json
import pathlib

import pytest

import keras_transformer_serving as serving
from keras_transformer import export, pipelines, recipes
from keras_transformer.datasets import phrasebook

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of `make quickstart` if present, or new ones."""
    made = pathlib.Path(__file__).resolve().parents[1] / "runs" / "quickstart"
    if not (made / "report.json").is_file():
        made = tmp_path_factory.mktemp("runs") / "quickstart"
        recipes.quickstart(made, verbose=0)
    return made


@pytest.fixture(scope="module")
def test_pairs():
    return phrasebook.load_data()[2]


def test_ids_are_identical_in_keras_saved_model_and_onnx_on_the_test_split(folder, test_pairs):
    pipeline = pipelines.load(folder / "pipeline")
    results = export.verify(folder / "export", pipeline, [source for source, _ in test_pairs])
    assert set(results) == {"onnx", "saved_model/es-en/1"}
    assert len(test_pairs) == 1500
    for part in results.values():
        for graph, counts in part["graphs"].items():
            assert counts == {"identical": 1500, "near_ties": 0}, graph


def test_the_translator_translates_held_out_sentences(folder, test_pairs):
    scores = pipelines.evaluate(serving.load(folder / "export"), test_pairs)
    assert scores["exact_match"] >= 0.95
    assert scores["sentences"] == 1500
    report = json.loads((folder / "report.json").read_text())
    assert report["exact_match"] == pytest.approx(scores["exact_match"], abs=1e-3)
