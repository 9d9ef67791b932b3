"""The metrics of `keras-transformer evaluate` and of `keras_transformer.pipelines.evaluate`, from 0 to 100."""

METRICS = {
    "bleu": "BLEU of all translations together, by sacreBLEU",
    "chrf": "chrF of all translations together, by sacreBLEU",
    "rouge1": "F1 of the unigrams of a summary and its reference, by `rouge-score`: the mean over summaries",
    "rouge2": "F1 of their bigrams: the mean over summaries",
    "rougeL": "F1 of their longest common subsequence: the mean over summaries",
}
"""A description of each metric, by name."""

EVALUATED = {
    "TextClassification": "classify",
    "ImageClassification": "classify",
    "TokenClassification": "tag",
    "QuestionAnswering": "answer",
    "Reranking": "rerank",
    "SpeechToText": "speech",
    "Embedding": None,
}
"""The pipelines that do not generate and are evaluated, with the tasks whose metrics they have."""
