"""LightningModules: what a training, validation, test and prediction step is, and how parameters are trained."""

from lra_ssm.tasks.classification import Classification
from lra_ssm.tasks.language_modelling import LanguageModelling
from lra_ssm.tasks.masked_modelling import MaskedModelling
from lra_ssm.tasks.optim import OptimizerSettings, RoleSettings
from lra_ssm.tasks.regression import Regression

__all__ = ["Classification", "LanguageModelling", "MaskedModelling", "OptimizerSettings", "Regression", "RoleSettings"]
