"""Answers to questions about long contexts, and to those without an answer, of `transformers`.

    PYTHONPATH=transformers-4 .venv-bench/bin/python benchmarks/parity/questions.py tests/pipelines/words

Version 5 is without the pipeline "question-answering": `transformers-4` is a folder into which pip installed version
4.57.6 with `--target`. Each row has a question, a context, the overlap of windows, whether no answer is accepted, and
the answer with its score. The library adds up the scores of equal texts, from overlapping windows and from spans of the
same words; that is off here, as such a sum can be above 1.
"""

import argparse
import itertools
import json
import os
import pathlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("USE_TF", "0")

import numpy as np
import transformers

FOLDERS = ("BertChineseForQuestionAnswering", "RobertaForQuestionAnswering")
QUESTIONS = ["Who lives in London?", "Ada", "km"]
PIECES = ["said Ada Lovelace", "Ada lives in London", "it's 3.14 km!", "don't O'Brien", "(Lovelace)", "Who?"]
SIZES = (1, 1, 1, 5, 14, 20)  # of contexts, in pieces
DOC_STRIDES = (5, 20)
MAX_LENGTH, MAX_ANSWER_TOKENS = 48, 6
FILE = "long_contexts.json"


def main() -> None:
    """Write the answers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    root = parser.parse_args().folder
    transformers.pipelines.QuestionAnsweringPipeline.get_answer = lambda *_: None  # no sums of scores
    random = np.random.default_rng(0)
    contexts = [" ".join(random.choice(PIECES, size)) for size in SIZES]
    for folder in (root / name for name in FOLDERS):
        pipeline = transformers.pipeline("question-answering", model=str(folder), device="cpu")
        rows = []
        options = itertools.product(QUESTIONS, contexts, DOC_STRIDES, (False, True))
        for question, context, doc_stride, no_answer in options:
            answer = pipeline(
                question=question,
                context=context,
                max_seq_len=MAX_LENGTH,
                doc_stride=doc_stride,
                max_answer_len=MAX_ANSWER_TOKENS,
                handle_impossible_answer=no_answer,
            )
            found = [answer[name] for name in ("answer", "start", "end", "score")]
            rows.append([question, context, doc_stride, no_answer, *found])
        (folder / FILE).write_text(json.dumps(rows))
        print(folder.name, f"{sum(row[4] == '' for row in rows)} of {len(rows)} without an answer")


if __name__ == "__main__":
    main()
