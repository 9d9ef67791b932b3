"""The signatures `encode`, `score` and `attributions` of the server."""

import numpy as np
import pytest
from served_exports import predict, run
from served_graphs import OFFSET, STEPS


def test_texts_are_encoded_as_padded_ids_and_their_mask(exports):
    async def test(app):
        _, found = await predict(app, "generator", ["ab", "", "c"], signature_name="encode")
        a, b, c = (OFFSET + ord(each) for each in "abc")
        assert found["predictions"] == [
            {"source_ids": [a, b], "padding_mask": [True, True], "error": ""},
            {
                "source_ids": [0, 0],
                "padding_mask": [False, False],
                "error": "`texts` must each have a token. Received: none",
            },
            {"source_ids": [c, 0], "padding_mask": [True, False], "error": ""},
        ]

    run(exports, test, "generator")


def test_targets_are_scored_and_attributed(exports):
    copied, other = (float(logit - np.log(np.exp(9) + OFFSET + 255)) for logit in (9, 0))

    async def test(app):
        rows = [
            {"text": "ab", "target": "ab"},
            {"text": "ab", "target": "b"},
            {"text": "", "target": "b"},
            {"text": "a", "target": "x" * STEPS},
        ]
        _, found = await predict(app, "copier", rows, signature_name="score")
        same, different, empty, long = found["predictions"]
        assert same["scores"] == pytest.approx(3 * copied, abs=1e-5)
        assert same["lengths"] == 3  # with the end
        assert different["token_scores"] == pytest.approx([other, other, 0.0], abs=1e-5)
        assert empty["error"] == "`texts` must not be empty. Received: an empty text"
        assert long["error"].startswith(f"`targets` must have at most {STEPS} tokens each")
        _, found = await predict(app, "copier", ["ab", "x" * 99], signature_name="attributions")
        attributed, invalid = found["predictions"]
        assert attributed["text"] == "ab"
        assert attributed["source_pieces"] == attributed["pieces"] == ["<0x61>", "<0x62>", "</s>"]
        np.testing.assert_allclose(attributed["alignment"], np.eye(3), atol=1e-5)
        assert invalid["source_pieces"] == ["", "", ""]  # padded to the longest
        assert invalid["error"].startswith("`texts` must have at most")
        status, found = await predict(app, "copier", ["ab"], signature_name="align")
        assert (status, "or score or attributions. Received" in found["error"]) == (400, True)

    run(exports, test, "copier")
