"""Recipes start from published models: every task from a family that fits it."""

import json
import pathlib

import numpy as np
import pytest

from keras_transformer import interop, recipes
from keras_transformer.data import Question
from keras_transformer.export import model_card
from keras_transformer.models import Transformer
from keras_transformer.text import BytePairTokenizer
from tests.published import write_hugging_face_folders

pytest.importorskip("safetensors")

NAME = "someone/translator"
CARD = "---\nlicense: cc-by-4.0\nbase_model: someone/base\n---\n"
PAIRS = [("la casa es azul", "the house is blue"), ("el perro come pan", "a fine film")] * 4
TEXTS = [text for pair in PAIRS for text in pair]
LABELLED = [(text, "ab"[i % 2]) for i, text in enumerate(TEXTS)]
TAGGED = [(text.split(), ["O"] * len(text.split())) for text in TEXTS]
QUESTIONS = [Question("who eats", "the dog eats bread", ("dog",), (4,), "1")] * 4
# The examples of each recipe, and the folders from which it starts.
STARTS = {
    "Translate": (PAIRS, ["opus-mt-es-en", "t5-small"]),
    "LanguageModel": (TEXTS, ["gpt2"]),
    "MaskedLanguageModel": (TEXTS, ["bert-base-cased", "bert-sst2"]),
    "Classify": (LABELLED, ["bert-base-cased", "bert-sst2"]),
    "Tag": (TAGGED, ["bert-ner"]),
    "Answer": (QUESTIONS, ["bert-squad"]),
}
SMALL = {"epochs": 1, "batch_size": 4, "max_length": 32, "jit_compile": False}


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """The folders of random models of the documentation, each with a model card."""
    folder = tmp_path_factory.mktemp("downloads")
    write_hugging_face_folders(folder)
    for path in folder.iterdir():
        (path / "README.md").write_text(CARD)
    (folder / "gpt2" / "generation_config.json").write_text('{"max_new_tokens": 8}')
    return folder


def recipe_of(name, source, **options):
    examples, _ = STARTS[name]
    return getattr(recipes, name)(examples, validation=examples[:4], from_=source, **{**SMALL, **options})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [(n, s) for n, (_, starts) in STARTS.items() for s in starts])
def test_each_recipe_starts_from_a_published_model_and_keeps_its_source(name, start, downloads):
    recipe = recipe_of(name, downloads / start)
    pipeline, history = recipe.train(verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert pipeline.source.name == start
    assert pipeline.source.fine_tuned
    assert (pipeline.source.license, pipeline.source.base_models) == ("cc-by-4.0", ("someone/base",))


FAMILIES = {
    ("Translate", "gpt2"): "`from_` must be a TextToText for this task. Received: a TextGeneration",
    ("LanguageModel", "bert-sst2"): "`from_` must be a TextGeneration .* Received: a TextClassification",
    (
        "Classify",
        "t5-small",
    ): "`from_` must be a pipeline with an encoder, such as a BERT.* Received: a TextToText with a T5",
    (
        "Tag",
        "vit-base",
    ): "`from_` must be a pipeline with an encoder, such as a BERT.* a ImageClassification with a ViT",
}


@pytest.mark.parametrize(("name", "start"), FAMILIES)
def test_a_family_that_does_not_fit_the_task_is_an_error(name, start, downloads):
    with pytest.raises(ValueError, match=FAMILIES[name, start]):
        recipe_of(name, downloads / start).untrained()


def test_a_model_of_many_languages_needs_languages():
    folder = pathlib.Path(__file__).parent / "interop" / "folders" / "M2M100"
    with pytest.raises(
        ValueError, match="`source_language` must be one of .*'en'.* Received: source_language=None"
    ):
        recipe_of("Translate", folder).untrained()


def test_a_model_of_the_hub_is_fine_tuned_at_a_revision(hub, downloads, tmp_path):
    hub.add(NAME, {})
    files = {path.name: path.read_bytes() for path in (downloads / "bert-sst2").iterdir()}
    hub.models[NAME].commits["a" * 40] = files
    hub.models[NAME].references["v1"] = "a" * 40
    pipeline = recipe_of("Classify", NAME, revision="v1").untrained()
    assert (pipeline.source.name, pipeline.source.revision, pipeline.source.commit) == (NAME, "v1", "a" * 40)
    pipeline.save(tmp_path / "run" / "pipeline")
    again = recipe_of("Classify", tmp_path / "run").untrained()
    assert again.source == pipeline.source
    card = model_card.model_card("it", again, {})
    assert f"Fine-tuned from [`{NAME}`](https://huggingface.co/{NAME}/tree/{'a' * 40})" in card
    assert "(revision `v1`). It is derived from `someone/base`. Its licence is `cc-by-4.0`." in card
    with pytest.raises(
        FileNotFoundError, match="`from_` must be a model of the Hugging Face Hub with config"
    ):
        recipe_of("Classify", NAME).untrained()


def test_targets_of_marian_have_the_pieces_of_their_own_tokenizer(downloads):
    recipe = recipe_of("Translate", downloads / "opus-mt-es-en")
    pipeline = recipe.untrained()
    target = recipe._target_tokenizer(pipeline)
    inputs, labels = next(iter(recipe.batches(PAIRS[:1], pipeline, shuffle=False)))
    ids = target.tokenize([PAIRS[0][1]]).numpy()[0].tolist()
    end, start = pipeline.model.end_id, pipeline.model.start_id
    assert labels.numpy()[0, : len(ids) + 1].tolist() == [*ids, end]
    assert inputs["target_ids"].numpy()[0, : len(ids) + 1].tolist() == [start, *ids]
    row = pipeline.encode([PAIRS[0][0]]).numpy()[0].tolist()
    assert inputs["source_ids"].numpy()[0, : len(row)].tolist() == row


@pytest.mark.slow
def test_rows_of_bart_begin_with_its_start_token(downloads, tmp_path):
    published = pathlib.Path(__file__).parent / "interop" / "folders" / "BartForConditionalGeneration"
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    trained = BytePairTokenizer.train(TEXTS, 300)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces += [piece for piece in trained.vocabulary if piece not in pieces]
    config = interop.from_hugging_face(published).get_config()
    model = Transformer.from_config({**config, "vocabulary_size": len(pieces)})
    folder = interop.to_hugging_face(model, tmp_path / "bart", "bart")
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, trained.merges)]))
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "generation_config.json").write_text(json.dumps({"forced_bos_token_id": 0, "max_length": 9}))
    recipe = recipe_of("Translate", folder)
    pipeline = recipe.untrained()
    inputs, labels = next(iter(recipe.batches(PAIRS[:1], pipeline, shuffle=False)))
    row = pipeline.encode([PAIRS[0][0]]).numpy()[0].tolist()
    assert row[0] == 0
    assert inputs["source_ids"].numpy()[0, : len(row)].tolist() == row
    assert labels.numpy()[0, 0] == 0
    assert inputs["target_ids"].numpy()[0, :2].tolist() == [2, 0]
