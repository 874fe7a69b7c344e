"""The suite of operators: scans against the baselines, the eight cases, S4D, growth with length, device ceilings."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib.util import find_spec
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
S4D = "S4D"


def shapes_of(settings: Settings) -> list[Shape]:
    """What was asked for; on a CPU one size at three lengths, on a GPU a wide one and a long one."""
    batch, channels, states = settings.batch, settings.channels, settings.states
    if settings.quick:
        base, lengths = Shape(2, 16, 4, 0), [32]
    elif settings.device.type == "cuda" and settings.lengths is None:
        wide, long = Shape(16, 1024, 16, 2048), Shape(8, 128, 16, 16384)
        return [
            Shape(batch or size.batch, channels or size.channels, states or size.states, size.length)
            for size in (wide, long)
        ]
    else:
        base, lengths = Shape(4, 128, 16, 0), [1024, 4096, 16384]
    return [
        Shape(batch or base.batch, channels or base.channels, states or base.states, length)
        for length in settings.lengths or lengths
    ]


def run(settings: Settings) -> dict[str, Any]:
    """Rows and the smaller tables of the suite, ready for the report."""
    rows: list[Row] = []
    for shape in shapes_of(settings):
        rows += _against(S6, shape, settings)
        rows += _against(B2S6, shape, settings)
        for i, backend in enumerate(settings.backends):
            if i == 0 or shape == shapes_of(settings)[0]:  # slower ones would take hours at every length
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
    """Every backend in both layouts, and the baselines at lengths where they do not take minutes."""
    truth = ScanTruth(case, shape, settings.device)
    contenders = [
        Contender(label(by, layout), ScanWork(case, shape, by, settings.device, layout), truth)
        for i, by in enumerate(settings.backends)
        for layout in (CHANNELS_FIRST, CHANNELS_LAST)
        if i == 0 or shape.length <= 4096 or settings.device.type == "cuda"
    ]
    if case == S6 and settings.device.type == "cuda" and find_spec("mamba_ssm") is not None:
        contenders.append(Contender(MAMBA, ScanWork(case, shape, MAMBA, settings.device), truth))
    longest = {"loop over time": 16384, "parallel scan": 16384, "cumulative sums of logs": 1024}
    if settings.compiled:
        longest["compiled chunks"] = 16384
    if case.is_complex:
        longest = {"loop over time": 4096, "parallel scan": 1024}
    for by, length in longest.items():
        if shape.length <= length:
            contenders.append(Contender(by, ScanWork(case, shape, by, settings.device), truth))
    return compare(AGAINST.format(case=case.name), asdict(shape), contenders, settings)


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
