"""Arguments that do not fit are refused with an error that names them, what is expected and what was received."""

import pytest

from .refusals import data, generation, layers, models, ops, pipelines

neutral = pytest.mark.backend_neutral


@neutral
@pytest.mark.parametrize("refusal", ops.refused)
def test_relations_and_attention_refuse(refusal):
    refusal.check()


@neutral
@pytest.mark.parametrize("refusal", layers.refused)
def test_layers_refuse(refusal):
    refusal.check()


@neutral
@pytest.mark.parametrize("refusal", models.refused)
def test_models_refuse(refusal):
    refusal.check()


@neutral
@pytest.mark.parametrize("refusal", generation.refused)
def test_generation_refuses(refusal):
    refusal.check()


@pytest.mark.parametrize("refusal", pipelines.refused)
def test_pipelines_refuse(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refusal.check()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("refusal", data.refused)
def test_data_and_training_refuse(refusal):
    refusal.check()
