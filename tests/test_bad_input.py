"""Files of another format raise an error."""

import json

import pytest

from keras_transformer import models, pipelines, text


@pytest.mark.parametrize("number", [2, None])
def test_pipelines_and_tokenizers_of_another_format_are_rejected(tmp_path, number):
    classifier = models.SequenceClassifier(models.BERT(260, 1, 2, 8, max_length=16), 3)
    pipeline = pipelines.TextClassification(classifier, text.ByteTokenizer())
    pipeline.save(tmp_path / "pipeline")
    assert pipelines.load(tmp_path / "pipeline").settings() == pipeline.settings()
    for name, key, load in (
        ("tokenizer/tokenizer.json", "format_version", text.load),
        ("config.json", "format", pipelines.load),
    ):
        file = tmp_path / "pipeline" / name
        content = json.loads(file.read_text())
        assert content[key] == 1
        file.write_text(json.dumps({**content, key: number}))
        with pytest.raises(
            ValueError, match=rf"{file.name}` must be of format 1; a newer.*Received: {number}"
        ):
            load(file.parent)
