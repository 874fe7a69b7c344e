"""Wrong settings, networks and batches of every task, each one line."""

import math
from functools import partial

import pytest
import torch

from lra_ssm.layers import S6, NetworkSpec
from lra_ssm.models import Classifier
from lra_ssm.tasks import Classification, LanguageModelling, MaskedModelling, OptimizerSettings, Regression
from lra_ssm.tasks.metrics import MetricSpec
from lra_ssm.tasks.optim import optimizer_and_schedule
from tests.tasks.fits import Scale, Table

FIRST = NetworkSpec(Table, classes=3, first=True)
TOKENS, LABELS = torch.zeros(3, 4, dtype=torch.int64), torch.arange(3)
FEATURES, VALUES = torch.zeros(3, 4, 2), torch.zeros(3, 2)


def f1(**settings):
    macro = {"num_classes": 3, "average": "macro", **settings}
    return {"f1": MetricSpec("torchmetrics.classification.MulticlassF1Score", **macro)}


SCHEDULE = "torch.optim.lr_scheduler"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "0.1"}, "lr is 0.1; it must be a number"),
        ({"warmup_steps": 2.5}, "warmup_steps is 2.5; it must be a whole number, or a share below 1"),
        ({"roles": {"delta": {"lr": -1}}}, "roles.delta.lr is -1; it must be a number of at least 0"),
        ({"roles": {"delta": {"lr": 1, "lr_factor": 1}}}, "roles.delta has lr 1 and lr_factor 1; set one of them"),
        ({"roles": {"delta": 0.1}}, r"roles.delta is 0.1; give lr or lr_factor, and weight_decay: \{lr: 0.001\}"),
        ({"roles": {"base": {"lr": 1}}}, "the role base has the optimizer's own lr and weight_decay"),
        ({"min_lr_factor": 2.0}, "min_lr_factor is 2.0; it is a share of the rates, at most 1"),
        ({"betas": (0.9, 1.0)}, "betas is .*; it must be two numbers of at least 0 and below 1"),
        ({"cosine_by": "epochs"}, "cosine_by is 'epochs'; it must be step or epoch"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; it must be below 1"),
        ({"roles": {"recurent": {"lr": 0.1}}}, "'recurent', which no parameter has; did you mean 'recurrent'"),
        ({"cosine_by": "epoch"}, "cosine_by is epoch, which needs trainer.max_epochs and epochs that end"),
        ({"algorithm": "Muonn"}, "algorithm is 'Muonn', neither a known name nor an import path; did you mean 'Muon'"),
        ({"algorithm": "NAdam"}, "'NAdam' is named by its import path, torch.optim.NAdam"),
        ({"algorithm": "torch.nn.Linear"}, "algorithm torch.nn.Linear is not a torch.optim.Optimizer"),
        ({"algorithm": "torch.nn.init.zeros_"}, "algorithm torch.nn.init.zeros_ is not a class"),
        ({"algorithm": "SGD", "arguments": {"momentm": 1}}, "not take arguments.momentm; did you mean 'momentum'"),
        ({"algorithm": "SGD", "arguments": {"lr": 1}}, "algorithm SGD does not take arguments.lr; it takes momentum,"),
        ({"algorithm": "SGD", "betas": (0.9, 0.98)}, r"betas is \[0.9, 0.98\], but algorithm SGD does not take betas"),
        ({"algorithm": "torch.optim.Rprop"}, "does not take weight_decay: set every weight_decay"),
        ({"algorithm": "Muon", "arguments": {"adjust_lr_fn": "rms"}}, "algorithm Muon: .* rms is not supported"),
        ({"algorithm": "SGD", "arguments": {"momentum": -1}}, "algorithm SGD: Invalid momentum value: -1"),
        ({"schedule": "wsd", "schedule_arguments": {"decai": 2}}, "schedule_arguments.decai; did you mean 'decay'"),
        ({"schedule": "wsd", "schedule_arguments": {"decay": 2}}, "decay is 2; it must be a share of the run"),
        ({"schedule": "rsqrt", "min_lr_factor": 0.1}, "min_lr_factor is 0.1, but schedule rsqrt has no floor; cosine,"),
        ({"schedule": "linear", "cosine_by": "epoch"}, "cosine_by is epoch, but the schedule is linear"),
        ({"schedule": f"{SCHEDULE}.StepLR"}, "missing 1 required positional argument: 'step_size'"),
        ({"schedule": f"{SCHEDULE}.ReduceLROnPlateau"}, "is not an LRScheduler that advances by steps"),
        ({"schedule": f"{SCHEDULE}.ConstantLR", "schedule_arguments": {"factor": 2}}, "ConstantLR: Constant mult"),
        *(
            ({name: value}, f"{name} is {value}; it must be a number of at least 0")
            for name in ("lr", "weight_decay", "warmup_steps", "min_lr_factor", "ema_decay")
            for value in (-1, math.nan, math.inf)
        ),
    ],
)
def test_settings_of_optimizers_and_schedules(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer_and_schedule(Classifier(S6, 3, d_input=1, d_model=4, n_layers=1), OptimizerSettings.of(settings), 9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1}, "model.label_smoothing is 1; it must be at least 0 and below 1"),
        ({"class_weights": [1, 0, 1]}, r"model.class_weights is \[1, 0, 1\]; each must be a number above 0"),
        ({"class_weights": [1, 2]}, "model.class_weights has 2 numbers, but the network has logits for 3 classes"),
        ({"metrics": {"loss": "torchmetrics.MeanMetric"}}, "model.metrics has 'loss', which the task logs itself"),
        ({"metrics": {"f1": "torch.nn.ReLU"}}, "model.metrics.f1 is a ReLU, not a torchmetrics.Metric"),
        ({"metrics": f1(num_classes=2)}, "model.metrics.f1 does not take the predictions: "),
        ({"metrics": f1(average=None)}, "model.metrics.f1 does not give a single number: average its classes"),
    ],
)
def test_settings_of_classification(settings, message):
    with pytest.raises(ValueError, match=message):
        Classification(FIRST, **settings).dry_run((TOKENS, LABELS))


@pytest.mark.parametrize(
    ("task", "network", "batch", "message"),
    [
        (Classification, FIRST, (TOKENS, VALUES), "the task for them is Regression"),
        (Regression, Scale, (FEATURES, LABELS), "the task for them is Classification"),
        (Regression, Scale, (FEATURES, VALUES), r"Scale returned \(3, 4, 2\) .*targets are \(3, 2\); .*pooling null"),
        (partial(Regression, metrics={"l2_error": "torchmetrics.MeanMetric"}), Scale, None, "the task logs itself"),
        (MaskedModelling, FIRST, (TOKENS, TOKENS), r"needs a prediction per position, \(batch, length, classes\)"),
        (MaskedModelling, Table, (TOKENS, FEATURES), r"needs a prediction per position, \(3, 4, 2\)"),
        (MaskedModelling, Table, (TOKENS, TOKENS + 5), "class 5 is among the targets, and each has a logit"),
        (MaskedModelling, Table, (TOKENS, None, LABELS), "no target per position: set data.pretrain"),
        (partial(MaskedModelling, accuracy_up_to=[8, 4]), Table, None, "must be rising"),
        (LanguageModelling, Table, (TOKENS, TOKENS + 5), "token 5 is among the targets, and each needs a logit"),
        (LanguageModelling, Table, (TOKENS, VALUES), r"a batch of text is \(inputs, targets, reset, lengths\)"),
        (LanguageModelling, Table, (TOKENS, TOKENS, TOKENS == 1, None), "Table.forward takes no `reset`: documents"),
    ],
)
def test_networks_and_batches_that_do_not_fit(task, network, batch, message):
    with pytest.raises(ValueError, match=message):
        task(network).dry_run(batch)
