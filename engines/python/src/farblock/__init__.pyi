import sys
from types import TracebackType
from typing import Iterable, List, Literal, NamedTuple, Optional, Type, Union

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["Disk", "Entry", "Error", "PathStatus", "connect", "discover"]

__version__: str

class Error(OSError):
    status: int
    def __init__(self, status: int, text: str) -> None: ...

class PathStatus(NamedTuple):
    url: str
    state: str
    since: float
    reconnects: int
    error: Optional[str]

class Entry(NamedTuple):
    url: Optional[str]
    nqn: str
    address: str
    service: str
    kind: str

class Disk:
    # Use `connect`: the handle belongs to the C library.
    def __init__(self, handle: object) -> None: ...
    def __del__(self) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def paths(self) -> List[PathStatus]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def volatile_cache(self) -> bool: ...
    @property
    def discards(self) -> bool: ...
    def read(self, offset: int, length: int) -> bytearray: ...
    def readinto(self, offset: int, buffer: Buffer) -> int: ...
    def write(self, offset: int, data: Buffer, *, durable: bool = ...) -> int: ...
    def flush(self) -> None: ...
    def zeroes(
        self, offset: int, length: int, *, keep_allocated: bool = ..., durable: bool = ...
    ) -> None: ...
    def discard(self, offset: int, length: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Disk: ...
    def __exit__(
        self,
        type: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...

def connect(
    url: Union[str, Iterable[str]],
    *,
    policy: Literal["numa", "round-robin", "queue-depth"] = ...,
    spin: Literal["efficient", "balanced", "latency", "always"] = ...,
    reconnect_delay: float = ...,
    ctrl_loss_timeout: Optional[float] = ...,
    fast_io_fail_timeout: Optional[float] = ...,
    connect_wait: Optional[float] = ...,
    connect_timeout: float = ...,
    io_timeout: Optional[float] = ...,
    keep_alive: Optional[float] = ...,
    header_digest: bool = ...,
    data_digest: bool = ...,
    hostnqn: Optional[str] = ...,
    hostid: Optional[str] = ...,
) -> Disk: ...
def discover(
    address: str,
    *,
    connect_timeout: float = ...,
    hostnqn: Optional[str] = ...,
    hostid: Optional[str] = ...,
) -> List[Entry]: ...
