"""`lra-ssm bench` as its users start it."""

import json
import os
import signal
import sys
import time
from functools import partial
from io import BytesIO
from statistics import median
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml

from lra_ssm.bench import language, language_models, operators, plot, report
from lra_ssm.bench.compare import Contender, Errors, Row, Settings, compare
from lra_ssm.bench.growth import slope
from lra_ssm.bench.measure import Effort, Timing
from lra_ssm.bench.memory import Peak
from lra_ssm.bench.scan import MAMBA, S6, ScanTruth, ScanWork
from lra_ssm.bench.work import BOTH, FORWARD, Shape
from lra_ssm.cli import main
from tests.runner import everything_below, succeed

CPU = torch.device("cpu")
SUITES = ("operators", "layers", "steps", "data", "tokens", "language")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    command = ["bench", "all", "--quick", "--backends=eager", "--repeats=2", "--threads=1", "--out=results/here"]
    return folder, succeed(command, folder).out


def test_a_run_leaves_a_json_and_a_picture_of_each_suite_and_nothing_else(measured):
    folder, _ = measured
    files = [f"results/here/{suite}.{kind}" for suite in SUITES for kind in ("json", "png")]
    assert everything_below(folder) == sorted(["results", "results/here", *files])
    for suite in SUITES:
        assert (folder / f"results/here/{suite}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("suite", SUITES)
def test_the_json_has_the_machine_and_every_sample(measured, suite):
    data = json.loads((measured[0] / f"results/here/{suite}.json").read_text())
    machine = data["machine"]
    assert machine["versions"]["torch"] == torch.__version__ and machine["threads"] == 1
    assert machine["command"][:2] == ["lra-ssm", "bench"] and machine["time"] and "host" not in machine["hardware"]
    assert data["rows"] and 0 <= (data[report.WAITING] or 0) < 1
    for row in data["rows"]:
        timing = row["timing"]
        if suite == "language" and "not installed" in (row["note"] or ""):  # another's code
            assert timing is None
            continue
        assert row["note"] is None and timing["number_of_samples"] == len(timing["samples_ms"]) >= 1
        assert timing["median_ms"] > 0 and row["ratio"]["median"] > 0
        if suite not in ("data", "tokens", "language"):
            assert row["memory"]["megabytes"] >= 0 and 0 <= row["errors"]["value"] < 1e-4


def test_the_operators_are_all_there(measured):
    data = json.loads((measured[0] / "results/here/operators.json").read_text())
    found = {(row["comparison"], row["contender"]) for row in data["rows"]}
    against = "S6 against other ways to write it"
    for by in ("eager", "eager, (B, L, D)", "loop over time", "parallel scan", "cumulative sums of logs"):
        assert (against, by) in found
    assert len({c for name, c in found if name == "cases on eager"}) == 8
    assert ("S4D", "kernel alone") in found and ("growth with length", "S6, loop over time") in found
    assert set(data["ceilings"]) == {"copy, GB/s", "multiply-add, GFLOP/s", "exponential, G/s"}


def test_the_text_says_what_it_measured(measured):
    out = measured[1]
    assert f"torch {torch.__version__}" in out.splitlines()[0] and "threads used: 1" in out.splitlines()[0]
    for text in (
        "== operators ==",
        "== data ==",
        "tokens/s",
        "one step of b2s6, ListOps, by part",
        "share of a training step",
    ):
        assert text in out


def test_the_profile_finds_the_parts_of_a_step(measured):
    data = json.loads((measured[0] / "results/here/steps.json").read_text())
    assert list(data["profiles"]) == [
        f"{name}, {task}{bias}"
        for name in ("b2s6", "s6", "s4d")
        for task in ("ListOps", "sCIFAR")
        for bias in (("", " without bias") if name == "b2s6" else ("",))
    ]
    selective, s4d = data["profiles"]["s6, ListOps"], data["profiles"]["s4d, sCIFAR"]
    assert {"scan, forward", "scan, backward", "linear layers", "optimizer", "norm, backward"} <= selective.keys()
    assert {
        "S4D kernel, forward",
        "S4D kernel, backward",
        "convolution, forward",
        "convolution, backward",
    } <= s4d.keys()
    for parts in (selective, s4d):
        assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    # of a single step, in which other processes may take the core at any line
    assert median(parts["other"]["share"] for parts in data["profiles"].values()) < 0.5
    rows = {row["contender"]: row for row in data["rows"]}
    assert rows["b2s6, ListOps"]["extra"]["times the step without bias"] > 0


def test_loaders_give_the_same_batches(measured):
    data = json.loads((measured[0] / "results/here/data.json").read_text())
    assert all(row["extra"]["same batches as with 0 workers"] == "True" for row in data["rows"])
    assert len(data["shares of steps"]) == 2 * 8  # tasks, with and without workers


def test_language_models_stand_beside_their_matrix_products(measured):
    data = json.loads((measured[0] / "results/here/language.json").read_text())
    ratios = {row["mode"]: row["ratio"] for row in data["rows"] if row["contender"] == "ours"}
    assert list(ratios) == [BOTH, "step", "prompt", "8 tokens, batch 1", "8 tokens, batch 8"]
    assert {ratio["to"] for ratio in ratios.values()} == {"matrix products alone"}
    loss = {row["contender"]: row for row in data["rows"] if row["comparison"].endswith("the head's loss")}
    assert list(loss) == ["F.cross_entropy of all logits", "linear_cross_entropy"]
    assert all(row["errors"]["value"] < 1e-5 and row["memory"]["megabytes"] >= 0 for row in loss.values())
    assert "cross-entropy and its head, forward" in data["profiles"]["small, step"]


def test_other_peoples_models_that_are_not_there_are_a_line(monkeypatch, tmp_path):
    monkeypatch.setattr(language_models, "find_spec", lambda name: None)
    rows = language.run(Settings(CPU, ["eager"], 1, Effort(1, 0.1, 1, 0.0), quick=True))["rows"]
    notes = {row.contender: row.note for row in rows if row.timing is None}
    assert notes == {
        "mamba.py": "not measured: mambapy is not installed",
        "mamba-ssm": "not measured: mamba_ssm is not installed",
        "transformers": "not measured: transformers is not installed",
        "transformers, use_mambapy": "not measured: mambapy, transformers are not installed",
    }


def test_tokens_are_the_same_whichever_way_they_are_made(measured):
    data = json.loads((measured[0] / "results/here/tokens.json").read_text())
    rows = {row["contender"]: row["extra"] for row in data["rows"] if row["mode"] == "texts to tokens"}
    assert list(rows) == ["encode", "prepare", "datasets.map"] and rows["encode"]["prepare's tokens"] == "True"
    assert [row["contender"] for row in data["rows"] if row["mode"] == "a batch"] == ["step", "shuffled", "streams"]


@pytest.mark.parametrize("tokenizer", ["words", "bytes"])
def test_tokens_of_a_file_by_tokenizers_that_are_no_librarys(tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one two\\nthree"}\n' * 40)
    succeed(["bench", "tokens", "--quick", f"--tokenizer={tokenizer}", "--source=a.jsonl", "--threads=2"], tmp_path)
    data = json.loads((tmp_path / "bench-results/tokens.json").read_text())
    assert [row["contender"] for row in data["rows"]][:2] == ["encode", "prepare"]
    assert data["rows"][0]["extra"]["prepare's tokens"] == "True"
    assert data["rows"][0]["extra"]["bytes per token"] == {"words": 13 / 5, "bytes": 13 / 14}[tokenizer]


def test_help(capsys):
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "usage: lra-ssm bench" in out and "examples:" in out and "--backends" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["operatros"], "invalid choice: 'operatros'"),
        (["--lengths=16,none"], "--lengths: 'none' is no whole number of at least 1"),
        (["--batch=0"], "argument --batch: '0' is no whole number of at least 1"),
        (["--channels=12"], "--channels 12: must be a multiple of 8"),
        (["--backends=cuda"], "--backends: unknown backend 'cuda'; there are "),
        (["--lenghts=16"], "unrecognized arguments: --lenghts=16"),
        (["steps", "--config=missing.yaml"], "--config missing.yaml: no such file"),
        (["steps", "--config=other.yaml"], "--config other.yaml: no 'model' in it"),
        (["steps", "--config=broken.yaml"], "--config broken.yaml: it is no YAML of a config"),
        (["steps", "--config=features.yaml"], "--config features.yaml: the network has neither vocab_size nor d_input"),
        (["tokens", "--quick", "--source=no.jsonl"], "--source no.jsonl: cannot be read (No such file or directory)"),
        (["tokens", "--quick", "--source=taken"], "--source taken: no text in it"),
        (["tokens", "--quick", "--tokenizer=bpe:0"], "tokenizer 'bpe:0': bpe:N has 257"),
        (["language", "--quick", "--sizes=small,large"], "--sizes: unknown size 'large'; there are small, 130m"),
        (["--quick", "--out=taken/results"], "--out taken/results cannot be made: Not a directory"),
        pytest.param(
            ["--device=cuda"],
            "torch sees no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="GPU"),
        ),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "broken.yaml").write_text("[1, {\n")
    data = {"class_path": "lra_ssm.datamodules.Text", "init_args": {"batch_size": 1, "max_length": 8}}
    network = {"class_path": "lra_ssm.models.Classifier", "init_args": {}}
    features = {"model": {"init_args": {"network": network}}, "data": data}
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(features))
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("lra-ssm: error: ") and err.count("\n") == 1
    assert not (tmp_path / "bench-results").exists()


# --- what a comparison and a report do with what cannot be measured ---


def test_a_contender_that_cannot_run_stays_with_its_reason():
    shape = Shape(1, 8, 2, 16)
    settings = Settings(CPU, ["eager"], 1, Effort(repeats=1, budget=0.1, least=1, sample=0))
    truth = ScanTruth(S6, shape, CPU)
    works = {by: ScanWork(S6, shape, by, CPU) for by in ("eager", MAMBA)}
    huge = ScanWork(S6, Shape(10**6, 10**4, 16, 10**6), "loop over time", CPU)
    contenders = [Contender(by, work, truth) for by, work in works.items()] + [Contender("huge", huge, truth)]
    rows = {(row.contender, row.mode): row for row in compare("here", {}, contenders, settings)}
    assert rows["eager", BOTH].timing is not None and rows["eager", BOTH].note is None
    assert "mamba_ssm" in rows[MAMBA, FORWARD].note and rows[MAMBA, FORWARD].timing is None
    assert rows["huge", FORWARD].note.startswith("not tried: may need")
    assert "not tried" in report.rows_text(list(rows.values()))


def row(comparison, contender, mode, seconds, megabytes=1.0, **shape):
    size = {"batch": 4, "channels": 128, "states": 16, **shape}
    timing = Timing(dict(enumerate(seconds)), 1)
    return Row(
        comparison, contender, mode, size, timing, "cpu", (1.0, 0.0), Peak(megabytes, ""), Errors(1e-7, 1e-6, "A", "")
    )


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("measured_before", [0, 2])
def test_cut_off_it_leaves_what_was_measured_and_says_so(signum, code, measured_before, tmp_path, monkeypatch, capsys):
    def run(settings):
        for i in range(measured_before):
            settings.done([row(f"comparison {i}", "S6, cpu", BOTH, [1.0], length=64)])
        os.kill(os.getpid(), signum)
        time.sleep(10)

    monkeypatch.setattr(operators, "run", run)
    (tmp_path / "operators.json").write_text("of another day")
    before = signal.getsignal(signal.SIGTERM)
    assert main(["bench", "--quick", f"--out={tmp_path}"]) == code
    said, unfinished = capsys.readouterr(), tmp_path / "operators.unfinished.json"
    last = said.err.splitlines()[-1]
    assert last.startswith("lra-ssm: error: operators was interrupted; ") and "Traceback" not in said.err
    assert (tmp_path / "operators.json").read_text() == "of another day" and signal.getsignal(signal.SIGTERM) == before
    if measured_before:
        assert str(unfinished) in last and "comparison 1 (" in said.out
        data = json.loads(unfinished.read_text())
        assert [r["comparison"] for r in data["rows"]] == ["comparison 0", "comparison 1"] and data["machine"]
    else:
        assert "nothing was measured yet" in last and not unfinished.exists()


def test_a_busy_machine_is_said():
    def text(share, waiting):
        shares = [{"contender": "S6", "comparison": "c", "length": 8, "mode": BOTH,
                   "copy, GB/s": {"reached": 0.004, "share": share}}]  # fmt: skip
        found = {"rows": [row("c", "S6", BOTH, [1.0])], "ceilings": {"copy, GB/s": 0.0042}, report.WAITING: waiting}
        return report.suite_text("operators", {**found, "shares of ceilings": shares})

    quiet = text(0.9, 0.01)
    assert (
        "copy, GB/s  0.0042" in quiet and "0.004 (90%)" in quiet and "busy" not in quiet and "above 100%" not in quiet
    )
    assert "the machine was busy: 40% of the time that this process wanted a core, others had it" in text(0.9, 0.4)
    assert "shares above 100%: torch's own copy" in text(1.2, 0.0)
    for waiting in (0.4, None):  # None: the system does not say
        assert "shares above 100%: the machine was busy when the ceilings were measured, or" in text(1.2, waiting)


def test_slopes_are_fitted_where_the_lengths_are_long():
    points = [(1024, 5.0), (4096, 5.0), (8192, 20.0), (16384, 80.0)]
    assert slope(points) == pytest.approx(2.0)
    assert slope(points[:3]) is None


def test_mamba_ssms_own_model_goes_token_by_token_as_it_reads(monkeypatch):
    """Its package stands in with sums of embeddings, kept in what its inference keeps."""
    size = language_models.Size(n_layers=1, d_model=4, vocab_size=5, length=3, batch=2)

    class LanguageModel(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            assert (config.d_model, config.n_layer, config.vocab_size, config.pad_vocab_size_multiple) == (4, 1, 5, 1)
            self.embedding = torch.nn.Embedding(5, 4)

        def forward(self, ids, inference_params=None, num_last_tokens=0):
            x = self.embedding(ids).cumsum(1)
            if inference_params is not None:
                if inference_params.seqlen_offset:
                    x = x + inference_params.key_value_memory_dict[0]
                inference_params.key_value_memory_dict[0] = x[:, -1:]
            return SimpleNamespace(logits=(x @ self.embedding.weight.T)[:, -num_last_tokens:])

    kept = partial(SimpleNamespace, seqlen_offset=0)
    for name, content in (
        ("models.config_mamba", {"MambaConfig": SimpleNamespace}),
        ("models.mixer_seq_simple", {"MambaLMHeadModel": LanguageModel}),
        ("utils.generation", {"InferenceParams": lambda **given: kept(key_value_memory_dict={}, **given)}),
    ):
        monkeypatch.setitem(sys.modules, f"mamba_ssm.{name}", SimpleNamespace(**content))
    for name in ("mamba_ssm", "mamba_ssm.models", "mamba_ssm.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    model = language_models.MambaSsm(size, 0.0)
    ids, targets = size.batch_of_tokens(CPU)
    state = model.start(2)  # after token 0
    for ids_t in ids.T:
        logits, state = model.step(ids_t, state)
    torch.testing.assert_close(logits, model.prompt(torch.cat([torch.zeros(2, 1, dtype=torch.int64), ids], 1)))
    model.backward(ids, targets)
    expected = torch.nn.functional.cross_entropy(model.logits(ids).flatten(0, 1), targets.flatten())
    (gradient,) = torch.autograd.grad(expected, model.module.embedding.weight)
    torch.testing.assert_close(model.module.embedding.weight.grad, gradient)


def test_a_picture_where_nothing_could_be_measured():
    drawn = BytesIO()
    plot.bar_plot([], "tokens/s", "title")(drawn)
    assert drawn.getvalue()[:4] == b"\x89PNG"


def test_a_picture_of_one_length_and_of_rows_without_memory(tmp_path):
    rows = [row("growth with length", "S6, cpu", BOTH, [1.0], length=64)]
    rows[0].memory = None
    drawn = BytesIO()
    plot.growth_plot(rows, "title")(drawn)
    assert len(drawn.getvalue()) > 1000
