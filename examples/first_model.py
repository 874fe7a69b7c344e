# %% [markdown]
# # A first model, from its layers to its memory
#
# Build a classifier in Python, train it on short ListOps, look at what it remembers, save it, and replace our layer
# with your own. As a notebook: first_model.ipynb; as a script: `python examples/first_model.py`, less than two minutes
# on two cores. Data and runs go into the working folder.

# %%
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads sleep; set it before torch is imported

import lightning as L
import torch
from torch import Tensor, nn

from lra_ssm.analysis import eigenvalues, relative_gradient, timescales
from lra_ssm.analysis.network import Example, from_embedding, inputs_of, layers_of
from lra_ssm.datamodules import ListOps
from lra_ssm.layers import B2S6, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.runs import Run
from lra_ssm.tasks import Classification, OptimizerSettings

STEPS = 300

# %% [markdown]
# ## Data
#
# Nested expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, whose value is a digit. They are generated once, in a second. A
# batch is padded on the right, and `lengths` has the real length of each sequence.

# %%
data = ListOps(
    length_bounds=(3, 40), max_depth=4, num_train=9_600, num_val=1_000, num_test=1_000, batch_size=32, generator_seed=0
)
data.prepare_data()
data.setup("fit")
batch = next(iter(data.train_dataloader()))
words = [data.vocabulary[token] for token in batch.inputs[0, : batch.lengths[0]]]
print(f"{tuple(batch.inputs.shape)} tokens; the first: {' '.join(words)} = {batch.labels[0]}")

# %% [markdown]
# ## A network
#
# A layer maps (batch, length, d_model) to the same shape. You give a specification, not an instance: each block builds
# its own layer at the width it needs, and a checkpoint stores the specification as plain values.


# %%
def network_with(layer: LayerSpec) -> NetworkSpec:
    """Return two blocks of 32 channels around a layer, the mean over positions, and a linear head."""
    block = BlockSpec(S4Block, norm="layer", prenorm=True)
    return NetworkSpec(
        Classifier, layer=layer, block=block, d_model=32, n_layers=2, vocab_size=data.vocab_size, num_classes=10
    )


L.seed_everything(0)
settings = OptimizerSettings(lr=0.01, weight_decay=0.01, warmup_steps=0.1)
task = Classification(network_with(LayerSpec(B2S6, num_blocks=4, d_state=8)), settings)
print(f"{sum(p.numel() for p in task.parameters()):,} parameters; logits {tuple(task(*batch[:2]).shape)}")

# %% [markdown]
# ## A fit
#
# A `Run` gives Lightning's Trainer a directory, checkpoints and a record. If you interrupt this cell and run it again,
# it resumes; a finished run is not trained twice.


# %%
def fit(task: Classification, experiment: str) -> tuple[Run, L.Trainer]:
    run = Run(f"runs/{experiment}/a")
    trainer = L.Trainer(**run.trainer_arguments(max_steps=STEPS, accelerator="cpu"))
    metrics = run.fit(trainer, task, data)
    print(f"{experiment}: {run.path}, validation accuracy {metrics['val/accuracy']:.3f}")
    return run, trainer


run, trainer = fit(task, "first-model")

# %%
(scored,) = trainer.test(task, data, verbose=False)
print(f"test accuracy {scored['test/accuracy']:.3f}; guessing the most frequent digit gives 0.14")

# %% [markdown]
# ## What it remembers
#
# `relative_gradient` is S_k of the B2S6 paper (eq. 6): by how much the logits depend on each position. The eigenvalues
# of a layer say how long its states last.

# %%
network = task.network.eval()
ids, lengths, labels = batch.inputs[:1, : batch.lengths[0]], batch.lengths[:1], batch.labels[:1]
function, embedded = from_embedding(network, Example(ids, lengths, labels))
for word, share in zip(words, relative_gradient(function, embedded)[0].tolist(), strict=True):
    print(f"{word:>6}  {'█' * round(200 * share)} {share:.3f}")

# %%
layers = layers_of(network)
with torch.no_grad(), inputs_of(layers) as inputs:
    network(ids, lengths)
for name, layer in layers.items():
    found = eigenvalues(layer, inputs[name][0])  # at each position: B2S6's step depends on its input
    if found is not None:
        print(f"{name}: half of its states last {timescales(found).median():.1f} positions or more")

# %% [markdown]
# ## Saved and loaded
#
# A saved model is a folder with a config and weights. Loading it needs no code from training.

# %%
network.save_pretrained("first-model")
again = Classifier.from_pretrained("first-model")
assert torch.equal(again(ids, lengths), network(ids, lengths))

# %% [markdown]
# ## A layer of your own
#
# A layer needs only `forward(x, lengths=None)`. This one is a running mean, which remembers everything equally.


# %%
class Average(nn.Module):
    """The mean of all positions so far, mixed over channels."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mix = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        return self.mix(x.cumsum(1) / steps[:, None])


L.seed_everything(0)
mine = Classification(network_with(LayerSpec(Average)), settings)
_, trainer = fit(mine, "my-average")
(own,) = trainer.test(mine, data, verbose=False)
print(f"test accuracy: B2S6 {scored['test/accuracy']:.3f}, the running mean {own['test/accuracy']:.3f}")
