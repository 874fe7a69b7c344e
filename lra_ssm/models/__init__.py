"""Whole networks: an encoder, a stack of residual blocks around a sequence layer, a head."""

from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models.classifier import Classifier
from lra_ssm.models.dual_encoder import DualEncoder

__all__ = ["Classifier", "DualEncoder", "LayerSpec"]
