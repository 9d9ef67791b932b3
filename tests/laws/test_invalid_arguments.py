"""Invalid arguments raise an error with the argument, the expectation and the received value."""

import pytest

from .invalid_arguments import data, generation, inspection, interop, layers, models, ops, pipelines, text

neutral = pytest.mark.backend_neutral


@neutral
@pytest.mark.parametrize("case", ops.invalid)
def test_relations_and_attention_raise_errors(case):
    case.check()


@neutral
@pytest.mark.parametrize("case", layers.invalid)
def test_layers_raise_errors(case):
    case.check()


@neutral
@pytest.mark.parametrize("case", models.invalid)
def test_models_raise_errors(case):
    case.check()


@neutral
@pytest.mark.parametrize("case", generation.invalid)
def test_generation_raises_errors(case):
    case.check()


@pytest.mark.parametrize("case", pipelines.invalid)
def test_pipelines_raise_errors(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case.check()
    assert not list(tmp_path.iterdir())


@neutral
@pytest.mark.parametrize("case", interop.invalid)
def test_interoperation_raises_errors(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case.check()
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("case", text.invalid)
def test_tokenizers_raise_errors(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case.check()


@pytest.mark.parametrize("case", data.invalid)
def test_data_and_training_raise_errors(case):
    case.check()


@pytest.mark.parametrize("case", inspection.invalid)
def test_inspection_raises_errors(case):
    case.check()
