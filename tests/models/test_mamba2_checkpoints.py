"""Mamba-2's public checkpoints: read from both layouts, written for transformers; what cannot be read or written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lra_ssm.errors import InputError
from lra_ssm.layers import S6, SSD, BlockSpec, LayerSpec, Mamba2Block, MambaBlock
from lra_ssm.models import LanguageModel
from tests.models.public_mamba2 import hf_folder, logits, sizes, state_spaces_folder
from tests.models.test_mamba_checkpoints import IDS, agree

ODD = {
    "plain": {},
    "wide": {"expand": 4, "N": 3, "P": 4, "G": 3, "W": 2, "bias": True, "conv_bias": False},
    "untied": {"tied": False, "layers": 3, "d": 15, "P": 5, "G": 2},
}
NEEDED = "transformers is not installed: pip install transformers"


@pytest.mark.parametrize("odd", ODD)
def test_the_hf_layout_is_read_and_written(odd: str, tmp_path: Path) -> None:
    s = sizes(**ODD[odd])
    tensors = hf_folder(tmp_path / "a", s)
    model = LanguageModel.from_pretrained(tmp_path / "a")
    agree(model, logits(s, tensors, IDS))
    model.save_pretrained(tmp_path / "b", format="hf", source={"run": "x"})
    ours = load_file(tmp_path / "b/model.safetensors")
    assert ours.keys() == tensors.keys() and all(torch.equal(ours[name], tensors[name]) for name in tensors)
    theirs, config = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert {key: config.get(key, [0.0, torch.inf]) for key in theirs} == theirs and config["source"] == {"run": "x"}


@pytest.mark.parametrize("odd", [*ODD, "layer norm"])
def test_the_layout_of_state_spaces_gives_the_logits_of_mamba2(odd: str, tmp_path: Path) -> None:
    s = sizes(rms=False) if odd == "layer norm" else sizes(**ODD[odd])
    tensors = state_spaces_folder(tmp_path / "mamba", s)
    model = LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert model.vocab_size == 21 and model.head_weight.shape[0] == 32  # padded
    agree(model, logits(s, tensors, IDS))
    model.save_pretrained(tmp_path / "ours")
    agree(LanguageModel.from_pretrained(tmp_path / "ours"), logits(s, tensors, IDS))


@pytest.mark.parametrize("odd", ODD)
def test_transformers_and_we_read_what_the_other_writes(odd: str, tmp_path: Path) -> None:
    """Logits and greedy text."""
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    s = sizes(**ODD[odd])
    tensors = hf_folder(tmp_path / "made", s)
    theirs = transformers.Mamba2ForCausalLM.from_pretrained(tmp_path / "made").eval()
    theirs.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = theirs(IDS).logits
        every = torch.ones_like(IDS)
        text = theirs.generate(IDS, attention_mask=every, max_new_tokens=12, do_sample=False, eos_token_id=None)
    ours = LanguageModel.from_pretrained(tmp_path / "theirs")
    agree(ours, expected)
    assert torch.equal(ours.generate(IDS, 12), text) and len(text[0].unique()) > 3
    torch.testing.assert_close(logits(s, tensors, IDS).float(), expected, atol=1e-4, rtol=0)
    ours.save_pretrained(tmp_path / "ours", format="hf")
    back = transformers.Mamba2ForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(back(IDS).logits, expected, atol=1e-4, rtol=0)


def test_our_own_model_through_transformers(tmp_path: Path) -> None:
    """A model of ours as it is initialized, its vocabulary padded, its scan cut otherwise; it is read back as saved."""
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    torch.manual_seed(1)
    layer = LayerSpec(SSD, d_state=6, head_dim=10, chunk_size=64)
    model = LanguageModel(layer, vocab_size=21, d_model=20, n_layers=2, block=Mamba2Block).eval()
    model.save_pretrained(tmp_path / "hf", format="hf")
    theirs = transformers.Mamba2ForCausalLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, model(IDS), atol=1e-4, rtol=0)
    model.save_pretrained(tmp_path / "ours")
    agree(LanguageModel.from_pretrained(tmp_path / "ours"), theirs(IDS).logits.detach())


HF: dict[str, tuple[dict[str, Any], str]] = {
    "limit": ({"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\]; \[0.0, inf\] alone can be read"),
    "heads": ({"num_heads": 3}, "24 inner channels, 3 heads, head_dim 6 and n_groups 1 do not go together"),
    "groups": ({"n_groups": 3}, "24 inner channels, 4 heads, head_dim 6 and n_groups 3 do not go together"),
    "epsilon": ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; 1e-05 alone can be read"),
}


@pytest.mark.parametrize("name", HF)
def test_settings_of_hf_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    settings, said = HF[name]
    hf_folder(tmp_path / "hf", sizes(), **settings)
    with pytest.raises(InputError, match=said):
        LanguageModel.from_pretrained(tmp_path / "hf")


STATE_SPACES: dict[str, tuple[dict[str, Any], str]] = {
    "no norm": ({"rmsnorm": False}, "ssm_cfg: rmsnorm is False; True alone can be read"),
    "norm first": ({"norm_before_gate": True}, "ssm_cfg: norm_before_gate is True; False alone can be read"),
    "some of the channels": ({"d_ssm": 12}, "ssm_cfg: d_ssm is 12, not of the kind of None"),
    "unknown": ({"dt_rank": 4}, "ssm_cfg has a setting 'dt_rank'"),
    "heads": ({"headdim": 5}, "24 inner channels, head_dim 5 and n_groups 1 do not go together"),
}


@pytest.mark.parametrize("name", STATE_SPACES)
def test_settings_of_state_spaces_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    settings, said = STATE_SPACES[name]
    state_spaces_folder(tmp_path / "mamba", sizes(), settings)
    with pytest.raises(InputError, match=said) as error:
        LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert str(error.value).startswith(str(tmp_path / "mamba")) and "\n" not in str(error.value)


def test_what_only_changes_how_weights_are_drawn_or_run_is_read(tmp_path: Path) -> None:
    more = {"conv_init": 0.5, "chunk_size": 64, "A_init_range": [2, 3], "use_mem_eff_path": False}
    tensors = state_spaces_folder(tmp_path / "mamba", sizes(), more)
    agree(LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True), logits(sizes(), tensors, IDS))


def test_models_that_transformers_has_not_are_refused(tmp_path: Path) -> None:
    def said(layer: object = LayerSpec(SSD, head_dim=4), block: object = Mamba2Block) -> str:
        model = LanguageModel(layer, vocab_size=9, d_model=8, n_layers=1, block=block)
        with pytest.raises(InputError, match="transformers' Mamba2ForCausalLM cannot be such a model: ") as error:
            model.save_pretrained(tmp_path / "hf", format="hf")
        return str(error.value)

    assert said(layer=S6).endswith("it has lra_ssm.layers.S6, not lra_ssm.layers.SSD")
    assert said(block=MambaBlock).endswith("it has lra_ssm.layers.MambaBlock, not lra_ssm.layers.Mamba2Block")
    assert said(block=BlockSpec(Mamba2Block, prenorm=False)).endswith("prenorm is False, not True")
    assert said(block=BlockSpec(Mamba2Block, expand=1.5)).endswith("expand is 1.5, no whole number")
