"""Translation models of many languages: languages are arguments, and ids equal those of `transformers`.

`benchmarks/parity/small_folders.py` writes the folders, with source ids and generated ids.
"""

import json
import pathlib

import numpy as np
import pytest

from keras_transformer import generation, pipelines

FOLDERS = pathlib.Path(__file__).parents[1] / "interop" / "folders"
NAMES = ("MBart25", "MBart50", "NLLB", "M2M100")
SAMPLERS = {"greedy": generation.Greedy(), "beam": generation.Beam(3, length_penalty=0.0)}


def translations(name):
    """Return the texts and the cases of a folder."""
    content = json.loads((FOLDERS / name / "translations.json").read_text())
    return content["texts"], content["cases"]


def languages_of(case):
    """Return the arguments of calls with the languages of a case."""
    return {name: case[name] for name in ("source_language", "target_language")}


def load(name, **settings):
    """Return the pipeline of a folder."""
    pipeline = pipelines.from_hugging_face(FOLDERS / name, **{"max_new_tokens": 8, **settings})
    model, tokenizer = pipeline.model, pipeline.tokenizer
    never = {*tokenizer.special_token_ids.values(), *tokenizer.languages.values()}
    never |= {*range(len(tokenizer.vocabulary), model.vocabulary_size)}
    words = [[id_] for id_ in sorted(never - {model.pad_id, model.start_id, model.end_id})]
    return pipeline.with_settings(constraints=[generation.BannedWords(words)])


def without_padding(rows, end_id):
    """Return rows of ids up to the first end id."""
    return [row[: row.index(end_id) + 1] if end_id in row else row for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_transformers(name):
    texts, cases = translations(name)
    pipeline = load(name)
    for case in cases:
        ids = pipeline.encode(texts, source_language=[case["source_language"]]).numpy().tolist()
        for row, expected in zip(ids, case["source_ids"], strict=True):
            assert row == expected + [pipeline.model.pad_id] * (len(row) - len(expected))
        for sampler in SAMPLERS:
            out = pipeline.with_settings(SAMPLERS[sampler]).generate(texts, **languages_of(case))
            found = without_padding(np.asarray(out.best).tolist(), pipeline.model.end_id)
            assert found == without_padding(case[sampler], pipeline.model.end_id)
