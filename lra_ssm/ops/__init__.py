"""Pure functions on tensors: discretization, initialization, long convolutions, S4D kernels, the selective scan."""

from lra_ssm.ops.backends import note_backend, prefer_backend, record_backends, scan_backends
from lra_ssm.ops.block_linear import block_linear
from lra_ssm.ops.convolution import bidirectional_convolution, causal_convolution
from lra_ssm.ops.cross_entropy import linear_cross_entropy
from lra_ssm.ops.depthwise_convolution import causal_depthwise_convolution, conv_state
from lra_ssm.ops.discretization import bilinear, bilinear_as_zoh, step_sizes, zoh
from lra_ssm.ops.initialization import (
    hippo_legs_normal,
    initialize_A,
    inverse_softplus,
    log_uniform_delta,
    s4d_inv,
    s4d_legs,
    s4d_lin,
    s4d_real,
)
from lra_ssm.ops.mamba3_scan import mamba3_scan, mamba3_step
from lra_ssm.ops.parameterization import Form, Parameterization, as_complex, eigenvalues, inverse_eigenvalues
from lra_ssm.ops.reference import (
    bidirectional_convolution_reference,
    causal_convolution_reference,
    causal_depthwise_convolution_reference,
)
from lra_ssm.ops.s4d_kernel import s4d_kernel
from lra_ssm.ops.scan import linear_scan
from lra_ssm.ops.selective_scan import selective_scan
from lra_ssm.ops.ssd_scan import ssd_scan, ssd_step
from lra_ssm.ops.steps import SelectiveWeights, mamba_step, selective_step, step_linear

__all__ = [
    "Form",
    "Parameterization",
    "SelectiveWeights",
    "as_complex",
    "bidirectional_convolution",
    "bidirectional_convolution_reference",
    "bilinear",
    "bilinear_as_zoh",
    "block_linear",
    "causal_convolution",
    "causal_convolution_reference",
    "causal_depthwise_convolution",
    "causal_depthwise_convolution_reference",
    "eigenvalues",
    "hippo_legs_normal",
    "initialize_A",
    "inverse_eigenvalues",
    "inverse_softplus",
    "conv_state",
    "linear_cross_entropy",
    "linear_scan",
    "log_uniform_delta",
    "mamba3_scan",
    "mamba3_step",
    "mamba_step",
    "note_backend",
    "prefer_backend",
    "record_backends",
    "s4d_inv",
    "s4d_kernel",
    "s4d_legs",
    "s4d_lin",
    "s4d_real",
    "scan_backends",
    "selective_scan",
    "selective_step",
    "ssd_scan",
    "ssd_step",
    "step_linear",
    "step_sizes",
    "zoh",
]
