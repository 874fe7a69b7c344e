"""Settings of data modules: dataclass fields that say what they affect."""

from collections import ChainMap
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, dataclass_transform, get_args

from lra_ssm.errors import InputError, hint

# What a setting changes: the prepared examples; what the model sees of an example; which examples make up which batch.
Affects = Literal["data", "batches", "order", "nothing"]


def setting(*, affects: Affects, default: Any = MISSING) -> Any:
    """Declare a setting of a data module and what it affects. A field declared without it affects the data."""
    if affects not in get_args(Affects):
        raise InputError(f"setting(affects={affects!r}): {hint(affects, get_args(Affects))}")
    return field(default=default, metadata={"affects": affects})


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(setting, field))
class SettingsDataclass:
    """Turns every subclass into a dataclass, so that its fields are its settings."""

    affects: ClassVar[dict[str, Affects]]  # what each setting affects
    neutral_settings: ClassVar[tuple[str, ...]]  # they cannot change a result: a run's identity leaves them out

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(kw_only=True, eq=False, repr=False)(cls)
        # A setting that a subclass declares again keeps what it affects.
        inherited = ChainMap(*(base.__dict__.get("affects", {}) for base in cls.__mro__[1:]))
        settings = [each for each in fields(cls) if each.init]  # type: ignore[arg-type]
        cls.affects = {each.name: each.metadata.get("affects") or inherited.get(each.name, "data") for each in settings}
        cls.neutral_settings = tuple(name for name, kind in cls.affects.items() if kind == "nothing")
