"""What the user is told of an error that ended a run, by the commands and in a notebook."""

import sys

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lra_ssm.errors import InputError, UserCodeError, in_user_code, raised_here, squeeze
from lra_ssm.files import one_reason


def input_error(error: BaseException) -> InputError | None:
    """The error in one line; None for one that nobody foresaw, which is a bug."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, (MisconfigurationException, OSError)):
        return InputError(one_reason(error))
    if reason := lost_loader(error):
        return InputError(reason)
    if "wandb" in sys.modules and isinstance(error, sys.modules["wandb"].Error):
        more = "trainer.logger.offline=true (or WANDB_MODE=offline) needs no account and no server"
        return InputError(f"wandb: {squeeze(str(error)).rstrip('. ')}; {more}")
    if isinstance(error, ValueError) and raised_here(error) and not in_user_code(error):
        return UserCodeError(str(error))
    return in_user_code(error)


def lost_loader(error: BaseException) -> str:
    """Where the error is the death of a process that loads data: what to say; else nothing."""
    said = squeeze(str(error))
    if not (isinstance(error, RuntimeError) and said.startswith("DataLoader worker")):
        return ""
    more = "often for want of memory; started again, the run is resumed, and data.num_workers 0 needs less"
    return f"{said.rstrip('. ')}: {more}"
