from collections import deque
from typing import Any, Literal, final

from ._core import DeviceInput, HostInput
from .errors import Refusal, UnsentSave
from .layout import Layout

ROLES: dict[str, str]

_Op = Literal[
    "save_output",
    "save_output_topk",
    "speculate_save_output",
    "speculate_save_output_topk",
    "mtp_save_first_token",
    "mtp_save_first_token_with_topk",
]

def obstacle() -> str: ...
def devices_in_use() -> list[int]: ...
def load(ordinal: int) -> None: ...
def mark(inputs: list[DeviceInput], stream: int) -> None: ...
def unmark() -> None: ...
def driver_version() -> tuple[int, int] | None: ...

WAYS: dict[str, int]

def start(slots: int, way: str) -> None: ...
def stop(wait_ns: int) -> int: ...
def pending() -> int: ...
def finished() -> int: ...
def drain(deadline: int) -> bool: ...
def broken() -> bool: ...
def held() -> tuple[int, float]: ...
def take_error() -> UnsentSave | None: ...

@final
class Lane:
    def __init__(self, channel: str, *, dialect: str, layout: Layout, mode: int) -> None: ...
    @property
    def msqid(self) -> int: ...
    @property
    def key(self) -> int: ...
    @property
    def channel(self) -> str: ...
    @property
    def dialect(self) -> str: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def stats(self) -> dict[str, int | float]: ...
    @property
    def waiting_seconds(self) -> float: ...

@final
class DeviceJob:
    def __init__(
        self,
        op: _Op,
        inputs: dict[str, HostInput | DeviceInput],
        cols: int,
        width: int,
        rows: int,
        names: dict[str, str],
        flag_address: int = 0,
    ) -> None: ...
    @property
    def op(self) -> str: ...
    @property
    def inputs(self) -> dict[str, HostInput | DeviceInput]: ...
    @property
    def device_inputs(self) -> list[DeviceInput]: ...
    @property
    def device(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def width(self) -> int: ...
    def stream(self) -> int: ...
    def save(
        self,
        lane: Lane,
        batch: int,
        *,
        stop_flag: int,
        flag: int,
        skip_prefill: bool,
        stream: int,
        records: deque[tuple[int, DeviceJob, Lane, Any]],
        keep: Any,
    ) -> Refusal | None: ...

@final
class Again:
    def __init__(
        self, records: deque[tuple[int, DeviceJob, Lane, Any]], troubles: tuple[list[Any], ...]
    ) -> None: ...
    def __call__(
        self,
        op: str,
        given: dict[str, Any],
        not_need_stop: Any,
        layout: Layout,
        flag: int,
        skip_prefill: bool,
    ) -> bool: ...
    def keep(
        self,
        job: DeviceJob,
        lane: Lane,
        given: dict[str, Any],
        not_need_stop: Any,
        layout: Layout,
        flag: int,
        skip_prefill: bool,
        batch: int,
        message_id: int,
    ) -> None: ...
    def sizes(self) -> dict[str, int]: ...
    def forget(self) -> None: ...
