"""Whole networks: an encoder, a stack of residual blocks around a sequence layer, a head."""

from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models.classifier import Classifier

__all__ = ["Classifier", "LayerSpec"]
