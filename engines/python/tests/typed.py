"""Code that mypy checks: all calls, as a typed program makes them. The tests never run it."""

from array import array
from typing import List, Optional

import farblock


def find(address: str) -> List[str]:
    print(farblock.__version__)
    entries = farblock.discover(address, connect_timeout=1)
    return [entry.url for entry in entries if entry.url is not None]


def use(urls: List[str]) -> int:
    with farblock.connect(
        urls,
        policy="queue-depth",
        spin="latency",
        reconnect_delay=1,
        ctrl_loss_timeout=None,
        fast_io_fail_timeout=5.0,
        data_digest=True,
    ) as disk:
        if disk.read_only or disk.state != "live":
            return 0
        error: Optional[str] = disk.paths[0].error
        if error is not None:
            print(error, disk.paths[0].reconnects, disk.paths[0].since)
        numbers = array("Q", bytes(disk.block_size))
        written: int = disk.write(0, numbers, durable=True)
        disk.readinto(0, numbers)
        disk.zeroes(0, disk.block_size, keep_allocated=True)
        disk.discard(0, disk.size)
        disk.flush()
        data: bytearray = disk.read(0, disk.block_size)
        return written + len(data)
