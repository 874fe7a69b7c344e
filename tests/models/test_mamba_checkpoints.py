"""Mamba's and Mamba-2's public checkpoints: read from both layouts, written for transformers, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, S6, SSD, BlockSpec, LayerSpec, Mamba2Block, MambaBlock, S4Block
from lra_ssm.models import Classifier, LanguageModel
from tests.models.public_mamba import hf_folder, logits, sizes, sizes2, state_spaces_folder

IDS = torch.randint(20, (2, 19), generator=torch.Generator().manual_seed(3))
MODELS = {
    "plain": sizes(),
    "wide": sizes(expand=3, N=5, W=2, R=7, bias=True, conv_bias=False),
    "untied": sizes(tied=False, layers=3, d=33, R=3),
    "plain 2": sizes2(),
    "wide 2": sizes2(expand=4, N=3, P=4, G=3, W=2, bias=True, conv_bias=False),
    "untied 2": sizes2(tied=False, layers=3, d=15, P=5, G=2),
}
NORMED = {"layer norm": sizes(rms=False), "layer norm 2": sizes2(rms=False)}
every_model = pytest.mark.parametrize("s", MODELS.values(), ids=MODELS)


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


@every_model
def test_the_hf_layout_is_read_and_written_unchanged(s: dict[str, Any], tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "a", s)
    model = LanguageModel.from_pretrained(tmp_path / "a")
    agree(model, logits(s, tensors, IDS))
    model.save_pretrained(tmp_path / "b", format="hf", source={"run": "x"})
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]
    ours = load_file(tmp_path / "b/model.safetensors")
    assert ours.keys() == tensors.keys() and all(torch.equal(ours[name], tensors[name]) for name in ours)
    theirs, config = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert {key: config.get(key, [0.0, torch.inf]) for key in theirs} == theirs and config["source"] == {"run": "x"}


@pytest.mark.parametrize("s", [*MODELS.values(), *NORMED.values()], ids=[*MODELS, *NORMED])
def test_the_layout_of_state_spaces_gives_the_originals_logits(s: dict[str, Any], tmp_path: Path) -> None:
    tensors = state_spaces_folder(tmp_path / "mamba", s)
    model = LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert model.vocab_size == 21 and model.head_weight.shape[0] == (24 if "R" in s else 32)  # padded
    assert (model.head is None) == s["tied"] and not model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    agree(model, logits(s, tensors, IDS))
    model.save_pretrained(tmp_path / "ours")
    agree(LanguageModel.from_pretrained(tmp_path / "ours"), logits(s, tensors, IDS))


def transformers_class(mamba2: bool) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    return transformers.Mamba2ForCausalLM if mamba2 else transformers.MambaForCausalLM


@every_model
def test_transformers_and_we_read_what_the_other_writes(s: dict[str, Any], tmp_path: Path) -> None:
    """Logits and greedy text."""
    kind = transformers_class("P" in s)
    tensors = hf_folder(tmp_path / "made", s)
    theirs = kind.from_pretrained(tmp_path / "made").eval()
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
    with torch.no_grad():
        back = kind.from_pretrained(tmp_path / "ours")(IDS).logits
    torch.testing.assert_close(back, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layer, block", [
    (LayerSpec(S6, d_state=6), MambaBlock), (LayerSpec(SSD, d_state=6, head_dim=10, chunk_size=64), Mamba2Block),
])  # fmt: skip
def test_our_own_model_through_transformers(layer: LayerSpec, block: Any, tmp_path: Path) -> None:
    """With S6's default rank of Δ, another chunk size, and a padded vocabulary."""
    kind = transformers_class(block is Mamba2Block)
    torch.manual_seed(1)
    model = LanguageModel(layer, vocab_size=21, d_model=20, n_layers=2, block=block).eval()
    model.save_pretrained(tmp_path / "hf", format="hf")
    with torch.no_grad():
        theirs = kind.from_pretrained(tmp_path / "hf")(IDS).logits
        torch.testing.assert_close(theirs, model(IDS), atol=1e-4, rtol=0)
    model.save_pretrained(tmp_path / "ours")
    for folder in ("ours", "hf"):
        agree(LanguageModel.from_pretrained(tmp_path / folder), theirs)


def test_weights_in_several_files(tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "hf", sizes())
    (tmp_path / "hf/model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, tmp_path / "hf" / file)
    index = tmp_path / "hf/model.safetensors.index.json"
    placed = {name: file for file, held in parts.items() for name in held}
    index.write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    agree(LanguageModel.from_pretrained(tmp_path / "hf"), logits(sizes(), tensors, IDS))
    for content, message in [
        *(({"weight_map": {**placed, names[0]: file}}, "which is not a .safetensors next to it")
          for file in ("../model.safetensors", "/etc/passwd", "a\\b.safetensors", "config.json")),
        ({"weight_map": {**placed, names[0]: "model-3.safetensors"}}, r"has no model-3\.safetensors"),
        ({}, "has no weight_map"),
    ]:  # fmt: skip
        index.write_text(json.dumps(content))
        with pytest.raises(InputError, match=message):
            LanguageModel.from_pretrained(tmp_path / "hf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_lower_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "hf", sizes(), dtype)
    model = LanguageModel.from_pretrained(tmp_path / "hf")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    agree(model, logits(sizes(), tensors, IDS))
    assert {p.dtype for p in LanguageModel.from_pretrained(tmp_path / "hf", dtype=dtype).parameters()} == {dtype}


HF: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "activation": (sizes(), {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' can be read"),
    "size": (sizes(), {"hidden_size": "12"}, "hidden_size is '12'; expected the type of 768"),
    "layers": (sizes(), {"num_hidden_layers": 0}, "are not all whole numbers of at least 1"),
    "model": (sizes(), {"model_type": "mamba3"}, "has no known layout: model_type 'mamba3'"),
    "epsilon": (sizes(), {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; only 1e-05 can be read"),
    "epsilon 2": (sizes2(), {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06; only 1e-05 can be read"),
    "limit": (sizes2(), {"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\]; only \[0.0, inf\] can"),
    "heads": (sizes2(), {"num_heads": 3}, "24 inner channels, 3 heads, head_dim 6 and n_groups 1 do not go together"),
    "groups": (sizes2(), {"n_groups": 3}, "24 inner channels, 4 heads, head_dim 6 and n_groups 3 do not go together"),
}


OF_LAYER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "Mamba-3": (sizes(), {"layer": "Mamba3"}, "layer is 'Mamba3'; only 'Mamba1' and 'Mamba2' can be read"),
    "unknown of S6": (sizes(), {"headdim": 4}, "ssm_cfg has a setting 'headdim'"),
    "no norm": (sizes2(), {"rmsnorm": False}, "ssm_cfg: rmsnorm is False; only True can be read"),
    "norm first": (sizes2(), {"norm_before_gate": True}, "ssm_cfg: norm_before_gate is True; only False can be read"),
    "some of the channels": (sizes2(), {"d_ssm": 12}, "ssm_cfg: d_ssm is 12; expected the type of None"),
    "unknown of SSD": (sizes2(), {"dt_rank": 4}, "ssm_cfg has a setting 'dt_rank'"),
    "heads of it": (sizes2(), {"headdim": 5}, "24 inner channels, head_dim 5 and n_groups 1 do not go together"),
}
STATE_SPACES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    **{name: (s, {"ssm_cfg": settings}, said) for name, (s, settings, said) in OF_LAYER.items()},
    "attention": (sizes(), {"attn_layer_idx": [1], "attn_cfg": {}}, r"attn_layer_idx is \[1\]; only \[\] can"),
    "MLP": (sizes(), {"d_intermediate": 24}, "d_intermediate is 24; only 0 can be read"),
    "unknown": (sizes(), {"rope": True}, "has a setting 'rope' \\(True\\) that this version does not know"),
    "no ssm_cfg": (sizes(), {"ssm_cfg": 3}, "ssm_cfg is 3; expected the type"),
    "no multiple": (sizes(), {"pad_vocab_size_multiple": 0}, "are not all whole numbers of at least 1"),
    "another head": (sizes(tied=False), {"tie_embeddings": True}, "lm_head.weight is not the embedding, though"),
}


@pytest.mark.parametrize("layout, name", [*(("hf", name) for name in HF), *(("ssm", name) for name in STATE_SPACES)])
def test_settings_that_cannot_be_read_are_one_line(layout: str, name: str, tmp_path: Path) -> None:
    write, cases = (hf_folder, HF) if layout == "hf" else (state_spaces_folder, STATE_SPACES)
    s, settings, message = cases[name]
    write(tmp_path / "mamba", s, **settings)
    with pytest.raises(InputError, match=message) as error:
        LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert str(error.value).startswith(str(tmp_path / "mamba")) and "\n" not in str(error.value)


def test_settings_that_only_change_initial_values_or_speed_are_read(tmp_path: Path) -> None:
    more = {"conv_init": 0.5, "chunk_size": 64, "A_init_range": [2, 3], "use_mem_eff_path": False}
    tensors = state_spaces_folder(tmp_path / "mamba", sizes2(), ssm_cfg=more)
    agree(LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True), logits(sizes2(), tensors, IDS))


def test_tensors_that_do_not_fit_are_named_as_in_the_file(tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "hf", sizes())
    name = "backbone.layers.0.mixer.x_proj.weight"
    for changed, message in [
        ({key: value for key, value in tensors.items() if "layers.1." not in key},
         r"backbone.layers.1.mixer.A_log is missing in the checkpoint, \(24, 4\) in the model \(and 9 more\)"),
        ({**tensors, "more": torch.zeros(3)}, r"more is \(3,\) in the checkpoint, missing in the model"),
        ({**tensors, name: torch.zeros(8, 24)}, rf"{name} is \(8, 24\) in the checkpoint, \(9, 24\) in the model"),
        ({key: value.to(torch.int32) if key.endswith(".D") else value for key, value in tensors.items()},
         "layer.D is of torch.int32, not torch.float32"),
    ]:  # fmt: skip
        save_file(changed, tmp_path / "hf/model.safetensors")
        with pytest.raises(InputError, match=message):
            LanguageModel.from_pretrained(tmp_path / "hf")


@pytest.mark.parametrize("layer, block, reason", [
    (LayerSpec(B2S6, num_blocks=2, d_state=4), MambaBlock, "it has lra_ssm.layers.B2S6, not lra_ssm.layers.S6"),
    (LayerSpec(S6, parameterization="softplus"), MambaBlock, "parameterization is 'softplus', not 'exp'"),
    (S6, S4Block, "it has lra_ssm.layers.S4Block, not lra_ssm.layers.MambaBlock"),
    (S6, BlockSpec(MambaBlock, norm="layer"), "norm is 'layer', not 'rms'"),
    (S6, BlockSpec(MambaBlock, expand=1.5), "expand is 1.5, not a whole number"),
    (S6, Mamba2Block, "Mamba2ForCausalLM .*: it has lra_ssm.layers.S6, not lra_ssm.layers.SSD"),
    (LayerSpec(SSD, head_dim=4), MambaBlock, "Mamba2ForCausalLM .*MambaBlock, not .*Mamba2Block"),
    (LayerSpec(SSD, head_dim=4), BlockSpec(Mamba2Block, prenorm=False), "prenorm is False, not True"),
])  # fmt: skip
def test_models_that_transformers_does_not_have_are_refused(
    layer: Any, block: Any, reason: str, tmp_path: Path
) -> None:
    model = LanguageModel(layer, vocab_size=9, d_model=8, n_layers=1, block=block)
    with pytest.raises(InputError, match=reason):
        model.save_pretrained(tmp_path / "hf", format="hf")
    assert not (tmp_path / "hf").exists()


def test_only_language_models_have_the_hf_layout(tmp_path: Path) -> None:
    classifier = Classifier(LayerSpec(S6), num_classes=2, vocab_size=9, d_model=8, n_layers=1, block=MambaBlock)
    with pytest.raises(InputError, match="it has lra_ssm.models.Classifier"):
        classifier.save_pretrained(tmp_path / "hf", format="hf")
