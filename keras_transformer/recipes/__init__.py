"""Training recipes, from data to a trained pipeline and a report, with one `compile` and one `fit`."""

from keras_transformer.recipes.answer import Answer as Answer
from keras_transformer.recipes.classify import Classify as Classify
from keras_transformer.recipes.evaluation import evaluate as evaluate
from keras_transformer.recipes.language_model import LanguageModel as LanguageModel
from keras_transformer.recipes.language_model import MaskedLanguageModel as MaskedLanguageModel
from keras_transformer.recipes.quickstarts import quickstart as quickstart
from keras_transformer.recipes.recipe import Recipe as Recipe
from keras_transformer.recipes.rerank import Rerank as Rerank
from keras_transformer.recipes.runs import run as run
from keras_transformer.recipes.speech import Speech as Speech
from keras_transformer.recipes.summarize import Summarize as Summarize
from keras_transformer.recipes.synthetic import generate_pairs as generate_pairs
from keras_transformer.recipes.tag import Tag as Tag
from keras_transformer.recipes.translate import Translate as Translate
from keras_transformer_options.task_options import TASKS as TASKS

__all__ = [
    "TASKS",
    "Answer",
    "Classify",
    "LanguageModel",
    "MaskedLanguageModel",
    "Recipe",
    "Rerank",
    "Speech",
    "Summarize",
    "Tag",
    "Translate",
    "evaluate",
    "generate_pairs",
    "quickstart",
    "run",
]
