"""Mamba's public checkpoints: read from both layouts, written for transformers; what cannot be read or written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, S6, BlockSpec, LayerSpec, MambaBlock, S4Block
from lra_ssm.models import Classifier, LanguageModel
from tests.models.public_mamba import hf_folder, logits, sizes, state_spaces_folder

IDS = torch.randint(20, (2, 19), generator=torch.Generator().manual_seed(3))
ODD = {
    "plain": {},
    "wide": {"expand": 3, "N": 5, "W": 2, "R": 7, "bias": True, "conv_bias": False},
    "untied": {"tied": False, "layers": 3, "d": 33, "R": 3},
}


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


@pytest.mark.parametrize("odd", ODD)
def test_the_hf_layout_gives_the_logits_of_mamba(odd: str, tmp_path: Path) -> None:
    s = sizes(**ODD[odd])
    tensors = hf_folder(tmp_path / "hf", s)
    agree(LanguageModel.from_pretrained(tmp_path / "hf"), logits(s, tensors, IDS))


@pytest.mark.parametrize("odd", [*ODD, "layer norm"])
def test_the_layout_of_state_spaces_gives_the_logits_of_mamba(odd: str, tmp_path: Path) -> None:
    s = sizes(rms=False) if odd == "layer norm" else sizes(**ODD[odd])
    tensors = state_spaces_folder(tmp_path / "mamba", s)
    model = LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert model.vocab_size == 21 and model.head_weight.shape[0] == 24  # padded
    assert (model.head is None) == s["tied"] and not model.training
    agree(model, logits(s, tensors, IDS))
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("odd", ODD)
def test_what_is_saved_for_transformers_is_as_it_was(odd: str, tmp_path: Path) -> None:
    tensors = hf_folder(tmp_path / "a", sizes(**ODD[odd]))
    LanguageModel.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b", format="hf", source={"run": "x"})
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]
    ours = load_file(tmp_path / "b/model.safetensors")
    assert ours.keys() == tensors.keys() and all(torch.equal(ours[name], tensors[name]) for name in ours)
    theirs, config = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert {key: config[key] for key in theirs} == theirs and config["source"] == {"run": "x"}


@pytest.mark.parametrize("odd", ODD)
def test_transformers_and_we_read_what_the_other_writes(odd: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    s = sizes(**ODD[odd])
    config = transformers.MambaConfig(
        vocab_size=21, hidden_size=s["d"], num_hidden_layers=s["layers"], state_size=s["N"], conv_kernel=s["W"],
        expand=s["expand"], time_step_rank=s["R"], use_bias=s["bias"], use_conv_bias=s["conv_bias"],
        tie_word_embeddings=s["tied"],
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.MambaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = theirs(IDS).logits
    ours = LanguageModel.from_pretrained(tmp_path / "theirs")
    agree(ours, expected)
    torch.testing.assert_close(logits(s, theirs.state_dict(), IDS).float(), expected, atol=1e-4, rtol=0)
    ours.save_pretrained(tmp_path / "ours", format="hf")
    back = transformers.MambaForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(back(IDS).logits, expected, atol=1e-4, rtol=0)


def test_our_own_model_through_transformers(tmp_path: Path) -> None:
    """A model of ours, its Δ of S6's own rank and its vocabulary padded."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    torch.manual_seed(1)
    model = LanguageModel(LayerSpec(S6, d_state=6), vocab_size=21, d_model=20, n_layers=2).eval()
    model.save_pretrained(tmp_path / "ours", format="hf")
    theirs = transformers.MambaForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, model(IDS), atol=1e-4, rtol=0)
    agree(LanguageModel.from_pretrained(tmp_path / "ours"), theirs(IDS).logits.detach())


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
        with pytest.raises(InputError, match="which is no .safetensors beside it"):
            LanguageModel.from_pretrained(tmp_path / "hf")
    index.write_text(json.dumps({"weight_map": {**placed, names[0]: "model-3.safetensors"}}))
    with pytest.raises(InputError, match=r"model-3\.safetensors is missing, which .*index\.json names"):
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


HF = {
    "hidden_act": ("gelu", "hidden_act is 'gelu'; 'silu' alone can be read"),
    "layer_norm_epsilon": (1e-6, "layer_norm_epsilon is 1e-06; 1e-05 alone can be read"),
    "hidden_size": ("12", "hidden_size is '12', not of the kind of 768"),
    "num_hidden_layers": (0, "are not all whole numbers of at least 1"),
    "model_type": ("mamba3", "its config.json is of no layout that can be read: model_type 'mamba3'"),
}


@pytest.mark.parametrize("name", HF)
def test_settings_of_hf_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    value, said = HF[name]
    hf_folder(tmp_path / "hf", sizes(), **{name: value})
    with pytest.raises(InputError, match=said):
        LanguageModel.from_pretrained(tmp_path / "hf")


STATE_SPACES = {
    "Mamba-3": (
        {"ssm_cfg": {"layer": "Mamba3"}},
        "ssm_cfg: layer is 'Mamba3'; 'Mamba1' and 'Mamba2' alone can be read",
    ),
    "attention": ({"attn_layer_idx": [1], "attn_cfg": {"num_heads": 2}}, r"attn_layer_idx is \[1\]; \[\] alone"),
    "MLP": ({"d_intermediate": 24}, "d_intermediate is 24; 0 alone can be read"),
    "unknown": ({"rope": True}, "has a setting 'rope' \\(True\\) that this version does not know"),
    "unknown of S6": ({"ssm_cfg": {"headdim": 4}}, "ssm_cfg has a setting 'headdim'"),
    "no ssm_cfg": ({"ssm_cfg": 3}, "ssm_cfg is 3, not of the kind"),
    "no multiple": ({"pad_vocab_size_multiple": 0}, "are not all whole numbers of at least 1"),
    "another head": ({"tie_embeddings": True}, "lm_head.weight is not the embedding, though"),
}


@pytest.mark.parametrize("name", STATE_SPACES)
def test_settings_of_state_spaces_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    settings, said = STATE_SPACES[name]
    state_spaces_folder(tmp_path / "mamba", sizes(tied=name != "another head"), **settings)
    with pytest.raises(InputError, match=said) as error:
        LanguageModel.from_pretrained(tmp_path / "mamba", allow_pickle=True)
    assert str(error.value).startswith(str(tmp_path / "mamba")) and "\n" not in str(error.value)


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
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or no safetensors file"):
        LanguageModel.from_pretrained(tmp_path / "hf")


def test_models_that_transformers_has_not_are_refused(tmp_path: Path) -> None:
    def said(layer: object = S6, block: object = MambaBlock, **settings: object) -> str:
        model = LanguageModel(layer, vocab_size=9, d_model=8, n_layers=1, block=block, **settings)
        with pytest.raises(InputError) as error:
            model.save_pretrained(tmp_path / "hf", format="hf")
        assert not (tmp_path / "hf").exists()
        return str(error.value)

    assert said(LayerSpec(B2S6, num_blocks=2, d_state=4)).endswith("it has lra_ssm.layers.B2S6, not lra_ssm.layers.S6")
    assert said(LayerSpec(S6, form="paper")).endswith("form is 'paper', not 'mamba'")
    assert said(LayerSpec(S6, parameterization="softplus")).endswith("parameterization is 'softplus', not 'exp'")
    assert said(block=S4Block).endswith("it has lra_ssm.layers.S4Block, not lra_ssm.layers.MambaBlock")
    assert said(block=BlockSpec(MambaBlock, norm="layer")).endswith("norm is 'layer', not 'rms'")
    assert said(block=BlockSpec(MambaBlock, glu=True)).endswith("glu is True, not False")
    assert said(block=BlockSpec(MambaBlock, expand=1.5)).endswith("expand is 1.5, no whole number")
    classifier = Classifier(LayerSpec(S6), num_classes=2, vocab_size=9, d_model=8, n_layers=1, block=MambaBlock)
    with pytest.raises(InputError, match="it has lra_ssm.models.Classifier"):
        classifier.save_pretrained(tmp_path / "hf", format="hf")
