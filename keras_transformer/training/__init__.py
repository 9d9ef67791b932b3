"""Losses, schedules, metrics and callbacks for `compile()` and `fit()`."""

from keras_transformer.processes import Process as Process
from keras_transformer.processes import initialize_distributed as initialize_distributed
from keras_transformer.training.callbacks import ResetState as ResetState
from keras_transformer.training.callbacks import TimeBudget as TimeBudget
from keras_transformer.training.checkpoints import average_checkpoints as average_checkpoints
from keras_transformer.training.contrastive import InfoNCE as InfoNCE
from keras_transformer.training.evaluation import Evaluation as Evaluation
from keras_transformer.training.exact_resume import ExactResume as ExactResume
from keras_transformer.training.layouts import layout_map as layout_map
from keras_transformer.training.lora import enable_lora as enable_lora
from keras_transformer.training.lora import load_lora_weights as load_lora_weights
from keras_transformer.training.lora import merge_lora as merge_lora
from keras_transformer.training.lora import save_lora_weights as save_lora_weights
from keras_transformer.training.losses import LabelSmoothedCrossentropy as LabelSmoothedCrossentropy
from keras_transformer.training.metrics import Perplexity as Perplexity
from keras_transformer.training.metrics import TokenAccuracy as TokenAccuracy
from keras_transformer.training.optimizers import Adam as Adam
from keras_transformer.training.optimizers import AdamW as AdamW
from keras_transformer.training.optimizers import exclude_from_weight_decay as exclude_from_weight_decay
from keras_transformer.training.progress import Progress as Progress
from keras_transformer.training.schedules import PerUpdate as PerUpdate
from keras_transformer.training.schedules import TransformerSchedule as TransformerSchedule
from keras_transformer.training.terminate_on_nan import TerminateOnNaN as TerminateOnNaN

__all__ = [
    "Adam",
    "AdamW",
    "Evaluation",
    "ExactResume",
    "InfoNCE",
    "LabelSmoothedCrossentropy",
    "PerUpdate",
    "Perplexity",
    "Process",
    "Progress",
    "ResetState",
    "TerminateOnNaN",
    "TimeBudget",
    "TokenAccuracy",
    "TransformerSchedule",
    "average_checkpoints",
    "enable_lora",
    "exclude_from_weight_decay",
    "initialize_distributed",
    "layout_map",
    "load_lora_weights",
    "merge_lora",
    "save_lora_weights",
]
