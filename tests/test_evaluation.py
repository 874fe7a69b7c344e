"""lm_eval's tasks on a model of ours: local tasks, their scores against the model's own log-likelihoods."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason='lm_eval is not installed: pip install "lra-ssm[eval]"')

from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer
from lra_ssm.errors import InputError
from lra_ssm.evaluation import HarnessModel
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel

DOCUMENTS = [
    {"text": "ab cd ab", "question": "cd", "choices": [" ab", " cd ab ab", "é"], "answer": 1},
    {"text": "b" * 40, "question": "ab ab", "choices": [" ab", " b", "c"], "answer": 0},
    {"text": "", "question": "", "choices": ["a", "bcd", "ba"], "answer": 2},
    {"text": "dcb a dcb", "question": "bb", "choices": ["b", "c", " d"], "answer": 0},
]
COMMON = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}", "num_fewshot": 0}
TASKS: dict[str, dict[str, Any]] = {
    "choose": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
               "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    "read": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
             "metric_list": [{"metric": name} for name in ("word_perplexity", "bits_per_byte")]},
    "write": {"output_type": "generate_until", "doc_to_target": "x",
              "generation_kwargs": {"until": ["b"], "max_gen_toks": 9}, "metric_list": [{"metric": "exact_match"}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes that likes a, b and c."""
    torch.manual_seed(0)
    model = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=257, d_model=8, n_layers=2)
    with torch.no_grad():
        model.backbone.embedding.weight.normal_(std=0.5)
        model.backbone.embedding.weight[97:100] *= 3
    folder = tmp_path_factory.mktemp("evaluated") / "saved"
    model.save_pretrained(folder, tokenizer=ByteTokenizer())
    return folder


def evaluate(model: HarnessModel, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    data = {"data_files": {"test": str(tmp_path / "documents.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    (tmp_path / f"{task}.yaml").write_text(json.dumps({"task": task, "dataset_kwargs": data, **COMMON, **TASKS[task]}))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=[task], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    assert found is not None
    return found


def log_likelihood(model: LanguageModel, before: list[int], tokens: bytes) -> float:
    scores = model.score(torch.tensor([[*before, *tokens]]))
    return float(scores[0, len(before) - 1 :].double().sum())


def test_choices_are_those_of_the_models_own_scores(saved: Path, tmp_path: Path, monkeypatch) -> None:
    model = LanguageModel.from_pretrained(saved)
    found = evaluate(HarnessModel(saved, batch_size=3), "choose", tmp_path, monkeypatch)
    right = 0
    for sample in sorted(found["samples"]["choose"], key=lambda each: each["doc_id"]):
        document = DOCUMENTS[sample["doc_id"]]
        before = list(document["question"].encode()) or [256]
        own = [log_likelihood(model, before, choice.encode()) for choice in document["choices"]]
        theirs = [float(answer[0][0]) for answer in sample["resps"]]
        assert theirs == pytest.approx(own, rel=1e-5, abs=1e-6)  # log p near 0 has the logits' rounding in float32
        right += own.index(max(own)) == document["answer"]
    assert found["results"]["choose"]["acc,none"] == right / len(DOCUMENTS)


def test_perplexity_is_that_of_whole_texts(saved: Path, tmp_path: Path, monkeypatch) -> None:
    """A text longer than what is read at a time has all of its context; each begins with the end of another."""
    model = LanguageModel.from_pretrained(saved)
    monkeypatch.setattr("lra_ssm.evaluation._PART", 16)
    found = evaluate(HarnessModel(saved, batch_size=2), "read", tmp_path, monkeypatch)["results"]["read"]
    total = sum(log_likelihood(model, [256], d["text"].encode()) for d in DOCUMENTS if d["text"])
    count = sum(len(d["text"].encode()) for d in DOCUMENTS)
    assert found["bits_per_byte,none"] == pytest.approx(-total / count / math.log(2), rel=1e-5)


def test_whether_a_continuation_is_greedy_and_what_stands_before_a_context(saved: Path) -> None:
    model, harness = LanguageModel.from_pretrained(saved), HarnessModel(saved)
    context, greedy = [97, 98], list[int]()
    for _ in range(4):
        greedy.append(int(model(torch.tensor([context + greedy]))[0, -1, :257].argmax()))
    other = [*greedy[:3], (greedy[3] + 1) % 256]
    answers = harness._loglikelihood_tokens([(None, context, greedy), (None, context, other), (None, context, [])])
    assert [is_greedy for _, is_greedy in answers] == [True, False, True] and answers[2][0] == 0.0
    for begins, before in ((False, [97]), (True, [256, 97])):
        harness = HarnessModel(saved, add_bos_token=begins)
        ((found, _),) = harness._loglikelihood_tokens([(None, [97], [98, 99])])
        assert found == pytest.approx(log_likelihood(model, before, b"bc"), rel=1e-5)


def test_texts_are_generated_up_to_a_stop(saved: Path, tmp_path: Path, monkeypatch) -> None:
    model = LanguageModel.from_pretrained(saved)
    found = evaluate(HarnessModel(saved, batch_size=3), "write", tmp_path, monkeypatch)
    assert len(found["samples"]["write"]) == len(DOCUMENTS)
    stopped = 0
    for sample in found["samples"]["write"]:
        before = list(DOCUMENTS[sample["doc_id"]]["question"].encode()) or [256]
        new = model.generate(torch.tensor([before]), 9, stop=(256,))[0, len(before) :].tolist()
        whole = ByteTokenizer().decode(new[: new.index(256)] if 256 in new else new)
        assert sample["resps"][0][0] == whole.split("b")[0]
        stopped += "b" in whole[1:]
    assert stopped
    with pytest.raises(InputError, match="the task generates with num_beams, which this model does not know"):
        HarnessModel(saved)._generated(["a"], {"num_beams": 4})


def test_what_cannot_be_evaluated(saved: Path, tmp_path: Path, monkeypatch) -> None:
    from lm_eval.api.registry import get_model

    made = get_model("lra_ssm").create_from_arg_string(f"pretrained={saved}", {"batch_size": 2, "device": "cpu"})
    assert isinstance(made, HarnessModel) and made.batch_size == 2 and made.device == torch.device("cpu")
    model = LanguageModel.from_pretrained(saved)
    model.save_pretrained(tmp_path / "many", tokenizer=CharacterTokenizer([chr(i) for i in range(100, 400)]))
    model.save_pretrained(tmp_path / "without")
    assert HarnessModel(tmp_path / "without", tokenizer=saved).eot_token_id == 256
    for name, settings, message in (
        (tmp_path / "many", {}, "the tokenizer has 302 tokens, the model 257"),
        (tmp_path / "without", {}, r"has no vocabulary\.json or tokenizer\.json: give tokenizer, such as"),
        (saved, {"batch_size": 0}, "batch_size is 0; it must be a number of at least 1"),
        (saved, {"dtype": "int8"}, "dtype is 'int8'; it must be float32 or bfloat16"),
    ):
        with pytest.raises(InputError, match=message):
            HarnessModel(name, **settings)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "lra_ssm.evaluation")
    with pytest.raises(InputError, match=r'lm_eval cannot be imported .*pip install "lra-ssm\[eval\]"'):
        import lra_ssm.evaluation  # noqa: F401
