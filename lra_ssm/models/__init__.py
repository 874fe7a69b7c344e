"""Networks: a backbone of blocks, and what stands on it."""

from lra_ssm.layers.spec import LayerSpec, NetworkSpec
from lra_ssm.models.backbone import Backbone
from lra_ssm.models.classifier import Classifier
from lra_ssm.models.dual_encoder import DualEncoder
from lra_ssm.models.generation import Generation
from lra_ssm.models.heads import LinearHead, LogitPairHead, LRAPairHead, NLIHead
from lra_ssm.models.language_model import LanguageModel
from lra_ssm.models.numbers import NumberClassifier, NumberDualEncoder
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.models.pooling import LastPooling, MaxPooling, MeanPooling
from lra_ssm.models.pretrained import Pretrained, load_pretrained, save_network
from lra_ssm.models.regressor import Regressor

__all__ = [
    "Backbone",
    "Classifier",
    "DualEncoder",
    "Generation",
    "LRAPairHead",
    "LanguageModel",
    "LastPooling",
    "LayerSpec",
    "LinearHead",
    "LogitPairHead",
    "MaxPooling",
    "MeanPooling",
    "NLIHead",
    "NetworkSpec",
    "NumberClassifier",
    "NumberDualEncoder",
    "PlainNetwork",
    "Pretrained",
    "Regressor",
    "load_pretrained",
    "save_network",
]
