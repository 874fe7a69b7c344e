"""Mamba's and Mamba-2's public checkpoints: read from both layouts, written for transformers; what cannot be read or
written."""

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
    """All at once, and a prefix at once with steps behind it."""
    with torch.no_grad():
        got = model(IDS)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected.float(), atol=1e-4, rtol=0)
        _, state = model(IDS[:, :7], return_last_state=True)
        for t in range(7, IDS.shape[1]):
            out, state = model.step(IDS[:, t], state)
            torch.testing.assert_close(out, expected[:, t].float(), atol=1e-4, rtol=0)


@every_model
def test_the_hf_layout_is_read_and_written_as_it_was(s: dict[str, Any], tmp_path: Path) -> None:
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
def test_the_layout_of_state_spaces_gives_the_logits_of_the_original(s: dict[str, Any], tmp_path: Path) -> None:
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
    """As it is initialized, its Δ of S6's own rank or its scan cut otherwise, its vocabulary padded."""
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


def test_weights_in_parts(tmp_path: Path) -> None:
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
    for file in ("../model.safetensors", "/etc/passwd", "a\\b.safetensors", "config.json"):
        index.write_text(json.dumps({"weight_map": {**placed, names[0]: file}}))
        with pytest.raises(InputError, match="which is not a .safetensors next to it"):
            LanguageModel.from_pretrained(tmp_path / "hf")
    index.write_text(json.dumps({"weight_map": {**placed, names[0]: "model-3.safetensors"}}))
    with pytest.raises(InputError, match=r"has no model-3\.safetensors"):
        LanguageModel.from_pretrained(tmp_path / "hf")
    index.write_text(json.dumps({"weight_map": placed}))
    first = next(iter(parts))
    save_file({name: tensors[name] for name in parts[first][1:]}, tmp_path / "hf" / first)
    with pytest.raises(InputError, match=f"{parts[first][0]} is missing in the checkpoint"):
        LanguageModel.from_pretrained(tmp_path / "hf")
    index.write_text("{}")
    with pytest.raises(InputError, match="has no weight_map"):
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


@pytest.mark.parametrize("name", HF)
def test_settings_of_hf_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    s, settings, said = HF[name]
    hf_folder(tmp_path / "hf", s, **settings)
    with pytest.raises(InputError, match=said):
        LanguageModel.from_pretrained(tmp_path / "hf")


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


@pytest.mark.parametrize("name", STATE_SPACES)
def test_settings_of_state_spaces_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    s, settings, said = STATE_SPACES[name]
    state_spaces_folder(tmp_path / "mamba", s, **settings)
    with pytest.raises(InputError, match=said) as error:
        LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert str(error.value).startswith(str(tmp_path / "mamba")) and "\n" not in str(error.value)


def test_what_only_changes_how_weights_are_drawn_or_run_is_read(tmp_path: Path) -> None:
    more = {"conv_init": 0.5, "chunk_size": 64, "A_init_range": [2, 3], "use_mem_eff_path": False}
    tensors = state_spaces_folder(tmp_path / "mamba", sizes2(), ssm_cfg=more)
    agree(LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True), logits(sizes2(), tensors, IDS))


def test_tensors_that_do_not_fit_are_named_as_the_file_names_them(tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "hf", sizes())
    file, name = tmp_path / "hf/model.safetensors", "backbone.layers.0.mixer.x_proj.weight"

    def said(changed: dict[str, torch.Tensor]) -> str:
        save_file(changed, file)
        with pytest.raises(InputError) as error:
            LanguageModel.from_pretrained(tmp_path / "hf")
        return str(error.value)

    lacking = {key: value for key, value in tensors.items() if "layers.1." not in key}
    assert "backbone.layers.1.mixer.A_log is missing in the checkpoint, (24, 4) in the model (and 9 more)" in said(
        lacking
    )
    assert "more is (3,) in the checkpoint, missing in the model" in said({**tensors, "more": torch.zeros(3)})
    assert f"{name} is (8, 24) in the checkpoint, (9, 24) in the model" in said({**tensors, name: torch.zeros(8, 24)})
    assert f"{name} is of torch.int8" not in said({**tensors, name: torch.zeros(3)})
    whole = {key: value.to(torch.int32) if key.endswith(".D") else value for key, value in tensors.items()}
    assert "layer.D is of torch.int32, not torch.float32" in said(whole)
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or not a safetensors file"):
        LanguageModel.from_pretrained(tmp_path / "hf")


def test_models_that_transformers_has_not_are_refused(tmp_path: Path) -> None:
    def said(layer: object = S6, block: object = MambaBlock, **settings: object) -> str:
        model = LanguageModel(layer, vocab_size=9, d_model=8, n_layers=1, block=block, **settings)
        with pytest.raises(InputError) as error:
            model.save_pretrained(tmp_path / "hf", format="hf")
        assert not (tmp_path / "hf").exists()
        return str(error.value)

    ours = "it has lra_ssm.layers."
    assert said(LayerSpec(B2S6, num_blocks=2, d_state=4)).endswith(f"{ours}B2S6, not lra_ssm.layers.S6")
    assert said(LayerSpec(S6, parameterization="softplus")).endswith("parameterization is 'softplus', not 'exp'")
    assert said(block=S4Block).endswith(f"{ours}S4Block, not lra_ssm.layers.MambaBlock")
    assert said(block=BlockSpec(MambaBlock, norm="layer")).endswith("norm is 'layer', not 'rms'")
    assert said(block=BlockSpec(MambaBlock, glu=True)).endswith("glu is True, not False")
    assert said(block=BlockSpec(MambaBlock, expand=1.5)).endswith("expand is 1.5, not a whole number")
    ssd = LayerSpec(SSD, head_dim=4)
    for layer, block, refused in (
        (S6, Mamba2Block, f"{ours}S6, not lra_ssm.layers.SSD"),
        (ssd, MambaBlock, f"{ours}MambaBlock, not lra_ssm.layers.Mamba2Block"),
        (ssd, BlockSpec(Mamba2Block, prenorm=False), "prenorm is False, not True"),
        (ssd, BlockSpec(Mamba2Block, expand=1.5), "expand is 1.5, not a whole number"),
    ):
        assert said(layer, block).endswith(f"transformers' Mamba2ForCausalLM cannot represent such a model: {refused}")
    classifier = Classifier(LayerSpec(S6), num_classes=2, vocab_size=9, d_model=8, n_layers=1, block=MambaBlock)
    with pytest.raises(InputError, match="it has lra_ssm.models.Classifier"):
        classifier.save_pretrained(tmp_path / "hf", format="hf")
