"""Mamba's and Mamba-2's public checkpoints: read from both layouts, written for transformers, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, S6, SSD, BlockSpec, LayerSpec, Mamba2Block, MambaBlock, S4Block
from lra_ssm.models import Classifier, LanguageModel
from lra_ssm.models.mamba_kinds import KINDS, Kind
from tests.models.public_mamba import Sizes, hf_folder, logits, padded, sizes, sizes2, state_spaces_folder

IDS = torch.randint(20, (2, 19), generator=torch.Generator().manual_seed(3))
MODELS = {
    "plain": sizes(),
    "wide": sizes(expand=3, N=5, W=2, R=7, bias=True, conv_bias=False),
    "untied": sizes(tied=False, layers=3, d=33, R=3),
    "plain 2": sizes2(),
    "wide 2": sizes2(expand=4, N=3, P=4, G=3, W=2, bias=True, conv_bias=False),
    "untied 2": sizes2(tied=False, layers=3, d=15, P=5, G=2),
}


def agree(model: LanguageModel, expected: torch.Tensor) -> None:
    """Compare the logits of the whole, and of a prefix followed by steps."""
    with torch.no_grad():
        got = model(IDS)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected.float(), atol=1e-4, rtol=0)
        _, state = model(IDS[:, :7], return_last_state=True)
        for t in range(7, IDS.shape[1]):
            out, state = model.step(IDS[:, t], state)
            torch.testing.assert_close(out, expected[:, t].float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("s", MODELS.values(), ids=MODELS)
def test_the_hf_layout_is_read_and_written_as_transformers_does(s: Sizes, tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "a", s)
    model, expected = LanguageModel.from_pretrained(tmp_path / "a"), logits(tmp_path / "a", IDS)
    agree(model, expected)
    model.save_pretrained(tmp_path / "b", format="hf", source={"run": "x"})
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]
    ours = load_file(tmp_path / "b/model.safetensors")
    assert ours.keys() == tensors.keys() and all(torch.equal(ours[name], tensors[name]) for name in ours)
    theirs, config = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert {key: config.get(key, [0.0, torch.inf]) for key in theirs} == theirs and config["source"] == {"run": "x"}
    transformers = pytest.importorskip("transformers", reason="transformers, which is compared, is not installed")
    kind = transformers.Mamba2ForCausalLM if "P" in s else transformers.MambaForCausalLM
    theirs = kind.from_pretrained(tmp_path / "b").eval()
    theirs.save_pretrained(tmp_path / "theirs")
    agree(LanguageModel.from_pretrained(tmp_path / "theirs"), expected)
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, expected.float(), atol=1e-4, rtol=0)
    for penalty in (1.0, 3.0):
        settings = {"max_new_tokens": 12, "repetition_penalty": penalty}
        every = {"attention_mask": torch.ones_like(IDS), "do_sample": False, "eos_token_id": None}
        text = theirs.generate(IDS, **every, **settings)
        assert torch.equal(model.generate(IDS, **settings), text) and len(text[0].unique()) > 3


@pytest.mark.parametrize("s", MODELS.values(), ids=MODELS)
def test_the_layout_of_state_spaces_gives_the_originals_logits(s: Sizes, tmp_path: Path) -> None:
    state_spaces_folder(tmp_path / "mamba", s)
    hf_folder(tmp_path / "hf", padded(s))  # with the same weights
    model, expected = LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True), logits(tmp_path / "hf", IDS)
    assert model.vocab_size == 21 and model.head_weight.shape[0] == (24 if "R" in s else 32)  # padded
    assert (model.head is None) == s["tied"] and not model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    agree(model, expected)
    model.save_pretrained(tmp_path / "ours")
    agree(LanguageModel.from_pretrained(tmp_path / "ours"), expected)


def test_layer_norms_of_state_spaces_are_read(tmp_path: Path) -> None:
    tensors = state_spaces_folder(tmp_path / "mamba", sizes(rms=False))
    model = LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    norms = {"layers.1.norm": model.backbone.blocks[1].norm, "norm_f": model.backbone.norm}
    for name, norm in norms.items():
        assert isinstance(norm, torch.nn.LayerNorm)
        assert all(torch.equal(x, tensors[f"backbone.{name}.{part}"]) for part, x in norm.named_parameters())


@pytest.mark.parametrize("layer, block", [
    (LayerSpec(S6, d_state=6), MambaBlock), (LayerSpec(SSD, d_state=6, head_dim=10, chunk_size=64), Mamba2Block),
])  # fmt: skip
def test_our_own_model_in_the_hf_layout(layer: LayerSpec, block: Any, tmp_path: Path) -> None:
    """With S6's default rank of Δ, another chunk size, and a padded vocabulary."""
    model = LanguageModel(layer, vocab_size=21, d_model=20, n_layers=2, block=block).eval()
    model.save_pretrained(tmp_path / "hf", format="hf")
    agree(LanguageModel.from_pretrained(tmp_path / "hf"), model(IDS).detach())


GROUPS = "n_groups 1 do not go together"
# The layout, sizes, settings of config.json, and what the error says.
WRONG: list[tuple[Callable[..., Any], Sizes, Sizes, str]] = [
    (hf_folder, sizes(), {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' can be read"),
    (hf_folder, sizes(), {"num_hidden_layers": 0}, "are not all whole numbers of at least 1"),
    (hf_folder, sizes(), {"model_type": "mamba3"}, "has no known layout: model_type 'mamba3'"),
    (hf_folder, sizes(), {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; only 1e-05 can be read"),
    (hf_folder, sizes2(), {"time_step_limit": [0.0, 0.1]}, r"dt_limit is \[0.0, 0.1\]; only \[0.0, inf\] can"),
    (hf_folder, sizes2(), {"num_heads": 3}, f"24 inner channels, 3 heads, head_dim 6 and {GROUPS}"),
    (state_spaces_folder, sizes(), {"ssm_cfg": {"layer": "Mamba3"}}, "only 'Mamba1' and 'Mamba2' can be read"),
    (state_spaces_folder, sizes(), {"ssm_cfg": {"headdim": 4}}, "ssm_cfg has a setting 'headdim'"),
    (state_spaces_folder, sizes2(), {"ssm_cfg": {"rmsnorm": False}}, "rmsnorm is False; only True can be read"),
    (state_spaces_folder, sizes2(), {"ssm_cfg": {"norm_before_gate": True}}, "norm_before_gate is True; only False"),
    (state_spaces_folder, sizes2(), {"ssm_cfg": {"d_ssm": 12}}, "d_ssm is 12; only None can be read"),
    (state_spaces_folder, sizes2(), {"ssm_cfg": {"headdim": 5}}, f"24 inner channels, head_dim 5 and {GROUPS}"),
    (state_spaces_folder, sizes(), {"attn_layer_idx": [1], "attn_cfg": {}}, r"attn_layer_idx is \[1\]; only \[\] can"),
    (state_spaces_folder, sizes(), {"d_intermediate": 24}, "d_intermediate is 24; only 0 can be read"),
    (state_spaces_folder, sizes(), {"rope": True}, r"a setting 'rope' \(True\) that this version does not know"),
    (state_spaces_folder, sizes(tied=False), {"tie_embeddings": True}, "lm_head.weight is not the embedding, though"),
]


@pytest.mark.parametrize("write, s, settings, message", WRONG)
def test_unreadable_settings_are_one_line(write: Any, s: Sizes, settings: Sizes, message: str, tmp_path: Path) -> None:
    write(tmp_path / "mamba", s, **settings)
    with pytest.raises(InputError, match=message) as error:
        LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert str(error.value).startswith(str(tmp_path / "mamba")) and "\n" not in str(error.value)


def test_settings_that_only_change_initial_values_or_speed_are_read(tmp_path: Path) -> None:
    more = {"conv_init": 0.5, "chunk_size": 64, "A_init_range": [2, 3], "use_mem_eff_path": False}
    state_spaces_folder(tmp_path / "mamba", sizes2(), ssm_cfg=more)
    hf_folder(tmp_path / "hf", padded(sizes2()))
    agree(LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True), logits(tmp_path / "hf", IDS))


def test_tensors_that_do_not_fit_are_named_as_in_the_file(tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "hf", sizes())
    missing = r"layers.1.mixer.A_log is missing in the checkpoint, \(24, 4\) in the model \(and 9 more\)"
    wide = r"backbone.layers.0.mixer.x_proj.weight is \(8, 24\) in the checkpoint, \(9, 24\) in the model"
    for changed, message in (
        ({name: x for name, x in tensors.items() if "layers.1." not in name}, missing),
        ({name: x[:8] if name.endswith("0.mixer.x_proj.weight") else x for name, x in tensors.items()}, wide),
    ):
        save_file(changed, tmp_path / "hf/model.safetensors")
        with pytest.raises(InputError, match=message):
            LanguageModel.from_pretrained(tmp_path / "hf")


TINY = {"vocab_size": 9, "d_model": 8, "n_layers": 1}
HEADS = LayerSpec(SSD, head_dim=4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model_type)
def test_what_a_config_leaves_out_is_transformers_default(kind: Kind) -> None:
    """time_step_rank is "auto" in a file, and transformers resolves it to a number at once."""
    transformers = pytest.importorskip("transformers", reason="transformers, which is compared, is not installed")
    defaults = getattr(transformers, kind.hf_class.replace("ForCausalLM", "Config"))()
    for name, value in kind.hf.items():
        if name != "time_step_rank":
            assert json.dumps(getattr(defaults, name)) == json.dumps(value), name


@pytest.mark.parametrize("build, reason", [
    (lambda: LanguageModel(LayerSpec(B2S6, num_blocks=2, d_state=4), **TINY), "it has lra_ssm.layers.B2S6, not "),
    (lambda: LanguageModel(LayerSpec(S6, parameterization="softplus"), **TINY), "is 'softplus', not 'exp'"),
    (lambda: LanguageModel(S6, block=S4Block, **TINY), "it has lra_ssm.layers.S4Block, not lra_ssm.layers.MambaBlock"),
    (lambda: LanguageModel(S6, block=BlockSpec(MambaBlock, norm="layer"), **TINY), "norm is 'layer', not 'rms'"),
    (lambda: LanguageModel(S6, block=BlockSpec(MambaBlock, expand=1.5), **TINY), "expand is 1.5, not a whole number"),
    (lambda: LanguageModel(S6, block=Mamba2Block, **TINY), "Mamba2ForCausalLM .*: it has lra_ssm.layers.S6, not "),
    (lambda: LanguageModel(HEADS, **TINY), "Mamba2ForCausalLM .*MambaBlock, not .*Mamba2Block"),
    (lambda: LanguageModel(HEADS, block=BlockSpec(Mamba2Block, prenorm=False), **TINY), "prenorm is False, not True"),
    (lambda: Classifier(S6, num_classes=2, **TINY), "it has lra_ssm.models.Classifier"),
])  # fmt: skip
def test_models_that_transformers_lacks_are_refused(build: Callable[[], Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        build().save_pretrained(tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()
