"""Recipe of a translator, or any other task from text to text."""

from typing import Any

from keras_transformer.datasets import multi30k, phrasebook, spa_eng
from keras_transformer.recipes.recipe import read_rows
from keras_transformer.recipes.text_to_text import Pairs, TextToTextRecipe
from keras_transformer_options.tasks import TranslateOptions, checked_direction


class Translate(TranslateOptions, TextToTextRecipe):
    """Train an encoder–decoder from text to text on pairs (source, target).

    The options are the fields of `TranslateOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> translator, history = Translate("pairs.tsv", epochs=5).train()  # doctest: +SKIP
        >>> translator("¿Dónde está la estación?")  # doctest: +SKIP
        'Where is the station?'
    """

    def read(self, paths: Any) -> Pairs:
        """Read pairs of texts."""
        pairs = read_rows(self, paths)
        return [pair[::-1] for pair in pairs] if self.reverse else pairs

    def load_dataset(self) -> tuple[Pairs, Pairs, Pairs]:
        """Load the train, validation and test pairs of the public dataset."""
        splits = translation_data(self.dataset or "", self.direction)
        train, validation, test = (
            [pair[::-1] for pair in split] if self.reverse else split for split in splits
        )
        return train, validation, test


def translation_data(dataset: str, direction: str | None = None) -> tuple[Pairs, Pairs, Pairs]:
    """Load the train, validation and test pairs of a public dataset.

    Args:
        dataset: "phrasebook", "spa_eng" or "multi30k".
        direction: the languages as source-target, by default "es-en", for multi30k "en-de".
    """
    direction = checked_direction(dataset, direction)
    if dataset == "multi30k":
        return multi30k.load_data(*direction.split("-"))
    if dataset == "spa_eng":
        return spa_eng.load_data(direction)
    splits = phrasebook.load_data()
    if direction == "es-en":
        return splits
    train, validation, test = ([(english, spanish) for spanish, english in split] for split in splits)
    return train, validation, test
