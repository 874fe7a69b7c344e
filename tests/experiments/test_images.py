"""Images in memory: what is prepared, and the error where nothing is."""

import pytest
import torch

from lra_ssm.datamodules import MNIST, SCIFAR
from lra_ssm.errors import InputError
from lra_ssm.experiments.images import images_of, made_up
from tests.small_data import write_cifar10


def test_images_are_those_of_the_loaders(tmp_path):
    root = str(tmp_path)
    prepared = SCIFAR(root=root, source=str(write_cifar10(tmp_path)), resolution=16, batch_size=1000)
    prepared.prepare_data()
    prepared.setup()
    images = images_of(prepared)
    assert images.pixels == "exact"
    for name, loader in {"val": prepared.val_dataloader(), "test": prepared.test_dataloader()}.items():
        (batch,) = loader
        assert torch.equal(images.splits[name].inputs, batch.inputs)
        assert torch.equal(images.splits[name].labels, batch.labels)


def test_the_command_that_is_missing_is_named(tmp_path):
    other = SCIFAR(root=str(tmp_path), source=str(write_cifar10(tmp_path)), resolution=16)
    other.prepare_data()
    with pytest.raises(InputError, match=f"`lra-ssm prepare scifar --root={tmp_path}`"):
        images_of(SCIFAR(root=str(tmp_path), resolution=8, limit=7))


def test_made_up_images_have_the_shape_of_real_ones():
    images = made_up(MNIST())
    assert images.pixels == "made up"
    assert images.splits["val"].inputs.shape == (60, 784, 1) and set(images.splits["val"].labels.tolist()) == set(
        range(10)
    )
