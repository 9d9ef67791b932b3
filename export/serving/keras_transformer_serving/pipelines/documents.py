"""Calls with tags, placeholders or a glossary: texts become parts, whose outputs are finished and joined."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError, RowErrors
from keras_transformer_serving.text import glossary, markup
from keras_transformer_serving.text.alignment import Score
from keras_transformer_serving.text.documents import Document, SplitText
from keras_transformer_serving.text.glossary import Glossary
from keras_transformer_serving.text.markup import Placeholders
from keras_transformer_serving.text.splitting import Split, SplitTexts, is_valid_text


def translate(
    texts: Sequence[Any],
    tag_handling: str | None,
    placeholders: Placeholders | None,
    glossaries: Sequence[Glossary | None],
    split_texts: SplitText | None,
    run: Callable[[SplitTexts], Sequence[Any]],
    score_of: Callable[[int], Score],
    errors: Errors,
) -> list[Any]:
    """Return the output of each text, or its error.

    Args:
        texts: the texts.
        tag_handling: "html", "placeholders" or None.
        placeholders: the kinds of placeholders; see `markup.parse`.
        glossaries: the glossary of each text, or None.
        split_texts: a function that splits texts that are too long; None if they are errors.
        run: a function from the parts of all texts to their outputs or errors.
        score_of: a function from the index of a text to the function that scores targets of its parts.
        errors: "raise" the error of a text, or "return" it in place of the output.
    """
    row_errors = RowErrors(errors)
    documents: list[Split | Document] = []
    for row, text in enumerate(texts):
        documents.append(Split.whole(text))
        if is_valid_text(text):
            with row_errors.of(row):
                documents[row] = document(text, tag_handling, placeholders, glossaries[row], split_texts)
        if row in row_errors:
            documents[row] = Split.whole("")
    split = SplitTexts(documents)
    of_parts = split.of_parts([each.of_parts if isinstance(each, Document) else [None] for each in documents])
    outputs = [
        output if part is None or isinstance(output, Exception) else part.finish(output, score_of(owner))
        for part, output, owner in zip(of_parts, run(split), split.owners, strict=True)
    ]
    for index, (output, owner) in enumerate(zip(outputs, split.owners, strict=True)):
        if isinstance(output, Exception):
            message = str(output).replace(f"texts[{index}]", f"texts[{owner}]")
            row_errors.add(owner, type(output)(message))
    joined = split.join(outputs)
    return row_errors.merge(
        {row: output for row, output in enumerate(joined) if not isinstance(output, Exception)}
    )


def chosen_tags(
    tag_handling: str | None, placeholders: Placeholders | None
) -> tuple[str | None, Placeholders | None]:
    """Return `tag_handling`, by default "placeholders" if there are kinds of placeholders, and these as a tuple.

    Raises:
        ValueError: if a kind is unknown.
    """
    if placeholders is None:
        return tag_handling, None
    markup.patterns_of(placeholders)
    return tag_handling or "placeholders", (*placeholders,)


def document(
    text: str,
    tag_handling: str | None,
    placeholders: Placeholders | None,
    terms: Glossary | None,
    split_texts: SplitText | None,
) -> Document:
    """Return a text as a `Document`.

    Raises:
        InvalidInputError: if its tags are not closed, or not nested.
    """
    try:
        return Document(text, tag_handling, terms, split_texts, placeholders)
    except ValueError as error:
        raise InvalidInputError("texts", str(error)) from None


def glossaries_of(count: int, entries: Any, mode: str) -> list[Glossary | None]:
    """Return the glossary of each of `count` texts, for a mapping, one for each text, or None.

    Raises:
        TypeError: if the argument is of another type.
        ValueError: if there are not as many as texts, a glossary has too many entries, or the mode is unknown.
    """
    glossary.check_mode(mode)
    if entries is None or isinstance(entries, Mapping | str) or not isinstance(entries, Iterable):
        return [None if entries is None else Glossary(entries, mode)] * count
    glossaries = [None if each is None else Glossary(each, mode) for each in entries]
    if len(glossaries) != count:
        raise ValueError(
            f"`glossary` must be a mapping, or one for each of {count} texts. Received: {len(glossaries)} items"
        )
    return glossaries
