"""State-space models on the Long Range Arena and on language, trained with PyTorch Lightning.

Importing this package loads neither torch nor lightning; import the parts you use
(`lra_ssm.ops`, `lra_ssm.layers`, `lra_ssm.models`, `lra_ssm.tasks`, `lra_ssm.datamodules`).
"""

__version__ = "0.1.0"
