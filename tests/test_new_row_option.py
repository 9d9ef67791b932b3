"""A complete option of a row in one file, without changes to the package: how often each token is repeated."""

import io

import numpy as np
import pytest
from served_exports import INFER, PREDICT, json_call, run

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer_cli import commands
from keras_transformer_serving.row_options import ROW_OPTIONS, RowOption
from keras_transformer_serving.triton import text_model_config
from tests import arrays
from tests.test_new_target import ServedTable, Table, TableEngine
from tests.test_new_target import pipeline as pipeline

REPEATS = RowOption(
    "int32",
    "how often each token is repeated",
    default=lambda config: 1,
    range=lambda config: (1, config["max_new_tokens"]),
)


class Repeated(Table):
    """A table whose tokens can be repeated."""

    name = "repeated"


class RepeatingEngine(TableEngine):
    """Look the next tokens up, and repeat each."""

    options = (*TableEngine.options, "repeats")

    def generated(self, source):
        found = super().generated(source)
        ids = np.repeat(found.ids[0, : found.lengths[0]], source.options.get("repeats", 1))
        ids = ids[: self.max_new_tokens]
        padded = np.pad(ids, (0, self.max_new_tokens - len(ids)), constant_values=self.padding_value)
        return found._replace(ids=padded[None], lengths=np.array([len(ids)]))


class ServedRepeated(ServedTable):
    """The engine of the table."""

    name = "repeated"

    @classmethod
    def engine(cls, files, config, options):
        return RepeatingEngine(arrays.load(io.BytesIO(files.content("table.npz"))), config)


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setitem(ROW_OPTIONS, "repeats", REPEATS)


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    return export.bundle(pipeline, tmp_path_factory.mktemp("export") / "it", targets=["repeated"])


def repeated(folder, count, limit=6):
    """Return the text of which each token is repeated."""
    served = serving.load(folder)
    out = served.generate(["a"], max_new_tokens=limit)
    return served.decode(np.repeat(out.ids[0, 0, : out.lengths[0, 0]], count)[:6].tolist())


def test_calls_take_a_new_option(folder, pipeline):
    served = serving.load(folder)
    assert served(["a"] * 2, repeats=[1, 3]) == [repeated(folder, count) for count in (1, 3)]
    assert served.answers(["a"], repeats=2, max_new_tokens=2)[0][0].text == repeated(folder, 2, 2)
    with pytest.raises(ValueError, match=r"`repeats` must be in \[1, 6\]. Received: 7"):
        served(["a"], repeats=7)
    with pytest.raises(TypeError, match="`repeats` must be an integer, or one for each text"):
        served(["a"], repeats=1.5)


def test_engines_without_a_new_option_reject_it(folder, pipeline):
    message = "`repeats` needs an engine that computes it. Received: repeats=2$"
    with pytest.raises(ValueError, match=message):
        pipeline(["a"], repeats=2)


def test_the_command_line_has_a_new_option(folder, capsys):
    assert commands.main(["generate", str(folder), "a", "a", "--repeats", "1,3"]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == [repeated(folder, count) for count in (1, 3)]
    with pytest.raises(SystemExit):
        commands.main(["generate", "--help"])
    assert REPEATS.help in " ".join(capsys.readouterr().out.split())


def test_protocols_have_a_new_option(folder):
    expected = [repeated(folder, 3)]

    async def requests(app):
        _, found = await json_call(
            app,
            "POST",
            PREDICT.format("it"),
            {"signature_name": "generate", "instances": [{"text": "a", "repeats": 3}]},
        )
        assert [row["text"] for row in found["predictions"]] == expected
        inputs = [
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]},
            {"name": "repeats", "datatype": "INT32", "shape": [1], "data": [3]},
        ]
        parameters = {"signature_name": "generate"}
        _, found = await json_call(
            app, "POST", INFER.format("it"), {"inputs": inputs, "parameters": parameters}
        )
        assert found["outputs"][0]["data"] == expected
        _, found = await json_call(
            app, "POST", "/v1/completions", {"model": "it", "prompt": "a", "repeats": 3}
        )
        assert [choice["text"] for choice in found["choices"]] == expected
        _, document = await json_call(app, "GET", "/openapi.json")
        paths = document["paths"]
        schema = {"type": "integer", "minimum": 1, "maximum": 6}
        bodies = [
            paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            for path in (PREDICT.format("it"), "/v1/completions")
        ]
        (of_rows,) = [
            each["properties"]["repeats"]
            for each in bodies[0]["anyOf"]
            if "instances" in each["properties"] and "repeats" in each["properties"]
        ]
        assert of_rows == {**schema, "description": REPEATS.help, "default": 1}
        assert bodies[1]["properties"]["repeats"] == schema

    run({"it": folder}, requests, apis=["openai"])


def test_models_of_triton_have_a_new_option(pipeline):
    config = text_model_config({**pipeline.export_config(), "pipeline": "TextGeneration"}).decode()
    assert 'name: "repeats"\n  data_type: TYPE_INT32\n  dims: [1]\n  optional: true' in config
