"""The suite of operators: scans against the baselines, the eight cases, S4D, growth with length, device ceilings."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from lra_ssm.bench import s4d
from lra_ssm.bench.ceilings import measure_ceilings, shares
from lra_ssm.bench.compare import Contender, Row, Settings, compare
from lra_ssm.bench.growth import measure_growth, slopes
from lra_ssm.bench.scan import (
    B2S6,
    B2S6_WITHOUT_BIAS,
    CASES,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    MAMBA,
    S6,
    ScanCase,
    ScanTruth,
    ScanWork,
)
from lra_ssm.bench.work import Shape

AGAINST = "{case} against other ways to write it"
EIGHT = "cases on {backend}"
EQUAL = "cases on {backend}, N real states each"
S4D = "S4D"


def shapes_of(settings: Settings) -> list[Shape]:
    """What was asked for; on a CPU one size, on a GPU a language model's, one of many states, and a single sequence."""
    bases, lengths = [Shape(4, 128, 16, 0)], [1024, 4096, 16384]
    if settings.quick:
        bases, lengths = [Shape(2, 16, 4, 0)], [32]
    elif settings.device.type == "cuda":
        bases, lengths = [Shape(8, 1536, 16, 0), Shape(32, 128, 64, 0), Shape(1, 1536, 16, 0)], [*lengths, 65536]
    given = {name: n for name in ("batch", "channels", "states") if (n := getattr(settings, name))}
    return [
        replace(base, **given, length=length)
        for base in (bases[:1] if len(given) == 3 else bases)
        for length in settings.lengths or lengths
    ]


def run(settings: Settings) -> dict[str, Any]:
    """Rows and the smaller tables of the suite, ready for the report."""
    rows: list[Row] = []
    shapes = shapes_of(settings)
    for shape in shapes:
        rows += _against(S6, shape, settings)
        if settings.device.type == "cuda":
            rows += _of_equal_state(shape, settings)
    for shape in shapes:
        if settings.device.type == "cpu" or shape == shapes[0]:  # slower ones would take hours at every size
            rows += _against(B2S6, shape, settings)
            for backend in settings.backends if shape == shapes[0] else settings.backends[:1]:
                rows += _eight_cases(backend, shape, settings)
    for shape in s4d_shapes(settings):
        rows += _s4d(shape, settings)
    growth = measure_growth(settings)
    ceilings = measure_ceilings(settings)
    return {
        "rows": [*rows, *growth],
        "growth": growth,
        "slopes": slopes(growth),
        "ceilings": ceilings,
        "shares of ceilings": shares(rows, ceilings),
    }


def label(by: str, layout: str = CHANNELS_FIRST) -> str:
    return by if layout == CHANNELS_FIRST else f"{by}, {layout}"


def _against(case: ScanCase, shape: Shape, settings: Settings) -> list[Row]:
    """Every backend in both layouts, and the baselines at lengths where they do not take minutes; on a GPU mamba-ssm's
    kernel, and S6 in bfloat16 too."""
    device, cuda = settings.device, settings.device.type == "cuda"
    truth = ScanTruth(case, shape, device)
    contenders = [
        Contender(label(by, layout), ScanWork(case, shape, by, device, layout), truth)
        for i, by in enumerate(settings.backends)
        for layout in (CHANNELS_FIRST, CHANNELS_LAST)
        if i == 0 or shape.length <= (1024 if cuda else 4096)
    ]
    if case == S6 and cuda:
        half = replace(truth, half=True)
        for by in (settings.backends[0], MAMBA):
            if by == MAMBA:
                contenders.append(Contender(MAMBA, ScanWork(case, shape, MAMBA, device), truth))
            contenders.append(Contender(f"{by}, bfloat16", ScanWork(case, shape, by, device, half=True), half))
    longest = {"loop over time": 16384, "parallel scan": 16384, "cumulative sums of logs": 1024}
    if settings.compiled:
        longest["compiled chunks"] = 16384
    if case.is_complex:
        longest = {"loop over time": 4096, "parallel scan": 1024}
    if cuda:
        longest = dict.fromkeys(longest, 1024)
    for by, length in longest.items():
        if shape.length <= length:
            contenders.append(Contender(by, ScanWork(case, shape, by, settings.device), truth))
    return compare(AGAINST.format(case=case.name), asdict(shape), contenders, settings)


def _of_equal_state(shape: Shape, settings: Settings) -> list[Row]:
    """B2S6 with N/2 conjugate pairs, with and without bias, and real S6 with N states, as their layers call them."""
    contenders = []
    for case in (S6, B2S6_WITHOUT_BIAS, B2S6):
        own = replace(shape, states=shape.states // 2) if case.is_complex else shape
        work = ScanWork(case, own, settings.backends[0], settings.device, CHANNELS_LAST)
        contenders.append(Contender(case.name, work, ScanTruth(case, own, settings.device)))
    rows = compare(EQUAL.format(backend=settings.backends[0]), asdict(shape), contenders, settings)
    for row in rows:
        if row.contender != S6.name:
            row.extra["pairs of states"] = shape.states // 2
    return rows


def _eight_cases(backend: str, shape: Shape, settings: Settings) -> list[Row]:
    contenders = []
    for case in CASES:
        if shape.channels % case.groups == 0:
            truth = ScanTruth(replace(case, name=case.truth, second_scan=False), shape, settings.device)
            work = ScanWork(case, shape, backend, settings.device)
            contenders.append(Contender(case.name, work, truth))
    return compare(EIGHT.format(backend=backend), asdict(shape), contenders, settings, base=B2S6_WITHOUT_BIAS.name)


def s4d_shapes(settings: Settings) -> list[Shape]:
    """The published sizes, 32 pairs each, or the lengths and channels that were asked for."""
    batch = settings.batch or 4
    if settings.quick:
        return [Shape(2, 8, 4, 128)]
    if settings.lengths is not None or settings.channels is not None:
        lengths = settings.lengths or [1024, 4096, 16384]
        return [Shape(batch, settings.channels or 128, 32, length) for length in lengths]
    sizes = [(128, 1024), (128, 4096), (256, 4096), (512, 1024), (128, 16384)]
    return [Shape(batch, channels, 32, length) for channels, length in sizes]


def _s4d(shape: Shape, settings: Settings) -> list[Row]:
    parts = [part for part in s4d.PARTS if part != s4d.NAIVE_KERNEL]
    contenders = [
        Contender(part, s4d.S4DWork(part, shape, settings.device), s4d.S4DTruth(part, shape, settings.device))
        for part in parts
    ]
    rows = compare(S4D, asdict(shape), contenders, settings, base=s4d.OURS)
    for row in rows:
        if row.contender == s4d.KERNEL and row.ratio is not None:
            row.extra["share of kernel and convolution"] = row.ratio[0]
    return rows
