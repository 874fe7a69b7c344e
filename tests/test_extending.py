"""docs/extending.md, literally: its files beside each other, its commands one after the other."""

import random
import re
import shlex
from pathlib import Path

import pytest
import torch

from lra_ssm.layers import S4D, LayerSpec, NetworkSpec
from lra_ssm.models import Classifier
from tests.runner import succeed

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/extending.md").read_text()
FILES = {found[1]: found[0] for found in re.finditer(r"(?<=```python\n)# (\w+\.py)\n.*?(?=^```$)", TEXT, re.M | re.S)}
LINES = [line for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.M | re.S) for line in block.splitlines()]
SHORT = ["--trainer.max_steps=2", "--trainer.accelerator=cpu"]
LITTLE = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32"]


@pytest.mark.parametrize("line", LINES)
def test_commands_run(line, tmp_path, data):
    program, *arguments = shlex.split(line)
    assert program == "lightning" and len(FILES) == 9
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    letters = random.Random(0)
    rows = [f"{i % 2},{''.join(letters.choices('ACGT', k=20 + i))}" for i in range(64)]
    (tmp_path / "promoters.csv").write_text("\n".join(rows) + "\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    succeed([*arguments, *SHORT, *([] if "my_data" in line else [*LITTLE, f"--data.root={data}"])], tmp_path)


def test_its_recurrence_is_the_one_it_says_with_padding_and_steps():
    names = {}
    exec(compile(FILES["my_recurrence.py"], "my_recurrence.py", "exec"), names)
    layer = names["Leaky"](3, start=0.7).double()
    x, lengths = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([6, 4])
    state, expected = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(6):
        state = 0.7 * state + 0.3 * x[:, t]
        expected.append(state)
    expected = torch.stack(expected, 1)
    y, last = layer(x, lengths, return_last_state=True)
    torch.testing.assert_close(y[0], expected[0])
    torch.testing.assert_close(y[1, :4], expected[1, :4])
    torch.testing.assert_close(last, torch.stack([expected[0, 5], expected[1, 3]]))
    torch.testing.assert_close(layer.step(x[:, 4], expected[:, 3])[0], expected[:, 4])
    both = names["Leaky"](3, bidirectional=True)
    assert both.optim_roles() == {"logit": "recurrent", "reverse.logit": "recurrent"}


def test_its_loss_and_its_task_are_what_they_say():
    names = {}
    for name in ("my_loss.py", "my_task.py", "my_metric.py"):
        exec(compile(FILES[name], name, "exec"), names)
    layer = LayerSpec(S4D, d_state=4)
    network = NetworkSpec(Classifier, layer=layer, num_classes=3, vocab_size=5, d_model=4, n_layers=1)
    logits, labels = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    plain = torch.nn.functional.cross_entropy(logits, labels)
    focal = names["Focal"](network, gamma=0.0)
    torch.testing.assert_close(focal.loss(logits, labels), plain)
    focal.gamma = 2.0
    p = logits.softmax(-1)[range(6), labels]
    torch.testing.assert_close(focal.loss(logits, labels), -((1 - p) ** 2 * p.log()).mean())
    ordinal = names["Ordinal"](network)
    ordinal.forward = lambda inputs, lengths: torch.tensor([[-9.0, -1, -1], [-9, 1, -1], [-9, 1, 1]])
    assert ordinal.predicted(None, None).tolist() == [0, 1, 2]
    metric = names["WithinOne"]()
    metric.update(torch.eye(3), torch.tensor([1, 1, 0]))
    metric.update(torch.eye(3)[:1], torch.tensor([0]))
    assert metric.compute() == 3 / 4
