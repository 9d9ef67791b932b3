"""Translation models of many languages: languages are arguments, and ids equal those of `transformers`.

`benchmarks/parity/small_folders.py` writes the folders, with source ids, generated ids and losses.
"""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import data, export, generation, pipelines, recipes, text, training
from keras_transformer.pipelines.hugging_face_generation import generation_config_of
from keras_transformer_cli import commands
from keras_transformer_serving.pipelines.texts import TRUNCATION_SIDES

PAIRS = [
    ("la casa azul", "the blue house"),
    ("el perro", "the house"),
    ("el pan", "is blue"),
    ("come pan", "blue"),
]
FOLDERS = pathlib.Path(__file__).parents[1] / "interop" / "folders"
NAMES = ("MBart25", "MBart50", "NLLB", "M2M100")
SAMPLERS = {"beam": generation.Beam(3, length_penalty=0.0), "greedy": generation.Greedy()}


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


@pytest.fixture(scope="module")
def nllb():
    return load("NLLB")


def copied(name, folder, config=None, **files):
    """Copy a folder without its weights; `config` changes settings of its tokenizer, and None removes a file."""
    shutil.copytree(FOLDERS / name, folder, ignore=shutil.ignore_patterns("*.npz", "translations.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    for file, content in files.items():
        path = folder / file.replace("__", ".")
        path.unlink() if content is None else path.write_text(json.dumps(content))
    return folder


@pytest.mark.slow_variants
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_transformers(name, sampler):
    texts, cases = translations(name)
    pipeline = load(name)
    for case in cases:
        ids = pipeline.encode(texts, source_language=case["source_language"]).numpy().tolist()
        for row, expected in zip(ids, case["source_ids"], strict=True):
            assert row == expected + [pipeline.model.pad_id] * (len(row) - len(expected))
        out = pipeline.with_settings(SAMPLERS[sampler]).generate(texts, **languages_of(case))
        found = without_padding(np.asarray(out.best).tolist(), pipeline.model.end_id)
        assert found == without_padding(case[sampler], pipeline.model.end_id)


@pytest.mark.slow_variants
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_losses_of_training_equal_transformers(name, packed):
    texts, cases = translations(name)
    pipeline = load(name)
    criterion = training.LabelSmoothedCrossentropy(0.0, pad_id=pipeline.model.pad_id)
    for case in cases:
        options = {"length_buckets": 1, "shuffle": False, "packed": packed, "max_length": 64}
        pairs = [(text, text) for text in texts]
        batches = data.translation_pairs(pairs, pipeline.tokenizer, 6, **options, **languages_of(case))
        ((inputs, labels),) = batches
        tokens = [len(ids) for ids in case["source_ids"]]
        found = float(criterion(labels, pipeline.model(inputs)))
        assert found == pytest.approx(np.average(case["losses"], weights=tokens), rel=1e-5)


def test_each_text_has_its_languages(nllb):
    texts, cases = translations("NLLB")
    chosen = {name: [case[name] for case in cases] for name in ("source_language", "target_language")}
    together = nllb(texts[:2], **chosen)
    assert together == [nllb(texts[:2], **languages_of(case))[row] for row, case in enumerate(cases)]
    assert len(set(together)) == 2
    defaults = nllb.with_settings(**languages_of(cases[0]))
    assert defaults(texts[:2]) == nllb(texts[:2], **languages_of(cases[0]))
    assert defaults(texts[:2], **languages_of(cases[1]))[1] == together[1]
    assert nllb([], **languages_of(cases[0])) == nllb([], target_language=[]) == []


@pytest.mark.slow
def test_streams_scores_and_alignments_have_languages(nllb):
    texts, cases = translations("NLLB")
    chosen = languages_of(cases[0])
    answer = nllb.answers(texts[:1], **chosen)[0][0]
    assert "".join(nllb.stream(texts[0], **chosen)) == answer.text
    prefixed = nllb(texts[:1], prefixes=[answer.text[:2]], **chosen)
    assert prefixed[0].startswith(answer.text[:2])
    (scored,) = nllb.score(texts[:1], [answer.text], **chosen)
    batch = nllb.preprocess_pairs([texts[0]], [answer.text], {name: [code] for name, code in chosen.items()})
    inputs = batch.arrays()
    ids = np.concatenate([[[2]], inputs["prefix_ids"], inputs["target_ids"]], axis=1)
    logits = nllb.model({"source_ids": inputs["source_ids"], "target_ids": ids[:, :-1]})[:, 1:]
    log_probabilities = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
    expected = np.take_along_axis(log_probabilities, inputs["target_ids"][..., None], axis=-1)[0, :, 0]
    np.testing.assert_allclose(scored.token_scores, expected, rtol=1e-4, atol=1e-4)
    alignment = nllb.align(texts[0], answer.text, **chosen)
    assert alignment.source[0] == chosen["source_language"]
    assert alignment.weights.shape == (len(scored.ids), len(alignment.source))


@pytest.mark.parametrize("side", TRUNCATION_SIDES)
@pytest.mark.parametrize("name", ["NLLB", "MBart25"])
def test_truncated_and_split_sources_have_the_language(name, side):
    pipeline = load(name, max_source_tokens=6, truncation_side=side)
    language = next(iter(pipeline.languages))
    batch = pipeline.preprocess(["la casa azul"], truncate=True, source_language=[language])
    (ids,) = batch.arrays()["source_ids"].tolist()
    tokenizer = pipeline.tokenizer
    place = -1 if tokenizer.language_after_source else 0
    assert (len(ids), ids[place], ids[-2 if place else -1]) == (
        6,
        pipeline.languages[language],
        tokenizer.end_id,
    )
    whole = pipeline.tokenizer.tokenize("la casa azul").numpy().tolist()
    assert ids[1 if place == 0 else 0 :][:4] == (whole[:4] if side == "right" else whole[-4:])
    assert pipeline.encode(["la casa azul"], True, source_language=language).numpy().tolist() == [ids]
    (split,) = pipeline.split_texts(["la casa azul. el perro."])
    lengths = [pipeline.encode([part], source_language=language).shape[1] for part in split.parts]
    assert max(lengths) <= 6


def test_a_text_without_content_has_no_tokens(nllb):
    assert (nllb.encode(["  ", "\u2603"], source_language="eng_Latn").numpy() == nllb.model.pad_id).all()


ONE_OF = r"must be one of eng_Latn, fra_Latn, spa_Latn, zho_Hans\. Received: "


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"source_language": "eng_Latn"}, ValueError, f"`target_language` {ONE_OF}none in target_language"),
        ({"target_language": "eng_Latn"}, ValueError, f"`source_language` {ONE_OF}none in source_language"),
        ({"source_language": "en"}, ValueError, rf"`source_language` {ONE_OF}en in source_language\[0\]"),
        (
            {"target_language": 3},
            TypeError,
            "must be a string, or one for each text. Received: target_language=3",
        ),
        ({"target_language": ["a"]}, ValueError, "or one for each of 2 texts. Received: 1 strings"),
        ({"source_language": ["a", None]}, TypeError, "must be a string, or one for each text"),
    ],
    ids=str,
)
def test_invalid_languages_are_errors(nllb, options, error, message):
    for ask in (nllb, nllb.answers, nllb.generate, lambda texts, **each: nllb.score(texts, texts, **each)):
        with pytest.raises(error, match=message):
            ask(["la casa", "el pan"], **options)


def test_invalid_settings_are_errors(nllb, pipeline):
    with pytest.raises(ValueError, match=f"`target_language` {ONE_OF}target_language='es'"):
        pipelines.TextToText(nllb.model, nllb.tokenizer, target_language="es")
    with pytest.raises(TypeError, match="`source_language` must be a string"):
        pipelines.TextToText(nllb.model, nllb.tokenizer, source_language=3)
    expected = "`target_language` must be None, as the model has no languages. Received: target_language='es'"
    for call in (lambda **options: pipeline(["uno"], **options), pipeline.with_settings):
        with pytest.raises(ValueError, match=expected):
            call(target_language="es")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target_language": "spa_Latn"},
            "`source_language` must be one of .*eng_Latn.*source_language=None",
        ),
        ({"source_language": "spa_Latn", "target_language": "es"}, "Received: target_language='es'"),
    ],
    ids=str,
)
def test_batches_without_a_language_are_errors(nllb, options, message):
    with pytest.raises(ValueError, match=message):
        data.translation_pairs([("uno", "one")], nllb.tokenizer, **options)


def test_languages_of_batches_without_languages_are_errors(pipeline):
    expected = (
        "`source_language` must be None for a tokenizer without languages. Received: source_language='es'"
    )
    with pytest.raises(ValueError, match=expected):
        data.translation_pairs([("uno", "one")], pipeline.tokenizer, source_language="es")


def test_cached_ids_depend_on_the_languages(nllb, tmp_path):
    def ids(*chosen):
        options = dict(zip(("source_language", "target_language"), chosen, strict=True))
        ((inputs, _),) = data.translation_pairs(
            [("la", "el")], nllb.tokenizer, 1, cache_dir=tmp_path, **options
        )
        return int(inputs["source_ids"][0, 0]), int(inputs["target_ids"][0, 1])

    known = nllb.languages
    for chosen in (("spa_Latn", "eng_Latn"), ("eng_Latn", "spa_Latn"), ("spa_Latn", "eng_Latn")):
        assert ids(*chosen) == tuple(known[language] for language in chosen)


def test_an_unknown_language_fails_only_its_row(nllb):
    chosen = {"source_language": "eng_Latn", "target_language": ["x", "eng_Latn"]}
    first, second = nllb(["la casa", "la casa"], errors="return", **chosen)
    assert "in target_language[0]" in str(first)
    assert second == nllb("la casa", source_language="eng_Latn", target_language="eng_Latn")


def test_saved_pipelines_keep_languages(nllb, tmp_path):
    chosen = languages_of(translations("NLLB")[1][0])
    nllb.with_settings(**chosen).save(tmp_path / "saved")
    again = pipelines.load(tmp_path / "saved")
    assert again.languages == nllb.languages
    assert (again.source_language, again.target_language) == tuple(chosen.values())
    assert again.tokenizer.sha256 == nllb.tokenizer.sha256
    assert again("la casa azul") == nllb("la casa azul", **chosen)


def test_defaults_are_read_from_the_folder(tmp_path):
    assert load("MBart25").target_language == "ro_RO"  # the start token of the model
    assert load("NLLB").source_language is load("NLLB").target_language is None
    config = {"src_lang": "spa_Latn", "tgt_lang": "fra_Latn"}
    english = pipelines.from_hugging_face(FOLDERS / "NLLB").languages["eng_Latn"]
    folder = copied("NLLB", tmp_path / "nllb", config)
    pipeline = pipelines.from_hugging_face(folder)
    assert (pipeline.source_language, pipeline.target_language) == ("spa_Latn", "fra_Latn")
    forced = {"forced_bos_token_id": english, "max_length": 9}
    (folder / "generation_config.json").write_text(json.dumps(forced))
    pipeline = pipelines.from_hugging_face(folder)
    assert (pipeline.target_language, list(pipeline.constraints)) == ("eng_Latn", [])
    assert generation_config_of(pipeline)["forced_bos_token_id"] == english
    mbart = load("MBart25", target_language="de_DE")
    assert generation_config_of(mbart)["decoder_start_token_id"] == mbart.languages["de_DE"]


@pytest.mark.parametrize("name", ["MBart50", "NLLB"])
def test_the_sentence_piece_file_has_the_ids_of_tokenizer_json(name, tmp_path):
    texts, _ = translations(name)
    read = text.MarianT5Tokenizer.from_files(FOLDERS / name)
    folder = copied(name, tmp_path / name, tokenizer__json=None)
    (folder / "sentencepiece.bpe.model").write_bytes(
        (FOLDERS / name / "sentencepiece.bpe.model").read_bytes()
    )
    again = text.MarianT5Tokenizer.from_files(folder)
    assert again.vocabulary == read.vocabulary
    assert again.languages == read.languages
    assert again.tokenize(texts).to_list() == read.tokenize(texts).to_list()


@pytest.mark.parametrize("name", NAMES)
def test_codes_of_languages_in_texts_are_special_tokens(name, tmp_path):
    """So are they in `transformers`, also in the files of a SentencePiece model, which do not list them."""
    folders = [FOLDERS / name]
    if name != "M2M100":
        folders.append(copied(name, tmp_path / name, tokenizer__json=None))
        source = FOLDERS / name / "sentencepiece.bpe.model"
        if source.is_file():
            shutil.copyfile(source, folders[1] / source.name)
        else:
            folders.pop()
    for folder in folders:
        tokenizer = text.MarianT5Tokenizer.from_files(folder)
        served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": "MarianT5Tokenizer"})
        token = tokenizer.id_to_piece(next(iter(tokenizer.languages.values())))
        ids = tokenizer.tokenize(f"la{token} casa", special_tokens=True).numpy().tolist()
        parts = [tokenizer.tokenize(part).numpy().tolist() for part in ("la", " casa")]
        assert ids == [*parts[0], tokenizer.piece_to_id(token), *parts[1]]
        assert served.tokenize(f"la{token} casa", True) == ids
        assert tokenizer.piece_to_id(token) not in tokenizer.tokenize(f"la{token} casa").numpy()


def test_older_folders_of_nllb_have_the_language_last(tmp_path):
    folder = copied("NLLB", tmp_path / "nllb", {"legacy_behaviour": True})
    pipeline = pipelines.from_hugging_face(folder)
    ids = pipeline.encode(["la casa"], source_language=["spa_Latn"]).numpy()[0].tolist()
    assert ids[-2:] == [pipeline.model.end_id, pipeline.languages["spa_Latn"]]
    assert not pipeline.tokenizer.language_is_start


def test_the_classes_of_tokenizers_may_be_named_in_config_json(tmp_path):
    folder = copied("MBart50", tmp_path / "a", {"tokenizer_class": None})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tokenizer_class": "MBart50Tokenizer"}))
    assert not text.MarianT5Tokenizer.from_files(folder).language_is_start
    (folder / "config.json").write_text(json.dumps(config))
    assert text.MarianT5Tokenizer.from_files(folder).language_is_start  # mBART's, by the type of the model


@pytest.mark.parametrize(
    ("name", "files", "error"),
    [
        (
            "NLLB",
            {"tokenizer__json": None, "sentencepiece__bpe__model": None},
            "must hold tokenizer.json or sentencep",
        ),
        ("M2M100", {"vocab__json": None}, "must hold vocab.json and sentencepiece.bpe.model"),
        ("NLLB", {"tokenizer__json": {"model": {"type": "WordPiece"}}}, "must hold a model of type Unigram"),
    ],
    ids=str,
)
def test_damaged_folders_are_errors(name, files, error, tmp_path):
    folder = copied(name, tmp_path / "damaged", **files)
    with pytest.raises((FileNotFoundError, ValueError), match=error):
        text.MarianT5Tokenizer.from_files(folder)


def test_a_folder_without_codes_of_languages_is_an_error(tmp_path):
    folder = copied("NLLB", tmp_path / "damaged", {"additional_special_tokens": []}, tokenizer__json=None)
    with pytest.raises(ValueError, match="must list the codes of its languages, .* Received: none"):
        text.MarianT5Tokenizer.from_files(folder)


def test_decoded_texts_are_without_languages(nllb):
    tokenizer = nllb.tokenizer
    ids = [tokenizer.languages["spa_Latn"], *tokenizer.tokenize("la casa").numpy(), tokenizer.end_id]
    assert tokenizer.detokenize([ids]).numpy()[0].decode() == "la casa"
    assert tokenizer.tokenize("spa_Latn").numpy().tolist() != [tokenizer.languages["spa_Latn"]]
    with pytest.raises(
        ValueError, match=r"`languages` must have tokens in the vocabulary. Received: \['x'\]"
    ):
        text.MarianT5Tokenizer(
            tokenizer._model,
            tokenizer.vocabulary,
            languages={"x": "x"},
            special_tokens={"pad": "<pad>", "unknown": "<unk>"},
        )


@pytest.mark.slow
def test_languages_are_options_of_the_command_line(nllb, tmp_path, capsys):
    nllb.save(tmp_path / "nllb")
    folder, chosen = str(tmp_path / "nllb"), languages_of(translations("NLLB")[1][0])
    options = ["--source-language", chosen["source_language"], "--target-language", chosen["target_language"]]
    expected = nllb("la casa azul", **chosen) + "\n"
    for command in ("generate", "predict"):
        assert commands.main([command, folder, "la casa azul", *options]) == 0
        assert capsys.readouterr().out == expected
    assert commands.main(["generate", folder, "la casa azul", *options, "--stream"]) == 0
    assert capsys.readouterr().out == expected
    assert commands.main(["score", folder, "la casa", "pan", *options]) == 0
    assert "pan" in capsys.readouterr().out
    assert commands.main(["align", folder, "la casa", "pan", *options]) == 0
    assert chosen["source_language"] not in capsys.readouterr().err
    assert commands.main(["generate", folder, "la casa", "--target-language", "en"]) == 2
    assert "`--target-language` must be one of eng_Latn, fra_Latn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source_language": "spa_Latn"},
            "`target_language` must be one of .*Received: target_language=None",
        ),
        ({"source_language": "es", "target_language": "eng_Latn"}, "Received: source_language='es'"),
    ],
    ids=str,
)
def test_fine_tuning_without_a_language_is_an_error(options, message):
    recipe = recipes.Translate(PAIRS, from_=FOLDERS / "NLLB", **options)
    with pytest.raises(ValueError, match=message):
        recipe.untrained()


def test_languages_need_a_model_that_has_them(pipeline, tmp_path):
    with pytest.raises(ValueError, match="`source_language` must be None without `from_`"):
        recipes.Translate([("uno", "one")], source_language="spa_Latn")
    pipeline.save(tmp_path / "pipeline")
    recipe = recipes.Translate(PAIRS, from_=tmp_path / "pipeline", target_language="es")
    with pytest.raises(ValueError, match="be None, as the model of `from_` has no languages"):
        recipe.untrained()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fine_tuning_keeps_languages(name, tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    chosen = languages_of(translations(name)[1][-1])
    languages = [part for option, code in chosen.items() for part in (f"--{option.replace('_', '-')}", code)]
    files = ["--data", str(pairs), "--validation", str(pairs)]
    options = [*files, "--from", str(FOLDERS / name), *languages, "--epochs", "2", "--learning-rate", "0.02"]
    assert commands.main(["train", "translate", *options, "--output", str(tmp_path / "run")]) == 0
    losses = json.loads((tmp_path / "run" / "report.json").read_text())["history"]["val_loss"]
    assert losses[1] < losses[0]
    tuned, untrained = pipelines.load(tmp_path / "run"), load(name)
    assert {option: getattr(tuned, option) for option in chosen} == chosen
    assert tuned.languages == untrained.languages
    found, before = (
        [answer.score for answer in pipeline.score(*zip(*PAIRS, strict=True), **chosen)]
        for pipeline in (tuned, untrained)
    )
    assert np.mean(found) > np.mean(before) + 1
    capsys.readouterr()
    assert commands.main(["generate", str(tmp_path / "run"), PAIRS[0][0]]) == 0
    assert capsys.readouterr().out == tuned(PAIRS[0][0]) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_exports_have_the_answers_of_the_pipeline(name, tmp_path):
    import tensorflow as tf

    import keras_transformer_serving as serving

    texts, cases = translations(name)
    pipeline = load(name)
    folder = tmp_path / "export"
    export.bundle(pipeline, folder, precisions=["float32"], texts=texts)
    export.verify(folder)
    served = serving.load(folder)
    saved = tf.saved_model.load(str(folder / "saved_model" / "export" / "1")).signatures["serving_default"]
    answers = []
    for case in cases:
        chosen = languages_of(case)
        answers.append(pipeline(texts, **chosen))
        columns = {option: tf.constant([code]) for option, code in chosen.items()}
        outputs = saved(text=tf.constant(texts), **columns)
        assert not any(outputs["error"].numpy())
        assert [each.decode() for each in outputs["text"].numpy()] == answers[-1]
        assert served(texts, **chosen) == answers[-1]
    assert answers[0] != answers[1]
    outputs = saved(
        text=tf.constant(texts[:1]), source_language=tf.constant(["x"]), target_language=tf.constant([""])
    )
    assert outputs["error"].numpy()[0].decode().startswith("`source_language` must be one of ")
