"""A run's id: what it depends on, and what it does not."""

from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT_STR_ALIAS_CONVERSION

from lra_ssm.cli.config import read_fit_options
from lra_ssm.runs import identity
from lra_ssm.runs.identity import run_identity
from tests.runner import FIT

NETWORK = "model.network"


def id_of(*options):
    return run_identity(read_fit_options([*FIT[1:], *options]).resolved)


SAME = [
    ["--data.num_workers=1", "--data.root=elsewhere", "--data.eval_batch_size=3"],
    ["--trainer.log_every_n_steps=2", "--trainer.devices=1", "--trainer.limit_test_batches=1"],
    ["--trainer.enable_progress_bar=true", "--trainer.logger=false", "--trainer.max_time=00:01:00:00"],
    ["--trainer.callbacks+=lra_ssm.progress.LogLines"],
    ["--experiment=other", "--runs_dir=there", "--compute.backend=eager", "--checkpoint.every_n_steps=7"],
    # a default that is written out
    [f"--{NETWORK}.padding=masked", "--model.optimizer.lr=0.01", "--model.label_smoothing=0", "--model.width=null"],
    ["--checkpoint.mode=max", "--data.generator_seed=0"],
    # what Lightning makes of None
    ["--trainer.limit_train_batches=1.0", "--trainer.limit_val_batches=1.0", "--trainer.val_check_interval=1.0"],
    ["--trainer.deterministic=false", "--trainer.precision=32", "--trainer.gradient_clip_algorithm=norm"],
    # other spellings
    ["--model.optimizer.warmup_steps=2.0", f"--{NETWORK}.layer.parameterization=exp"],
    [f"--{NETWORK}.layer=lra_ssm.layers.b2s6.B2S6"],
]
STOPPING = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"]
OTHERS = [
    ["--seed_everything=2"], ["--model.optimizer.lr=0.02"], ["--data.generator_seed=3"], ["--data.batch_size=4"],
    ["--checkpoint.mode=min"], ["--trainer.max_epochs=3"], ["--trainer.precision=64"],
    ["--trainer.num_sanity_val_steps=2"], STOPPING, [*STOPPING, "--trainer.callbacks.patience=5"],
    [f"--{NETWORK}.layer=S6"], [f"--{NETWORK}.layer.parameterization=softplus"], [f"--{NETWORK}.block.dropout=0.3"],
    ["--trainer.limit_train_batches=1"],  # one batch; 1.0 is all of them
    ["--trainer.overfit_batches=1"], ["--trainer.overfit_batches=1.0"],
    ["--data.source=files"], ["--data.source=others"], ["--init_from=a.ckpt"],
]  # fmt: skip


def test_it_consists_of_what_can_change_the_result_however_it_is_spelled():
    plain = id_of()
    for same in SAME:
        assert id_of(*same) == plain, same
    assert len({plain, *(id_of(*options) for options in OTHERS)}) == 1 + len(OTHERS)


def test_it_does_not_depend_on_how_a_path_is_spelled_or_on_what_lies_there(here):
    before = id_of("--data.source=pairs")
    (here / "pairs").mkdir()
    weights = id_of("--init_from=w.ckpt")
    (here / "w.ckpt").touch()
    for source in ("pairs", "./pairs/", str(here / "pairs"), "../elsewhere/pairs"):
        assert id_of(f"--data.source={source}") == before
    for path in ("w.ckpt", "./w.ckpt", str(here / "w.ckpt")):
        assert id_of(f"--init_from={path}") == weights


def test_precisions_are_called_as_lightning_calls_them():
    assert identity.PRECISIONS == _PRECISION_INPUT_STR_ALIAS_CONVERSION
