"""A complete export target in one file, without changes to the package: a table of next tokens, looked up by NumPy.

The model is a GPT that reads the last token alone. Its target writes the next token of each, and its engine generates.
"""

import io
import json
import sys

import numpy as np
import pytest
from served_exports import json_call, run

import keras_transformer_serving as serving
from keras_transformer import export, models, pipelines, relations, text
from keras_transformer.export import ParityError
from keras_transformer_cli import commands
from keras_transformer_serving.generation import GENERATE, Generated
from tests import arrays


class Table(export.ExportTarget):
    """A table of the most probable next token of each token, and its log-probability."""

    name = "table"

    def check(self, pipeline):
        relation = getattr(pipeline.model, "relation", None)
        if (
            relation != relations.SlidingWindow(0)
            or pipeline.export_config()["generation"]["sampler"] != "greedy"
        ):
            raise ValueError(
                "`pipeline` must search greedily with a window of 1 token. Received: another one"
            )

    def write(self, pipeline, folder):
        logits = np.asarray(pipeline.model(np.arange(pipeline.model.vocabulary_size)[:, None]))[:, 0]
        maximum = logits.max(-1)
        scores = -np.log(np.exp(logits - maximum[:, None]).sum(-1))
        np.savez(folder / "table.npz", next=logits.argmax(-1), scores=scores)

    @classmethod
    def card(cls, name, pipeline, reports):
        yield "## A table\n\n`keras_transformer_serving.load` looks tokens up.\n"


class TableEngine(serving.ExportedEngine):
    """Generate by looking the next token up."""

    def __init__(self, table, config):
        super().__init__(config)
        self.next, self.scores = table["next"], table["scores"]
        self.methods = {GENERATE: lambda batch: [self.generated(source) for source in batch]}

    def generated(self, source):
        ids, score, last = [], 0.0, source.ids[-1]
        limit = source.options.get("max_new_tokens", self.max_new_tokens)
        while len(ids) < limit and last not in self.end_ids:
            score, last = score + self.scores[last], int(self.next[last])
            ids.append(last)
        padded = [*ids, *[self.padding_value] * (self.max_new_tokens - len(ids))]
        return Generated(np.array([padded], np.int32), np.array([len(ids)]), np.array([score], np.float32))


class ServedTable(serving.ServedTarget):
    """The table, run by NumPy."""

    name = "table"

    @classmethod
    def engine(cls, files, config, options):
        return TableEngine(arrays.load(io.BytesIO(files.content("table.npz"))), config)


TEXTS = ["a", "b a", "casa", "a b c"]


@pytest.fixture(scope="module")
def pipeline():
    tokenizer = text.ByteTokenizer()
    model = models.GPT(
        tokenizer.vocabulary_size,
        1,
        2,
        8,
        relation=relations.SlidingWindow(0),
        position_encoding="rotary",
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
    )
    random = np.random.default_rng(0)
    model.set_weights([random.normal(0, 1, weight.shape) for weight in model.get_weights()])
    return pipelines.TextGeneration(model, tokenizer, max_new_tokens=6, max_source_tokens=8)


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "it"
    return export.bundle(pipeline, folder, targets=["table"], texts=TEXTS)


def test_a_new_target_is_compared_and_described(folder, pipeline):
    expected = {"texts": 4, "graphs": {"table": {"identical": 4, "near_ties": 0}}}
    assert export.verify(folder)["table"] == serving.verify(folder)["table"] == expected
    assert export.verify(folder, pipeline, TEXTS)["table"] == expected
    assert "## A table" in (folder / "README.md").read_text()
    assert "| table | table | identical 4, near ties 0 |" in (folder / "README.md").read_text()


def test_a_wrong_file_of_a_new_target_is_found(pipeline, tmp_path, monkeypatch):
    write = Table.write

    def wrong(self, pipeline, folder):
        write(self, pipeline, folder)
        table = arrays.load(folder / "table.npz")
        np.savez(folder / "table.npz", **{**table, "next": table["next"] + 1})

    monkeypatch.setattr(Table, "write", wrong)
    with pytest.raises(ParityError, match="`table` must have the outputs of the model"):
        export.bundle(pipeline, tmp_path / "it", targets=["table"])
    assert not (tmp_path / "it").exists()


def test_a_new_target_rejects_pipelines_and_options_by_name(folder, pipeline, tmp_path):
    with pytest.raises(ValueError, match="`pipeline` must search greedily"):
        export.bundle(pipeline.with_settings("beam"), tmp_path / "it", targets=[Table()])
    with pytest.raises(ValueError, match="`precisions` needs the target 'ctranslate2' or .*'onnx'"):
        export.bundle(pipeline, tmp_path / "it", targets=["table"], precisions=["float32"])
    with pytest.raises(ValueError, match="A target must be one of .*'table'.*Received: 'tables'"):
        export.bundle(pipeline, tmp_path / "it", targets=["tables"])
    with pytest.raises(TypeError, match="`targets` must be a list of targets. Received: targets='table'"):
        export.bundle(pipeline, tmp_path / "it", targets="table")
    with pytest.raises(ValueError, match="`targets` must write different folders. Received: table, table"):
        export.bundle(pipeline, tmp_path / "it", targets=["table", Table()])
    with pytest.raises(
        ValueError, match="`threads` must be None for the engine 'table'. Received: threads=2"
    ):
        serving.load(folder, threads=2)
    with pytest.raises(
        ValueError, match="`engine` must be one of the export's: table. Received: engine='onnx'"
    ):
        serving.load(folder, engine="onnx")
    assert not (tmp_path / "it").exists()


def test_an_engine_of_a_new_target_answers_calls_and_requests(folder, pipeline, capsys):
    served = serving.load(folder)
    expected = pipeline(TEXTS)
    assert served(TEXTS) == expected
    assert served(TEXTS, max_new_tokens=[1, 2, 3, 4]) == pipeline(TEXTS, max_new_tokens=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="`score` needs an engine that scores"):
        served.score(["a"], ["b"])
    with pytest.raises(ValueError, match="engine that generates token by token"):
        [*served.stream("a")]
    assert commands.main(["generate", str(folder), TEXTS[0]]) == 0
    assert capsys.readouterr().out.rstrip("\n") == expected[0]

    async def requests(app):
        return await json_call(app, "POST", "/v1/models/it:predict", {"instances": TEXTS})

    status, answer = run({"it": folder}, requests)
    assert status == 200
    assert [row["text"] for row in answer["predictions"]] == expected
    assert json.loads((folder / "config.json").read_text())["pipeline"] == "TextGeneration"


@pytest.mark.parametrize("base", [export.ExportTarget, serving.ServedTarget])
@pytest.mark.parametrize("name", [None, "a/b", "tokenizer"])
def test_names_of_targets_must_be_folders_of_their_own(base, name):
    with pytest.raises(TypeError, match=f"`Other.name` must be a string of letters.*Received: name={name!r}"):
        type("Other", (base,), {} if name is None else {"name": name})


PACKAGE = """
import keras_transformer_serving as serving
from keras_transformer import export

class Stars(export.ExportTarget):
    name = "stars"

    def write(self, pipeline, folder):
        (folder / "stars").write_text("")

class ServedStars(serving.ServedTarget):
    name = "stars"

    @classmethod
    def engine(cls, files, config, options):
        raise NotImplementedError
"""
ENTRY_POINTS = """
[keras_transformer.targets]
stars = star_target
[keras_transformer_serving.targets]
stars = star_target
"""


def test_a_target_of_another_package_is_imported_by_name(pipeline, tmp_path, monkeypatch, capsys):
    (tmp_path / "star_target.py").write_text(PACKAGE)
    (tmp_path / "stars-1.0.dist-info").mkdir()
    (tmp_path / "stars-1.0.dist-info" / "METADATA").write_text("Name: stars\nVersion: 1.0\n")
    (tmp_path / "stars-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "star_target", raising=False)
    pipeline.save(tmp_path / "saved")
    arguments = ["export", str(tmp_path / "saved"), str(tmp_path / "it"), "--formats"]
    assert commands.main([*arguments, "moons"]) == 2
    assert "saved_model" in (error := capsys.readouterr().err)
    assert "stars" in error
    assert "star_target" not in sys.modules
    with pytest.raises(NotImplementedError):
        commands.main([*arguments, "stars"])
    assert not (tmp_path / "it").exists()
