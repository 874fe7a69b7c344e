"""Measurements of memory and stability: functions of any layer, network, or module of your own."""

from lra_ssm.analysis.correlation import autocorrelations, latent_variances
from lra_ssm.analysis.frequency import frequency_response, group_delay, group_delay_of, response_of
from lra_ssm.analysis.gradients import (
    delta_gradient_ratios,
    delta_gradients,
    gradient_over_weight,
    jacobian_norms,
    relative_gradient,
)
from lra_ssm.analysis.memory import by_lag, effective_memory_length, impulse_response, memory_function
from lra_ssm.analysis.spectrum import eigenvalues, mean_timescales, step_sizes, timescales

__all__ = [
    "autocorrelations",
    "by_lag",
    "delta_gradient_ratios",
    "delta_gradients",
    "effective_memory_length",
    "eigenvalues",
    "frequency_response",
    "gradient_over_weight",
    "group_delay",
    "group_delay_of",
    "impulse_response",
    "jacobian_norms",
    "latent_variances",
    "mean_timescales",
    "memory_function",
    "relative_gradient",
    "response_of",
    "step_sizes",
    "timescales",
]
