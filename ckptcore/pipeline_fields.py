"""What the values of a pipeline's settings may be: paths, names, times and sizes, checked and made canonical."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from ckptcore.errors import CheckpointError
from ckptcore.rules.casts import CAST_DTYPES
from ckptcore.rules.gates import check_function
from ckptcore.rules.layout import COMPONENTS
from ckptcore.rules.output_layout import PRESETS
from ckptcore.rules.pipeline import parse_interval, server_name_mistake
from ckptcore.rules.release import check_alias, check_name
from ckptcore.rules.retention import parse_age
from ckptcore.rules.sizes import parse_size

ROOT = "root"
"""The key of the validation context under which the directory stands that relative paths start from."""


LEAST_STALL_SECONDS = 10.0
"""The shortest silence that an automation of Prefect reacts to."""


def _absolute(path: str, info: ValidationInfo) -> str:
    """Relative paths of a file are relative to the file, not to who reads it."""
    root = (info.context or {}).get(ROOT)
    return path if root is None else os.path.normpath(os.path.join(root, os.path.expanduser(path)))


def _text(value: object) -> object:
    # YAML reads `60` as a number and `5m` as a text; both are times.
    return f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else value


def _age(text: str) -> str:
    parse_age(text)
    return text


def _when(text: str) -> str:
    parse_interval(text)
    return text


def _size(text: str) -> str:
    parse_size(text)
    return text


def _name(text: str) -> str:
    return _refused(lambda: check_name(text, "name"))


def _served(text: str) -> str:
    if mistake := server_name_mistake(text):
        raise ValueError(f"{text!r} {mistake}")
    return text


def _pool(text: str) -> str:
    if text.lower().startswith("prefect"):
        raise ValueError(f"{text!r} starts with prefect, which the server keeps for itself; expected another name")
    return _served(text)


def _stall(text: str) -> str:
    if parse_age(text) < LEAST_STALL_SECONDS:
        raise ValueError(f"{text!r} is less than Prefect waits for; expected {LEAST_STALL_SECONDS:.0f}s or more")
    return text


def _block(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", text):
        raise ValueError(f"{text!r} is no block; expected TYPE/NAME, of lowercase letters, digits and dashes")
    return text


def _alias(text: str) -> str:
    return _refused(lambda: check_alias(text))


def _refused(check: Callable[[], str]) -> str:
    try:
        return check()
    except CheckpointError as error:
        raise ValueError(error.message) from error


def _component(text: str) -> str:
    return _one_of(COMPONENTS, text)


def _dtype(text: str) -> str:
    return _one_of(CAST_DTYPES, text)


def _one_of(known: Sequence[str], text: str) -> str:
    if text not in known:
        raise ValueError(f"is none of {', '.join(known)}")
    return text


def _map(what: LayoutMapText, info: ValidationInfo) -> LayoutMapText:
    return _absolute(what, info) if isinstance(what, str) and what not in PRESETS else what


def _dask(place: object) -> object:
    is_address = isinstance(place, str) and place.startswith(("tcp://", "tls://", "ws://", "wss://", "ucx://"))
    if not (is_address or _is_number(place)):
        raise ValueError("is neither a number of processes nor a scheduler's address, such as tcp://host:8786")
    return place


def _ray(place: object) -> object:
    is_address = isinstance(place, str) and ":" in place
    if not (is_address or _is_number(place)):
        raise ValueError("is neither a number of processes nor a cluster's address, such as ray://host:10001")
    return place


def _is_number(place: object) -> bool:
    return isinstance(place, int) and not isinstance(place, bool) and place > 0


def _web_address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("is no http:// or https:// address")
    return text


def _devices(value: object) -> object:
    # `4` is the first four.
    return tuple(range(value)) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value


def _each_once(devices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(devices)) < len(devices):
        raise ValueError("names a device twice")
    return devices


LayoutMapText = str | tuple[str, ...] | dict[str, Any]

PathText = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]
Duration = Annotated[str, BeforeValidator(_text), AfterValidator(_age)]
When = Annotated[str, BeforeValidator(_text), AfterValidator(_when)]
Size = Annotated[str, AfterValidator(_size)]
Name = Annotated[str, AfterValidator(_name)]
ServedName = Annotated[Name, AfterValidator(_served)]
Pool = Annotated[str, Field(min_length=1), AfterValidator(_pool)]
BlockName = Annotated[str, AfterValidator(_block)]
StallDuration = Annotated[Duration, AfterValidator(_stall)]
Alias = Annotated[str, AfterValidator(_alias)]
Component = Annotated[str, AfterValidator(_component)]
Function = Annotated[str, AfterValidator(check_function)]
Address = Annotated[str, AfterValidator(_web_address)]
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Dask = Annotated[int | str, BeforeValidator(_dask)]
Ray = Annotated[int | str, BeforeValidator(_ray)]
DeviceIndexes = Annotated[tuple[Natural, ...], BeforeValidator(_devices), AfterValidator(_each_once)]
Dtype = Annotated[str, AfterValidator(_dtype)]
Map = Annotated[LayoutMapText, AfterValidator(_map)]
