"""The documentation page of supported configurations matches the code."""

import importlib.util
import pathlib

import pytest

from keras_transformer.interop.hugging_face import ALL, ARCHITECTURES

PARITY = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "parity"
PAGE = (PARITY / "README.md").read_text()


@pytest.fixture(scope="module")
def configurations():
    spec = importlib.util.spec_from_file_location("configurations", PARITY / "configurations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_the_documentation_page_has_the_table_of_every_model_type(configurations, model_type):
    section = PAGE.split(f"### {model_type}\n", 1)[1].split("\n### ", 1)[0]
    assert f"\n{configurations.table(model_type)}\n" in section
    assert all(f"`{name}`" in section.split(".", 1)[0] for name in configurations.classes(model_type))


@pytest.mark.parametrize("architecture", ALL, ids=lambda each: each.class_name)
def test_unsupported_values_are_rejected_with_key_and_value(configurations, architecture):
    config = configurations.sample(architecture)
    architecture.arguments(config)
    names = [
        name for hf_setting in architecture.settings.values() for name in configurations._names(hf_setting)
    ]
    for key in [*names, *architecture.required]:
        with pytest.raises(ValueError, match=rf"{key}.*Received: {key}=\['nothing'\]"):
            architecture.arguments({**config, key: ["nothing"]})
