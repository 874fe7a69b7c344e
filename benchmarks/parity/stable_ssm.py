"""radarFudan/StableSSM's classifier next to ours: S4D with f on the real part of A, on sequential MNIST.

    git clone https://github.com/radarFudan/StableSSM && git -C StableSSM checkout 64315ac89468
    pip install einops
    python benchmarks/parity/stable_ssm.py StableSSM best exp softplus direct
    python benchmarks/parity/stable_ssm.py StableSSM best exp softplus direct --double

Model, loss and settings are the checkout's (configs/model/stablessm.yaml, configs/experiment/MNIST/ssm.yaml): AdamW
over all parameters, a cosine by epochs, layer norm after the residual, normalized pixels. Images are averaged to 14 ×
14 pixels, two layers stand in place of one, and the rate is 0.005, one of its scripts'. Ours has the model and the
optimizer of configs/mnist/stable_ssm.yaml. At this rate rounding errors of float32 grow within 150 steps to a
hundredth of the loss, whoever makes them; --double, in float64, tells them from differences of the models.

"direct" is w itself, which starts there at +1/2: such a system is unstable, and multiplies rounding errors from the
first step on.

Shapes: B batch, L length, D channels, N states (conjugate pairs).
"""

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from compare import RESULTS, STEPS, From, Names, TorchPeer, arrays_of, cross_entropy, load_weights, run_case, smaller
from lra_ssm.datamodules import MNIST
from lra_ssm.layers import BlockSpec, LayerSpec, S4Block, StableSSM
from lra_ssm.models import Classifier
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule

CONFIG = Path(__file__).parents[2] / "configs" / "mnist" / "stable_ssm.yaml"
WIDTH, DEPTH, BATCH, EPOCHS, RATE = 64, 2, 32, 10, 0.005
FORMS = ("best", "exp", "softplus", "direct")


def public_model(checkout: Path, form: str) -> nn.Module:
    """Return its LightningModule, whose encoders import a scipy that they do not use."""
    sys.modules.setdefault("scipy", ModuleType("scipy"))
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    from src.models.decoders.linear import Linear as Decoder
    from src.models.encoders.linear import Linear as Encoder
    from src.models.recurrent.stablessm import StableSSMModel
    from src.models.seq_classification_module import SeqClassificationLitModule

    given = yaml.safe_load((checkout / "configs" / "model" / "stablessm.yaml").read_text())["net"]
    experiment = yaml.safe_load((checkout / "configs" / "experiment" / "MNIST" / "ssm.yaml").read_text())
    given |= experiment["model"]["net"] | {"rec1_size": WIDTH, "n_layers": DEPTH, "parameterization": form}
    del given["_target_"]
    parts = StableSSMModel(**given), Encoder(1, WIDTH), Decoder(WIDTH, 10)
    model: nn.Module = SeqClassificationLitModule(*parts, optimizer=None, scheduler=None, compile=False).train()
    return model


def public_loss(model: Any, batch: Any) -> Tensor:
    inputs, _, labels = batch
    loss: Tensor = model.model_step((inputs, labels))[0]
    return loss


def our_network(form: str) -> Classifier:
    """Return the network of our config at this size."""
    given = yaml.safe_load(CONFIG.read_text())["model"]["init_args"]["network"]["init_args"]
    block = given["block"]["init_args"]
    layer = given["layer"]["init_args"] | {"parameterization": form}
    return Classifier(
        LayerSpec(StableSSM, **layer), 10, d_input=1, d_model=WIDTH, n_layers=DEPTH, block=BlockSpec(S4Block, **block)
    ).train()


def names() -> Names:
    """Return our parameters -> theirs."""
    table: dict[str, str | From] = {}
    for ours, theirs in {"backbone.embedding": "encoder.U", "head": "decoder.U"}.items():
        table |= {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}
    for i in range(DEPTH):
        ours, theirs = f"backbone.blocks.{i}", f"net.stablessm_layers.{i}"
        table |= {f"{ours}.norm.{part}": f"net.norms.{i}.{part}" for part in ("weight", "bias")}
        table |= {
            f"{ours}.layer.system.log_delta": f"{theirs}.kernel.log_dt",
            f"{ours}.layer.system.A_log": f"{theirs}.kernel.log_A_real",
            f"{ours}.layer.system.A_imag": f"{theirs}.kernel.A_imag",
            f"{ours}.layer.system.C": From(f"{theirs}.kernel.C", lambda C: C[None]),  # of one direction
            f"{ours}.layer.system.D": f"{theirs}.D",
            f"{ours}.glu.weight": From(f"{theirs}.output_linear.0.weight", lambda x: x[:, :, 0]),  # a Conv1d of width 1
            f"{ours}.glu.bias": f"{theirs}.output_linear.0.bias",
        }
    return table


def group_of(name: str) -> str:
    """Return the group in which the gradient of one of our parameters is counted."""
    if ".system." in name:
        return "A and Δ" if name.endswith(("A_log", "A_imag", "log_delta")) else "C and D"
    return "GLU" if ".glu." in name else "encoder, norms, head"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("forms", nargs="+", choices=FORMS)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    data = MNIST(root=str(options.data), batch_size=BATCH, mean=0.1307, std=0.3081)
    data.prepare_data()
    data.setup("fit")
    dtype = torch.float64 if options.double else torch.float32
    batches = [
        (smaller(inputs, 2).to(dtype), lengths, labels)
        for (inputs, lengths, labels), _ in zip(data.train_dataloader(), range(options.steps), strict=False)
    ]
    settings = yaml.safe_load(CONFIG.read_text())["model"]["init_args"]["optimizer"]
    settings = OptimizerSettings.of(settings | {"lr": RATE})
    table, epoch = names(), options.steps // EPOCHS
    for form in options.forms:
        torch.manual_seed(0)
        model = public_model(options.checkout, form).to(dtype)
        decay = yaml.safe_load((options.checkout / "configs" / "model" / "stablessm.yaml").read_text())["optimizer"]
        optimizer = torch.optim.AdamW(model.parameters(), RATE, decay["betas"], weight_decay=decay["weight_decay"])
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS, eta_min=0)
        theirs = TorchPeer(model, public_loss, optimizer, group_of, ByEpoch(cosine, epoch), names=table)

        def ours(form: str = form, weights: nn.Module = model) -> TorchPeer:
            network = our_network(form).to(dtype)
            load_weights(network, arrays_of(weights), table)
            made = optimizer_and_schedule(network, settings, options.steps, epoch)
            schedule = made["lr_scheduler"]["scheduler"]
            return TorchPeer(network, cross_entropy, made["optimizer"], group_of, schedule)

        run_case(
            f"stable-ssm-{form}{'-float64' if options.double else ''}", theirs, ours, batches, options.steps,
            options.out, 1e-15 if options.double else 1e-7, source="radarFudan/StableSSM", commit="64315ac89468",
            sizes=f"{DEPTH} × {WIDTH}, 64 states, length 196, batch {BATCH}", about=f"full length; {form}",
        )  # fmt: skip


class ByEpoch:
    """A schedule that Lightning moves after each epoch, called after each step."""

    def __init__(self, schedule: Any, epoch_steps: int) -> None:
        self.schedule, self.epoch_steps, self.steps = schedule, epoch_steps, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.epoch_steps == 0:
            self.schedule.step()


if __name__ == "__main__":
    main()
