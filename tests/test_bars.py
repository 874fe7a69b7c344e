"""How far something is: a bar of tqdm's, a line now and then in a job's log."""

from lra_ssm.bars import Bar, with_bar


def test_in_a_log_what_is_soon_over_prints_nothing(capsys):
    assert list(with_bar(range(5), "reading", 5)) == [0, 1, 2, 3, 4]
    with Bar("reading", 1000, in_bytes=True, done=400) as bar:
        bar.advance(600)
        assert bar.n == 1000
    assert capsys.readouterr().err == ""


def test_in_a_terminal_a_bar_has_count_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Bar("reading", 2_000_000, in_bytes=True) as bar:
        bar.start_t -= 10  # as if it took that long
        bar.delay = 0
        bar.advance(1_000_000)
        bar.refresh()
    shown = capsys.readouterr().err
    assert "reading:  50%" in shown and "1.00M/2.00M" in shown and "B/s" in shown
