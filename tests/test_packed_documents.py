"""Documents one after another in a window or stream: none of them changes how the next one is scored."""

import pytest
import torch

from lra_ssm.datamodules import Corpus
from lra_ssm.layers import B2S6, S4D, S6, SSD, Attention, LayerSpec, Mamba2Block, MambaBlock
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.language_modelling import unpack_tokens

TEXTS = ["A first document.", "Another, of which one letter is changed.", "A third one, longer than the others are.",
         "End."]  # fmt: skip
PACKINGS = {
    "windows": {"order": "shuffled", "evaluation": "windows"},
    "streams": {"order": "streams", "evaluation": "streams", "eval_batch_size": 1},
}


def corpus(folder, texts, packing, isolate):
    """Documents of a line each, bytes as tokens, in windows that no document fills."""
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"{split}.txt").write_text("\n".join(texts) + "\n")
    data = Corpus(
        root=str(folder), source=str(folder), tokenizer="bytes", documents="line", length=44, batch_size=1,
        isolate=isolate, **PACKINGS[packing],
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    return data


def losses(model, data):
    """−log p of the tokens of each document of the validation split, in order."""
    losses, state = [], None
    for batch in data.val_dataloader():
        tokens = unpack_tokens(batch)
        carried = {"initial_state": state, "return_last_state": True} if data.eval_carries_state else {}
        nll, state = model.negative_log_likelihood(*tokens[:2], tokens.lengths, reset=tokens.reset, **carried)
        losses += nll[tokens.targets != -100].tolist()
    ends = [sum(len(text) + 1 for text in TEXTS[: n + 1]) for n in range(len(TEXTS))]  # an end-of-text token each
    assert len(losses) == ends[-1]
    return [torch.tensor(losses[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    "layer, block", [(LayerSpec(S6, d_state=4), MambaBlock), (LayerSpec(S4D, d_state=4), MambaBlock),
                     (LayerSpec(B2S6, num_blocks=2, d_state=4), MambaBlock),
                     ([LayerSpec(S6, d_state=4), LayerSpec(Attention, n_heads=2)], MambaBlock),
                     ([LayerSpec(SSD, d_state=4, head_dim=4), LayerSpec(S6, d_state=4)], Mamba2Block)],
)  # fmt: skip
@torch.no_grad()
def test_a_changed_document_changes_nothing_in_the_next(layer, block, packing, tmp_path):
    torch.manual_seed(0)
    model = LanguageModel(layer, vocab_size=257, d_model=8, n_layers=2, block=block).eval()
    both = (TEXTS, [text.replace("changed", "chanted") for text in TEXTS])
    before, after, *leaking = (
        losses(model, corpus(tmp_path / f"{isolate}{number}", texts, packing, isolate))
        for isolate in (True, False)
        for number, texts in enumerate(both)
    )
    assert not torch.equal(before[1], after[1])
    for n in (0, 2, 3):
        torch.testing.assert_close(before[n], after[n], rtol=1e-6, atol=1e-7)
    single = model.score(torch.tensor([[256, *TEXTS[2].encode(), 256]]))[0]
    if packing == "streams":  # where a window's end cuts nothing off
        torch.testing.assert_close(-before[2], single, rtol=1e-4, atol=1e-5)
    # Not isolated, the next document is scored otherwise.
    assert not torch.allclose(*(each[2] for each in leaking), rtol=1e-6, atol=1e-7)
