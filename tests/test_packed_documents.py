"""From files to losses: documents one after another in a window or stream are scored as each by itself."""

import pytest
import torch

from lra_ssm.datamodules import Corpus
from lra_ssm.layers import S4D, S6, Attention, LayerSpec, MambaBlock
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.language_modelling import unpack_tokens
from tests.datamodules.helpers import prepared
from tests.small_data import write_files

TEXTS = ["A first document.", "Another, of which one letter is changed.", "A third one, longer than the others are.",
         "End."]  # fmt: skip
PACKINGS = {
    "windows": {"order": "shuffled", "evaluation": "windows"},
    "streams": {"order": "streams", "evaluation": "streams", "eval_batch_size": 1},
}


def losses(model, folder, texts, packing, isolate):
    """−log p of the tokens of each document, in order; a line is a document, and no window ends with one."""
    write_files(folder, dict.fromkeys(("train.txt", "val.txt"), "\n".join(texts) + "\n"))
    given = {"tokenizer": "bytes", "documents": "line", "length": 44, "batch_size": 1, "isolate": isolate}
    data = prepared(Corpus(root=str(folder), source=str(folder), **given, **PACKINGS[packing]), "fit")
    found, state = [], None
    for batch in data.val_dataloader():
        tokens = unpack_tokens(batch)
        carried = {"initial_state": state, "return_last_state": True} if data.eval_carries_state else {}
        nll, state = model.negative_log_likelihood(*tokens[:2], tokens.lengths, reset=tokens.reset, **carried)
        found += nll[tokens.targets != -100].tolist()
    return torch.tensor(found).split([len(text) + 1 for text in texts])  # an end-of-text token each


@pytest.mark.parametrize("packing", PACKINGS)
@torch.no_grad()
def test_a_document_is_scored_as_by_itself_whatever_stands_before_it(packing, tmp_path):
    torch.manual_seed(0)
    layers = [LayerSpec(S6, d_state=4), LayerSpec(S4D, d_state=4), LayerSpec(Attention, n_heads=2)]
    model = LanguageModel(layers, vocab_size=257, d_model=8, n_layers=3, block=MambaBlock).eval()
    changed = [text.replace("changed", "chanted") for text in TEXTS]
    before = losses(model, tmp_path / "before", TEXTS, packing, True)
    after = losses(model, tmp_path / "after", changed, packing, True)
    assert [torch.allclose(*pair, rtol=1e-6, atol=1e-7) for pair in zip(before, after, strict=True)] == [1, 0, 1, 1]
    if packing == "streams":  # where a window's end cuts nothing off
        alone = model.score(torch.tensor([[256, *TEXTS[2].encode(), 256]]))[0]
        torch.testing.assert_close(-before[2], alone, rtol=1e-4, atol=1e-5)
    leaking = [losses(model, tmp_path / str(i), texts, packing, False)[2] for i, texts in enumerate((TEXTS, changed))]
    assert not torch.allclose(*leaking, rtol=1e-6, atol=1e-7)
