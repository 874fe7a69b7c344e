"""The figure of `lra-ssm inspect`: what each panel draws, and that texts are legible and do not overlap."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from lra_ssm.analysis.figure import draw
from lra_ssm.analysis.measure import measure
from lra_ssm.layers import B2S6, LRU, S6
from tests.analysis.test_measure import examples, tokens
from tests.helpers import Smooth


@pytest.fixture(scope="module")
def measured():
    return {layer: measure(tokens(layer), examples(40), layer.__name__, ["untrained"]) for layer in (S6, LRU, Smooth)}


def panels(figure):
    """Return axes by the last line of their title: one for each network, from top to bottom."""
    found = {}
    for axes in figure.axes:
        found.setdefault(axes.get_title(loc="left").splitlines()[-1], []).append(axes)
    return found


def texts(axes):
    return [text.get_text() for text in axes.texts]


def curves(axes, label=None):
    """Return x and y of the visible lines that are not guides, or of those with a label."""
    lines = [line for line in axes.lines if line.get_alpha() != 0 and len(line.get_xdata()) > 2]
    return [line.get_xydata().T for line in lines if label is None or line.get_label() == label]


def dots(axes):
    """Return the points that are marked, in the order of the layers."""
    return [line.get_xydata()[0] for line in axes.lines if line.get_marker() == "o"]


def test_panels_draw_what_was_measured(measured):
    network = measured[S6]
    (memory,), (timescales,), (large,), (eigenvalues,), (ratios,), (gradient,), (delta,), (moves,), (forgetting,) = (
        panels(draw([network])).values()
    )
    of_layers = zip(network.layers, *map(curves, (memory, timescales, eigenvalues, gradient)), strict=True)
    for layer, (x, share), (_, slowest), (turns, distance), (_, norms) in of_layers:
        assert x[-1] == 40 and share[-1] == pytest.approx(100, abs=0.1)
        end = [layer.memory_length, share[int(layer.memory_length) - 1]]
        assert any(point == pytest.approx(end) for point in dots(memory))
        assert slowest[0] == pytest.approx(float(layer.timescales.max())) and (np.diff(slowest) <= 0).all()
        assert distance.min() == pytest.approx(layer.stability_margin) and not turns.any()  # S6's are real
        torch.testing.assert_close(torch.tensor(norms), layer.gradient.double())
    for scale in (1, 10, 100):
        ((_, y),) = curves(large, f"× {scale}")
        torch.testing.assert_close(torch.tensor(y), network.layers[0].scaled[scale].double().clamp(min=1e-12))
    assert eigenvalues.yaxis_inverted() and not eigenvalues.get_title(loc="right")
    assert [label.get_text() for label in ratios.get_yticklabels()] == list(network.layers[0].ratios)
    assert [y for _, y in dots(delta)] == pytest.approx([float(layer.delta.quantile(0.5)) for layer in network.layers])
    assert len(curves(moves)) == 2 and all(0.5 < y.mean() < 2 for _, y in curves(moves))
    assert [y for _, y in dots(forgetting)] == pytest.approx([layer.forgetting for layer in network.layers])


def test_two_networks_have_the_same_scales_and_layers_the_same_color(measured):
    one = replace(measured[LRU], layers=measured[LRU].layers[:1])
    figure = draw([measured[S6], one])
    for title, (above, below) in panels(figure).items():
        assert above.get_xlim() == below.get_xlim()
        assert (above.get_ylim() == below.get_ylim()) == (title != "Gradient over weight")
    first, second = panels(figure)["Memory"]
    assert first.lines[0].get_color() == second.lines[0].get_color()


def test_a_panel_without_values_says_so_and_delta_is_left_out(measured):
    found = panels(draw([measured[Smooth]]))
    assert len(found) == 6 and "Step size Δ" not in found
    for title in ("Timescales of the states", "Eigenvalues λ"):
        assert texts(found[title][0]) == ["no layer has eigenvalues"]
    both = panels(draw([measured[S6], measured[Smooth]]))
    assert texts(both["Step size Δ"][1]) == texts(both["Δ along the sequence"][1]) == ["no layer has a Δ"]
    network, diverged = replace(measured[Smooth], layers=[replace(measured[Smooth].layers[0], ratios={})]), tokens(S6)
    next(diverged.head.parameters()).data.fill_(torch.nan)
    bare, diverged = (panels(draw([one])) for one in (network, measure(diverged, examples(20), "", [])))
    assert texts(bare["Gradient over weight"][0]) == ["no layer has parameters"]
    for title in ("Gradient over weight", "Gradient along the sequence"):
        assert texts(diverged[title][0])[0].startswith("gradients are not finite")


def test_unstable_eigenvalues_are_counted_and_a_long_sequence_is_drawn_to_its_end(measured):
    """Its Δ is 1 in the first part and 3 in the longer rest."""
    values = torch.tensor([[0.5, 1.01, 1.0, 0.9]], dtype=torch.complex128)
    delta = torch.cat([torch.ones(120_000, 10), torch.full((180_000, 10), 3.0)])
    layer = replace(measured[S6].layers[0], eigenvalues=values, delta=delta)
    found = panels(draw([replace(measured[S6], layers=[layer])]))
    assert found["Eigenvalues λ"][0].get_title(loc="right") == "2 with |λ| ≥ 1"
    assert [y for _, y in dots(found["Step size Δ"][0])] == [3.0]


def test_texts_are_legible_and_do_not_overlap_or_leave_the_picture(recwarn):
    network = tokens(B2S6, num_blocks=2, d_state=4, n_layers=8)
    one = measure(network, examples(40), "lm/b2s6 38722f686f", ["a fact of some length"] * 20)
    figure = draw([one, replace(one, title="lm/s6 0123456789")])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = list(figure.texts)
    for axes in figure.axes:
        shown += [axes.xaxis.label, axes.yaxis.label, axes._left_title, axes._right_title, *axes.texts]
        for label in axes.get_yticklabels():  # matplotlib also keeps labels of ticks beyond the limits
            box = label.get_window_extent()
            if axes.bbox.y0 - 1 <= (box.y0 + box.y1) / 2 <= axes.bbox.y1 + 1:
                shown.append(label)
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown if text.get_text()]
    width, height = canvas.get_width_height()
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text
    for (text, box), (other, beside) in combinations(boxes, 2):
        assert not box.padded(-1).overlaps(beside.padded(-1)), (text, other)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]  # the font has all characters
    visible = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    pixels_per_point = 1200 / (figure.get_size_inches()[0] * 72)  # legible at a width of 1200 pixels
    assert len(visible) > 50 and min(text.get_fontsize() for text in visible) * pixels_per_point >= 11
