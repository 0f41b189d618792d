"""Kills a target and restarts it with the same file. FARBLOCK is the path of the program."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import farblock

FARBLOCK = os.environ["FARBLOCK"]
NQN = "nqn.2026-11.org.farblock:python"
SIZE = 16 << 20
PIECE = 64 << 10


class Target:
    """`farblock serve` with a file."""

    def __init__(self, folder):
        self.path = Path(folder) / "disk"
        self.path.touch()
        os.truncate(self.path, SIZE)
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        command = [FARBLOCK, "serve", str(self.path), "--listen", self.address, "--nqn", NQN, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            found = re.match(r'\{"listening":\["([^"]*)"', line)
            if found:
                self.address = found.group(1)
                return
        raise AssertionError("the target is not ready")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @property
    def url(self):
        return f"nvme+tcp://{self.address}/{NQN}"


def piece(number, turn):
    return bytes([number % 256, turn % 256]) * (PIECE // 2)


class ReconnectTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.target = Target(folder.name)
        self.addCleanup(lambda: self.target.kill())

    def cut(self, seconds):
        self.target.kill()
        time.sleep(seconds)
        self.target.start()

    def test_no_acknowledged_write_is_lost_when_the_target_is_killed(self):
        with farblock.connect(self.target.url, reconnect_delay=0.2) as disk:
            self.assertEqual((disk.state, disk.paths[0].state), ("live", "live"))
            turns = 0
            cutting = threading.Thread(target=lambda: [self.cut(0.4) for _ in range(3)])
            cutting.start()
            while cutting.is_alive() or turns == 0:
                turns += 1
                for number in range(SIZE // PIECE):
                    disk.write(number * PIECE, piece(number, turns))
                disk.flush()
                for number in range(SIZE // PIECE):
                    self.assertEqual(disk.read(number * PIECE, PIECE), piece(number, turns))
            cutting.join()
            path = disk.paths[0]
            self.assertGreaterEqual(path.reconnects, 1)
            self.assertIsNotNone(path.error)
            self.assertEqual(disk.state, "live")
        self.assertEqual(self.target.path.read_bytes()[:PIECE], piece(0, turns))

    def test_calls_fail_without_the_target_and_work_after_it_returns(self):
        options = {"reconnect_delay": 0.1, "fast_io_fail_timeout": 0.3, "ctrl_loss_timeout": None}
        with farblock.connect(self.target.url, **options) as disk:
            disk.flush()
            self.target.kill()
            begin = time.monotonic()
            with self.assertRaisesRegex(farblock.Error, "lost"):
                disk.read(0, PIECE)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(disk.state, "waiting")
            self.target.start()
            while disk.state != "live":
                time.sleep(0.01)
            disk.read(0, PIECE)

    def interrupt(self, call, signalled=signal.SIGINT):
        """Sends a signal to this process while the call waits, and returns the call's exception."""
        if signalled == signal.SIGINT:
            # In a background process, Python leaves this signal ignored.
            self.addCleanup(signal.signal, signalled, signal.getsignal(signalled))
            signal.signal(signalled, signal.default_int_handler)
        sending = threading.Timer(0.5, os.kill, (os.getpid(), signalled))
        sending.start()
        try:
            call()
        except BaseException as error:
            return error
        finally:
            sending.join()
        return None

    def test_signal_handlers_run_while_a_call_waits(self):
        with farblock.connect(self.target.url) as disk:
            disk.write(0, piece(1, 1))
            self.target.kill()
            buffer = bytearray(PIECE)
            for call in [
                lambda: disk.read(0, PIECE),
                lambda: disk.readinto(0, buffer),
                lambda: disk.write(0, piece(2, 2)),
                disk.flush,
            ]:
                self.assertIsInstance(self.interrupt(call), KeyboardInterrupt)
            # Resizing proves that the failed calls have released the buffer.
            buffer.extend(b"more")
            # The call continues, unless a handler raises an exception: then the call raises it.
            heard = []
            self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
            signal.signal(signal.SIGUSR1, lambda *_: heard.append(1) or self.target.start())
            self.assertIsNone(self.interrupt(lambda: disk.read(0, PIECE), signal.SIGUSR1))
            self.assertEqual(heard, [1])
            self.assertEqual(disk.read(0, PIECE), piece(1, 1))

            def raises(*_):
                raise LookupError("mine")

            signal.signal(signal.SIGUSR1, raises)
            self.target.kill()
            error = self.interrupt(lambda: disk.read(0, PIECE), signal.SIGUSR1)
            self.assertIsInstance(error, LookupError)
            self.target.start()
        self.target.kill()
        connect = lambda: farblock.connect(self.target.url, connect_wait=None)
        self.assertIsInstance(self.interrupt(connect), KeyboardInterrupt)

    def test_several_urls_are_several_paths(self):
        host = self.target.address
        urls = [f"nvme+tcp://{host}/{NQN}", f"nvme+tcp://{host.replace('127.0.0.1', 'localhost')}/{NQN}"]
        with farblock.connect(urls, policy="round-robin") as disk:
            self.assertEqual([path.url for path in disk.paths], [url + "?ns=1" for url in urls])
            disk.write(0, piece(1, 2))
            self.assertEqual(disk.read(0, PIECE), piece(1, 2))
        for options in [{"policy": "fastest"}, {"spin": "fast"}, {"reconnect_delay": None}, {"ctrl_loss_timeout": -1}]:
            with self.subTest(options), self.assertRaises(ValueError):
                farblock.connect(urls, **options)


if __name__ == "__main__":
    unittest.main()
