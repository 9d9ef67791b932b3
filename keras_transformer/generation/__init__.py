"""Text generation: one loop over a pure decoding step, compiled with XLA in Python and without XLA in exports."""

from keras_transformer.generation import constraints as constraints
from keras_transformer.generation.alignment import align as align
from keras_transformer.generation.constraints import BannedWords as BannedWords
from keras_transformer.generation.constraints import EndTokens as EndTokens
from keras_transformer.generation.constraints import ForcedLastToken as ForcedLastToken
from keras_transformer.generation.constraints import ForcedPrefix as ForcedPrefix
from keras_transformer.generation.constraints import ForcedWords as ForcedWords
from keras_transformer.generation.constraints import MinNewTokens as MinNewTokens
from keras_transformer.generation.constraints import NoRepeatNGram as NoRepeatNGram
from keras_transformer.generation.constraints import RepetitionPenalty as RepetitionPenalty
from keras_transformer.generation.constraints import VocabularyShortlist as VocabularyShortlist
from keras_transformer.generation.ensemble import Ensemble as Ensemble
from keras_transformer.generation.generative_model import GenerativeModel as GenerativeModel
from keras_transformer.generation.generator import Generation as Generation
from keras_transformer.generation.generator import Generator as Generator
from keras_transformer.generation.generator import generate as generate
from keras_transformer.generation.loop import generate_ids as generate_ids
from keras_transformer.generation.samplers import Beam as Beam
from keras_transformer.generation.samplers import Contrastive as Contrastive
from keras_transformer.generation.samplers import Greedy as Greedy
from keras_transformer.generation.samplers import Sample as Sample
from keras_transformer.generation.samplers import Speculative as Speculative
from keras_transformer.generation.samplers import get as get
from keras_transformer.generation.scoring import Scores as Scores
from keras_transformer.generation.scoring import score as score
from keras_transformer.generation.streaming import stream as stream
from keras_transformer.generation.timestamps import Timestamps as Timestamps

__all__ = [
    "BannedWords",
    "Beam",
    "Contrastive",
    "EndTokens",
    "Ensemble",
    "ForcedLastToken",
    "ForcedPrefix",
    "ForcedWords",
    "Generation",
    "GenerativeModel",
    "Generator",
    "Greedy",
    "MinNewTokens",
    "NoRepeatNGram",
    "RepetitionPenalty",
    "Sample",
    "Scores",
    "Speculative",
    "Timestamps",
    "VocabularyShortlist",
    "align",
    "constraints",
    "generate",
    "generate_ids",
    "get",
    "score",
    "stream",
]
