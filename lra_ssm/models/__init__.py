"""Networks: a backbone of blocks, and what is built on it."""

from lra_ssm.layers.spec import LayerSpec, NetworkSpec
from lra_ssm.models.backbone import Backbone
from lra_ssm.models.classifier import Classifier, DualEncoder
from lra_ssm.models.embeddings import FeaturePositionEmbedding, PositionEmbedding, ScalarEmbedding
from lra_ssm.models.generation import Generation
from lra_ssm.models.heads import LinearHead, LogitPairHead, LRAPairHead, MLPHead, NLIHead
from lra_ssm.models.language_model import LanguageModel
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.models.pooling import FirstPooling, LastPooling, MaxPooling, MeanPooling
from lra_ssm.models.pretrained import Pretrained, load_pretrained, save_network
from lra_ssm.models.regressor import Regressor

__all__ = [
    "Backbone",
    "Classifier",
    "DualEncoder",
    "FeaturePositionEmbedding",
    "FirstPooling",
    "Generation",
    "LRAPairHead",
    "LanguageModel",
    "LastPooling",
    "LayerSpec",
    "LinearHead",
    "LogitPairHead",
    "MLPHead",
    "MaxPooling",
    "MeanPooling",
    "NLIHead",
    "NetworkSpec",
    "PlainNetwork",
    "PositionEmbedding",
    "Pretrained",
    "Regressor",
    "ScalarEmbedding",
    "load_pretrained",
    "save_network",
]
