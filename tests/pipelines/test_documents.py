"""Tags, placeholders and glossaries in calls of the library."""

import re

import keras
import pytest

import keras_transformer as kt

TAG = re.compile(r"<[^>]*>|\{\w*\}")
PAGE = "<p>uno <b>dos</b> {x} tres</p> <ul><li>la casa<li>el &amp; perro</ul>"


@pytest.mark.slow
def test_tags_are_kept_and_do_not_change_the_translation(pipeline):
    output = pipeline(PAGE, tag_handling="html")
    assert sorted(TAG.findall(output)) == sorted(TAG.findall(PAGE))
    first, second, third = pipeline(["uno dos tres", "la casa", "el & perro"])
    outputs = re.fullmatch(r"<p>(.*)</p> <ul><li>(.*)<li>(.*)</ul>", output).groups()
    squeezed = ["".join(TAG.sub("", text).split()) for text in outputs]
    assert squeezed == ["".join(text.split()) for text in (first, second, third)]
    assert pipeline([PAGE, b"la {x} casa"], tag_handling="html")[0] == output


@pytest.mark.slow
def test_the_terms_of_a_glossary_are_in_the_output(pipeline):
    texts = ["la casa azul", "el perro", "La Casa"]
    outputs = pipeline(texts, glossary={"casa": "xyz"})
    assert "xyz" in outputs[0].lower()
    assert outputs[1] == pipeline(texts[1])
    assert "Xyz" in outputs[2]
    assert pipeline(texts, glossary={"gato": "cat"}) == pipeline(texts)
    of_each = pipeline(texts, glossary=[None, None, {"casa": "xyz"}])
    assert of_each == [*pipeline(texts[:2]), outputs[2]]


def test_errors_name_the_text_or_the_argument(pipeline):
    outputs = pipeline(["<b>uno", None, b"\xff", "uno"], tag_handling="html", errors="return")
    assert [type(output) for output in outputs] == [ValueError, TypeError, ValueError, str]
    assert [f"texts[{row}]" in str(output) for row, output in enumerate(outputs[:3])] == [True] * 3
    kept = pipeline("la :b %s", placeholders=["colon", re.compile("%s")])
    assert all(placeholder in kept for placeholder in (":b", "%s"))
    with pytest.raises(ValueError, match=r"none for <b> at character 0 in texts\[1\]"):
        pipeline(["uno", "<b>uno"], tag_handling="html")
    for options, message in (
        ({"tag_handling": "xml"}, "`tag_handling` must be one of"),
        ({"tag_handling": "html", "placeholders": ["xml"]}, "`placeholders` must be a list of names in"),
        ({"tag_handling": "html", "truncate": True}, "`truncate` must be False"),
        ({"glossary": {"a": "b"}, "glossary_mode": "x"}, "`glossary_mode` must be one of"),
        ({"glossary": {str(i): "x" for i in range(10_000)}}, "at most 1000 entries"),
        ({"glossary": [{}, {}]}, "one for each of 1 texts. Received: 2 items"),
    ):
        with pytest.raises(ValueError, match=message):
            pipeline("uno", **options)


@pytest.fixture(scope="module")
def translator():
    """Train a translator of phrases whose adjectives follow their nouns."""
    nouns = {
        "casa": "house",
        "mesa": "table",
        "puerta": "door",
        "silla": "chair",
        "cama": "bed",
        "taza": "cup",
    }
    adjectives = {
        "roja": "red",
        "vieja": "old",
        "nueva": "new",
        "limpia": "clean",
        "rota": "broken",
        "negra": "black",
    }
    verbs = {"veo": "I see", "compro": "I buy", "limpio": "I clean", "vendo": "I sell"}
    pairs = [
        (f"{verb} la {noun} {adjective}", f"{verbs[verb]} the {adjectives[adjective]} {nouns[noun]}")
        for verb in verbs
        for noun in nouns
        for adjective in adjectives
    ]
    # Words are aligned by omission, so that the translator must know phrases without adjectives.
    pairs += [(f"{verb} la {noun}", f"{verbs[verb]} the {nouns[noun]}") for verb in verbs for noun in nouns]
    keras.utils.set_random_seed(0)
    sides = [side for pair in pairs for side in pair]
    tokenizer = kt.text.SentencePieceTokenizer.train(sides, 80, byte_fallback=False)
    model = kt.models.Transformer(
        tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=64, hidden_dim=128
    )
    loss = kt.training.LabelSmoothedCrossentropy(0.0)
    model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
    batches = kt.data.translation_pairs(pairs, tokenizer, batch_size=48)
    model.fit(batches, epochs=80, verbose=0, shuffle=False)
    return kt.pipelines.TextToText(model, tokenizer, max_new_tokens=24)


@pytest.mark.slow
def test_tags_enclose_the_translations_of_their_words(translator):
    for text, expected in (
        ("veo la <b>casa</b> roja", "I see the red <b>house</b>"),
        ("compro la mesa <b>vieja</b>", "I buy the <b>old</b> table"),
        ("vendo la <a><b>silla</b> negra</a>", "I sell the <a>black <b>chair</b></a>"),
        ("limpio la taza {x} rota", "I clean the broken cup {x}"),
    ):
        assert translator(text, tag_handling="html") == expected
    terms = {"roja": "scarlet", "casa": "home"}
    assert translator("veo la casa roja", glossary=terms) == "I see the scarlet home"
    unlikely = {"casa": "table"}
    assert translator("veo la casa roja", glossary=unlikely) == "I see the red table"
    assert translator("veo la casa roja", glossary=unlikely, glossary_mode="soft") == "I see the red house"
