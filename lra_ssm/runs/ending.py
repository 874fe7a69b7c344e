"""How a fit, or a command that scores, ends: done, stopped by a signal, failed, or without a process beside it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import one_reason
from lra_ssm.runs.signals import Ended, Signals, Stopped, listening

_PATIENCE = 10.0  # seconds that the processes beside this one have to end by themselves, once a step is saved


@contextmanager
def ending(command: str | None = None) -> Iterator[Signals]:
    """Listens to signals within the block. However the block ends, the run that `Signals.watch` was told of is
    recorded and given back, the processes that Lightning started beside this one end, and wandb's run does.

    Args:
        command: that runs in the block; None for a fit of a Trainer of one's own.

    Raises:
        Ended: with an exit code, of which everything is said: a signal (Stopped), or the end of a process beside this.
        InputError: what can be said of an error in one line; an error that nobody foresaw passes as it is.
    """
    with listening() as signals:
        outer = signals.run, signals.command
        signals.run, signals.command = None, command
        code, patience = 2, 0.0
        try:
            yield signals
            code = 0
        except Stopped as stop:
            patience = 0.0 if signals.stopped_at is None else _PATIENCE
            if signals.run is not None:
                signals.run.close()
            signals.say_stopped(stop)
            if command not in (None, "fit"):  # a fit has asked, if it has made a step; else it would be queued for ever
                signals.ask_for_requeue(stop.signum)
            signals.queue_again()
            if signals.run is not None:
                signals.run.draw_curves()
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and signals.lost_peer(error):
                raise Ended(signals.say_lost()) from error
            failure = input_error(error)
            if signals.run is not None:
                signals.run.fail(str(failure or repr(error)))
            if failure in (None, error) or command is None:  # Python's callers catch what was raised
                raise
            raise failure from error
        finally:
            signals.leave(code)
            if signals.run is not None:  # the same process may fit another one
                signals.run.close()
            if code:
                signals.end_children(patience)
            if signals.run is not None:
                signals.run.finish_loggers(code)
            signals.run, signals.command = outer


def input_error(error: BaseException) -> InputError | None:
    """The error in one line; None for one that nobody foresaw, which is a bug."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, (MisconfigurationException, OSError)):
        return InputError(one_reason(error))
    said = squeeze(str(error))
    if isinstance(error, RuntimeError) and said.startswith("DataLoader worker"):  # the kernel has killed it
        more = "often for want of memory; started again, the run is resumed, and data.num_workers 0 needs less"
        return InputError(f"{said.rstrip('. ')}: {more}")
    if "wandb" in sys.modules and isinstance(error, sys.modules["wandb"].Error):
        more = "trainer.logger.offline=true (or WANDB_MODE=offline) needs no account and no server"
        return InputError(f"wandb: {said.rstrip('. ')}; {more}")
    return None
