"""The searches of the samplers: greedy, sampling, beam, contrastive and speculative."""

from keras_transformer.generation.samplers import Beam, Contrastive, Greedy, Sample, Speculative, register
from keras_transformer.generation.search.beam import beam_search
from keras_transformer.generation.search.contrastive import ContrastiveSearch
from keras_transformer.generation.search.greedy import HighestSearch
from keras_transformer.generation.search.sampling import SamplingSearch
from keras_transformer.generation.search.speculative import SpeculativeSearch

register("greedy", Greedy, HighestSearch)
register("sample", Sample, SamplingSearch)
register("beam", Beam, beam_search)
register("contrastive", Contrastive, ContrastiveSearch)
register(None, Speculative, SpeculativeSearch)
