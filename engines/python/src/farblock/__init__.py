"""NVMe over TCP disks, in user space.

    with farblock.connect("nvme+tcp://host/nqn.2026-11.org.example:disk?ns=1") as disk:
        first = disk.read(0, disk.block_size)

Offsets and lengths are in bytes, in multiples of the block size. Data moves directly between the
given buffers and the network, without a copy. Several threads may use a disk, and other threads run
while one waits.

The library reconnects lost connections, and calls wait meanwhile. Ctrl-C, or an exception in a
signal handler, ends a waiting call. Several URLs are several paths to one disk; `Disk.state` and
`Disk.paths` describe their state.
"""

import os
import threading
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Optional

import cffi

__all__ = ["Disk", "Entry", "Error", "PathStatus", "connect", "discover"]

try:
    __version__ = metadata.version("farblock")
except metadata.PackageNotFoundError:  # the package is not installed
    __version__ = "unknown"

_FOLDER = Path(__file__).parent


def _declarations():
    """Returns the header as a C11 preprocessor would output it. cffi has no preprocessor."""
    lines, kept = [], [True]
    for line in (_FOLDER / "farblock.h").read_text().splitlines():
        words = line.split()
        directive = words[0] if words and words[0].startswith("#") else None
        if directive in ("#if", "#ifdef", "#ifndef"):
            # All conditions are about C++ and C23, except for the include guard.
            kept.append(kept[-1] and directive == "#ifndef")
        elif directive == "#else":
            kept[-1] = kept[-2] and not kept[-1]
        elif directive == "#endif":
            kept.pop()
        elif kept[-1] and directive == "#define" and len(words) == 3 and words[2].isdigit():
            lines.append(line)
        elif kept[-1] and not directive:
            lines.append(line)
    return "\n".join(lines)


_ffi = cffi.FFI()
_ffi.cdef(_declarations())
_library = _ffi.dlopen(str(_FOLDER / "libfarblock.so"))
_FOREVER = 0xFFFFFFFF
_SPINS = {
    "efficient": _library.FB_SPIN_EFFICIENT,
    "balanced": _library.FB_SPIN_BALANCED,
    "latency": _library.FB_SPIN_LATENCY,
    "always": _library.FB_SPIN_ALWAYS,
}
_POLICIES = {
    "numa": _library.FB_POLICY_NUMA,
    "round-robin": _library.FB_POLICY_ROUND_ROBIN,
    "queue-depth": _library.FB_POLICY_QUEUE_DEPTH,
}
_DISK_STATES = {
    _library.FB_DISK_STATE_LIVE: "live",
    _library.FB_DISK_STATE_DEGRADED: "degraded",
    _library.FB_DISK_STATE_WAITING: "waiting",
    _library.FB_DISK_STATE_DEAD: "dead",
}
_PATH_STATES = {
    _library.FB_PATH_STATE_CONNECTING: "connecting",
    _library.FB_PATH_STATE_LIVE: "live",
    _library.FB_PATH_STATE_RECONNECTING: "reconnecting",
    _library.FB_PATH_STATE_DEAD: "dead",
}
_ARGUMENTS = {
    _library.FB_STATUS_ARGUMENT,
    _library.FB_STATUS_ALIGNMENT,
    _library.FB_STATUS_RANGE,
}


class Error(OSError):
    """A failed connection or operation. The message is a sentence; `status` is the library's code."""

    def __init__(self, status, text):
        super().__init__(_library.fb_status_errno(status), text)
        self.status = status


_interrupted = threading.local()


class _Process:
    """Counts forks. A forked child must not use the disks of its parent: it has none of the parent's
    threads, and a lock that such a thread held stays locked."""

    forks = 0

    @classmethod
    def forked(cls):
        cls.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.forked)


def _keep(_kind, exception, _traceback):
    _interrupted.exception = exception


def _wait_on(_user):
    """The library calls this function while a call waits. Python runs signal handlers here. If a
    handler raises an exception, the call raises it too (Ctrl-C: KeyboardInterrupt)."""
    return 0


# This object must live as long as the library may call the function.
_waiting = _ffi.callback("int32_t(void *)", _wait_on, error=1, onerror=_keep)


def _check(status):
    exception, _interrupted.exception = getattr(_interrupted, "exception", None), None
    if exception is not None:
        raise exception
    if status == _library.FB_STATUS_OK:
        return
    text = _ffi.string(_library.fb_last_error()).decode()
    raise ValueError(text) if status in _ARGUMENTS else Error(status, text)


def _milliseconds(what, seconds):
    if seconds is None:
        return _FOREVER
    if not 0.001 <= seconds < _FOREVER / 1000:
        raise ValueError(f"{what} is {seconds} seconds: use 0.001 or more, or None for no limit")
    return int(seconds * 1000)


def _text(what, value):
    """Encodes a text for the library. Refuses zero characters, which would end the text in C."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} is {value!r}: it must be a str")
    if "\0" in value:
        raise ValueError(f"the {what} {value!r} contains a zero character: remove it")
    return value.encode()


def _options(connect_timeout, hostnqn, hostid):
    """Returns the options, and the texts to which they point: keep them as long as the options."""
    options = _ffi.new("fb_options *")
    options.size = _ffi.sizeof("fb_options")
    options.waiting = _waiting
    options.connect_timeout_ms = _milliseconds("connect_timeout", connect_timeout)
    texts = [
        _ffi.NULL if value is None else _ffi.new("char[]", _text(what, value))
        for what, value in (("hostnqn", hostnqn), ("hostid", hostid))
    ]
    options.hostnqn, options.hostid = texts
    return options, texts


def _number(what, value):
    """Checks that a number fits into the unsigned 64 bits that the library takes."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"the {what} is {value}: it must be 0 or more, and below 2**64")
    return value


class PathStatus(NamedTuple):
    """The state of one of a disk's paths."""

    url: str
    #: "connecting", "live", "reconnecting" or "dead".
    state: str
    #: Time in this state, in seconds.
    since: float
    #: The number of reconnections.
    reconnects: int
    #: The reason why the path was last lost or could not be connected; None without such a failure.
    error: Optional[str]


class Entry(NamedTuple):
    """An entry of a discovery service."""

    #: The URL for `connect`; None if the entry is unusable.
    url: Optional[str]
    nqn: str
    address: str
    service: str
    #: "subsystem", "referral", "discovery" or "unknown".
    kind: str


_ENTRY_KINDS = {1: "referral", 2: "subsystem", 3: "discovery"}


def discover(address, *, connect_timeout=5.0, hostnqn=None, hostid=None):
    """Returns the entries of the discovery service at `address`.

    `address` is "host" or "host:port", with the prefix "rdma:" for NVMe/RDMA.
    """
    options, _texts = _options(connect_timeout, hostnqn, hostid)
    place = _ffi.new("fb_discovery **")
    _check(_library.fb_discover(_text("address", address), options, place))
    found = _ffi.gc(place[0], _library.fb_discovery_free)
    entries = []
    while True:
        entry = _ffi.new("fb_entry *")
        entry.size = _ffi.sizeof("fb_entry")
        status = _library.fb_discovery_entry(found, len(entries), entry)
        if status == _library.FB_STATUS_RANGE:
            return entries
        _check(status)
        nqn, service_address, service = (
            _ffi.string(text).decode(errors="replace")
            for text in (entry.nqn, entry.address, entry.service)
        )
        url = None if entry.url == _ffi.NULL else _ffi.string(entry.url).decode()
        kind = _ENTRY_KINDS.get(entry.kind, "unknown")
        entries.append(Entry(url, nqn, service_address, service, kind))


def connect(
    url,
    *,
    policy="numa",
    spin="balanced",
    reconnect_delay=10.0,
    ctrl_loss_timeout=600.0,
    fast_io_fail_timeout=None,
    connect_wait=0.0,
    connect_timeout=5.0,
    io_timeout=30.0,
    keep_alive=5.0,
    header_digest=False,
    data_digest=False,
    hostnqn=None,
    hostid=None,
):
    """Connects to the disk at a URL, and returns it. Times are in seconds; None means no limit.

    `url` is one URL, or several: paths to one disk. `policy` chooses the path of each operation:
    "numa" (the first usable one), "round-robin" or "queue-depth". `spin` is the processor time to
    spend on latency: "efficient", "balanced", "latency" or "always".

    The library reconnects a lost path, with pauses of up to `reconnect_delay`, and gives it up
    after `ctrl_loss_timeout`. Calls wait meanwhile. They fail when the library has given up the
    last path, or when no path was usable for `fast_io_fail_timeout`.

    While the target is not reachable, the call retries for `connect_wait`.
    """
    if policy not in _POLICIES:
        raise ValueError(f"there is no policy {policy!r}: use one of {', '.join(_POLICIES)}")
    if spin not in _SPINS:
        raise ValueError(f"there is no spin policy {spin!r}: use one of {', '.join(_SPINS)}")
    urls = [url] if isinstance(url, str) else url
    try:
        urls = b" ".join(_text("URL", one) for one in urls)
    except TypeError:
        raise TypeError(
            f"the URL is {url!r}: it must be a str such as 'nvme+tcp://HOST/NQN', or several of them"
        ) from None
    options, _texts = _options(connect_timeout, hostnqn, hostid)
    options.queues = 1
    options.policy = _POLICIES[policy]
    options.spin = _SPINS[spin]
    options.reconnect_delay_ms = _milliseconds("reconnect_delay", reconnect_delay)
    options.ctrl_loss_timeout_ms = _milliseconds("ctrl_loss_timeout", ctrl_loss_timeout)
    options.fast_io_fail_timeout_ms = _milliseconds("fast_io_fail_timeout", fast_io_fail_timeout)
    options.connect_wait_ms = 0 if connect_wait == 0 else _milliseconds("connect_wait", connect_wait)
    options.io_timeout_ms = _milliseconds("io_timeout", io_timeout)
    options.keep_alive_ms = _milliseconds("keep_alive", keep_alive)
    options.flags = (_library.FB_HEADER_DIGEST if header_digest else 0) | (
        _library.FB_DATA_DIGEST if data_digest else 0
    )
    place = _ffi.new("fb_disk **")
    _check(_library.fb_connect(urls, options, place))
    return Disk(place[0])


class Disk:
    """A connected disk, made by `connect`. `close`, or the end of its `with` block, releases it."""

    def __init__(self, handle):
        self._handle = handle
        self._calls = 0
        self._idle = threading.Condition()
        self._forks = _Process.forks

    def close(self):
        """Waits for the calls of other threads, and releases the disk. Further calls do nothing.
        In a forked child, closes only the child's object, not the connection."""
        if self._forks != _Process.forks:
            self._handle = None
            return
        with self._idle:
            handle, self._handle = self._handle, None
            self._idle.wait_for(lambda: self._calls == 0)
        if handle is not None:
            _library.fb_disconnect(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _call(self, function, *arguments):
        if self._forks != _Process.forks:
            if self._handle is None:
                raise ValueError("the disk is closed")
            # In a forked child, let the library report its error, which says to connect again.
            return _check(function(self._handle, *arguments))
        with self._idle:
            handle = self._handle
            if handle is None:
                raise ValueError("the disk is closed")
            self._calls += 1
        try:
            _check(function(handle, *arguments))
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _info(self):
        info = _ffi.new("fb_info *")
        info.size = _ffi.sizeof("fb_info")
        self._call(_library.fb_describe, info)
        return info

    @property
    def size(self):
        """The current size in bytes; it changes when the disk is resized."""
        return self._info().capacity_bytes

    @property
    def state(self):
        """The state: "live", "degraded" (a path is lost), "waiting" (all are lost) or "dead"."""
        return _DISK_STATES.get(self._info().state, "unknown")

    @property
    def paths(self):
        """The states of the disk's paths, in the order of their URLs."""
        return [self._path(index) for index in range(self._info().paths)]

    def _path(self, index):
        info = _ffi.new("fb_path_info *")
        info.size = _ffi.sizeof("fb_path_info")
        self._call(_library.fb_describe_path, index, info)
        return PathStatus(
            _ffi.string(info.url).decode(),
            _PATH_STATES.get(info.state, "unknown"),
            info.since_ms / 1000,
            info.reconnects,
            _ffi.string(info.error).decode() or None,
        )

    @property
    def block_size(self):
        """The block size in bytes."""
        return self._info().block_size

    @property
    def read_only(self):
        """Whether the disk refuses writes."""
        return bool(self._info().flags & _library.FB_READ_ONLY)

    @property
    def volatile_cache(self):
        """Whether written data may be lost until a flush."""
        return bool(self._info().flags & _library.FB_VOLATILE_CACHE)

    @property
    def discards(self):
        """Whether discarding frees space."""
        return bool(self._info().flags & _library.FB_DEALLOCATE)

    def __repr__(self):
        if self._handle is None:
            return "<farblock.Disk, closed>"
        if self._forks != _Process.forks:
            return "<farblock.Disk, connected before the process was forked>"
        return f"<farblock.Disk {_ffi.string(self._info().description).decode()}>"

    def read(self, offset, length):
        """Reads bytes of the disk."""
        info = self._info()
        if not 0 <= offset <= offset + length <= info.capacity_bytes or length < 0:
            raise ValueError(
                f"{length} bytes from {offset} on lie outside of the disk of {info.capacity_bytes} bytes"
            )
        data = bytearray(length)
        self.readinto(offset, data)
        return data

    def readinto(self, offset, buffer):
        """Fills a writable buffer without a copy, and returns its length in bytes."""
        with memoryview(buffer) as view:
            if view.readonly:
                raise ValueError("the buffer cannot be written to")
            data = _ffi.from_buffer("char[]", view, require_writable=True)
            with data:
                self._call(_library.fb_read, data, _number("offset", offset), view.nbytes)
            return view.nbytes

    def write(self, offset, data, *, durable=False):
        """Writes a buffer without a copy, and returns its length in bytes."""
        with memoryview(data) as view:
            flags = _library.FB_DURABLE if durable else 0
            with _ffi.from_buffer("char[]", view) as memory:
                self._call(
                    _library.fb_write, memory, _number("offset", offset), view.nbytes, flags
                )
            return view.nbytes

    def flush(self):
        """Makes all earlier writes durable."""
        self._call(_library.fb_flush)

    def zeroes(self, offset, length, *, keep_allocated=False, durable=False):
        """Writes zeroes to a range, without transferring data."""
        flags = (_library.FB_KEEP_ALLOCATED if keep_allocated else 0) | (
            _library.FB_DURABLE if durable else 0
        )
        range_ = _number("offset", offset), _number("length", length)
        self._call(_library.fb_write_zeroes, *range_, flags)

    def discard(self, offset, length):
        """Deallocates a range. Later reads of it return zeroes or the old data."""
        self._call(_library.fb_deallocate, _number("offset", offset), _number("length", length))
