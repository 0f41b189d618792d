"""Tests with `farblock serve`. FARBLOCK_URL is a disk of 64 MiB, which the tests overwrite.
FARBLOCK_READ_ONLY_URL is a read-only disk."""

import array
import errno
import os
import signal
import threading
import unittest

import farblock

URL = os.environ["FARBLOCK_URL"]
READ_ONLY_URL = os.environ["FARBLOCK_READ_ONLY_URL"]


class DiscoverTest(unittest.TestCase):
    def test_discover_lists_the_served_subsystem(self):
        address = URL.split("/")[2]
        (found,) = [entry for entry in farblock.discover(address) if entry.kind == "subsystem"]
        self.assertEqual(found.url, URL.split("?")[0])
        self.assertEqual(f"{found.address}:{found.service}", address)
        self.assertTrue(found.url.endswith(found.nqn))

    def test_discover_reports_unusable_addresses(self):
        with self.assertRaises(farblock.Error) as caught:
            farblock.discover("127.0.0.1:1")
        self.assertIn("cannot connect", str(caught.exception))
        with self.assertRaises(ValueError):
            farblock.discover("no address")

    def test_the_package_has_a_version(self):
        self.assertRegex(farblock.__version__, r"^\d+\.\d+\.\d+")


class DiskTest(unittest.TestCase):
    def setUp(self):
        self.disk = farblock.connect(URL)
        self.addCleanup(self.disk.close)
        self.block = self.disk.block_size

    def test_a_disk_reports_its_properties(self):
        self.assertEqual((self.disk.size, self.block), (64 << 20, 512))
        self.assertFalse(self.disk.read_only)
        self.assertTrue(self.disk.discards)
        self.assertIn("64 MiB", repr(self.disk))

    def test_reads_return_the_written_data(self):
        data = os.urandom(3 << 20)
        self.assertEqual(self.disk.write(1 << 20, data, durable=True), len(data))
        self.disk.flush()
        self.assertEqual(self.disk.read(1 << 20, len(data)), data)
        self.assertEqual(self.disk.read(self.disk.size, 0), b"")

    def test_any_buffer_can_be_written_and_filled(self):
        numbers = array.array("Q", range(128))
        self.disk.write(0, numbers)
        back = array.array("Q", bytes(1024))
        self.assertEqual(self.disk.readinto(0, back), 1024)
        self.assertEqual(back, numbers)
        memory = bytearray(3 * self.block + 3)
        self.disk.readinto(0, memoryview(memory)[1 : 1 + 2 * self.block])
        self.assertEqual(memory[1 : 1 + 2 * self.block], numbers.tobytes())
        self.assertEqual(memory[0], 0)
        self.assertFalse(any(memory[1 + 2 * self.block :]))

    def test_a_buffer_can_be_resized_after_a_call(self):
        memory = bytearray(self.block)
        self.disk.readinto(0, memory)
        self.disk.write(0, memory)
        memory.extend(b"more")

    def test_zeroes_and_discard_change_only_their_range(self):
        self.disk.write(0, b"\x55" * 4 * self.block)
        self.disk.zeroes(0, self.block, keep_allocated=True, durable=True)
        self.disk.discard(2 * self.block, self.block)
        data = self.disk.read(0, 4 * self.block)
        self.assertFalse(any(data[: self.block]))
        self.assertEqual(data[self.block : 2 * self.block], b"\x55" * self.block)
        self.assertEqual(data[3 * self.block :], b"\x55" * self.block)

    def test_several_threads_can_use_one_disk(self):
        def work(number):
            for turn in range(50):
                offset = (number * 50 + turn) * 4096
                data = bytes([number + turn]) * 4096
                self.disk.write(offset, data)
                if self.disk.read(offset, 4096) != data:
                    failures.append(offset)

        failures = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_bad_arguments_raise_value_errors_with_a_reason(self):
        for words, call in [
            ("multiple of the block size", lambda: self.disk.read(1, self.block)),
            ("multiple of the block size", lambda: self.disk.write(0, b"odd")),
            ("outside of", lambda: self.disk.read(self.disk.size, self.block)),
            ("outside of", lambda: self.disk.zeroes(self.disk.size, self.block)),
            ("0 or more", lambda: self.disk.write(-self.block, bytes(self.block))),
            ("outside of the disk", lambda: self.disk.read(0, -self.block)),
            ("cannot be written", lambda: self.disk.readinto(0, bytes(self.block))),
            ("nvme+tcp://", lambda: farblock.connect("http://localhost")),
            ("hostid", lambda: farblock.connect(URL, hostid="me")),
            ("zero character", lambda: farblock.connect(URL + "\0&ns=2")),
            ("zero character", lambda: farblock.connect(URL, hostnqn="nqn.a\0b")),
            ("zero character", lambda: farblock.discover("127.0.0.1\0:1")),
            ("io_timeout", lambda: farblock.connect(URL, io_timeout=-1)),
        ]:
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        with self.assertRaises((TypeError, BufferError, ValueError)):
            self.disk.readinto(0, memoryview(bytearray(2 * self.block))[::2])

    def test_a_url_of_the_wrong_type_raises_a_type_error(self):
        for url in [None, 7, b"nvme+tcp://a/b", [None], ["nvme+tcp://a/b", 7]]:
            with self.subTest(url), self.assertRaisesRegex(TypeError, "must be a str such as"):
                farblock.connect(url)
        with self.assertRaisesRegex(TypeError, "address is None"):
            farblock.discover(None)

    def test_errors_have_an_errno_and_a_reason(self):
        with farblock.connect(READ_ONLY_URL, data_digest=True, io_timeout=None) as disk:
            self.assertTrue(disk.read_only)
            with self.assertRaises(farblock.Error) as caught:
                disk.write(0, bytes(disk.block_size))
        self.assertEqual(caught.exception.errno, errno.EROFS)
        self.assertIn("read-only", str(caught.exception))
        with self.assertRaises(farblock.Error) as caught:
            farblock.connect("nvme+tcp://127.0.0.1:1/nqn.2026-11.org.farblock:none")
        self.assertIn("127.0.0.1:1", str(caught.exception))

    def test_a_closed_disk_refuses_calls(self):
        self.disk.close()
        self.disk.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.disk.flush()

    def test_a_forked_child_must_connect_again(self):
        self.disk.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.disk.flush()
            except farblock.Error as error:
                if "connect again" in str(error):
                    self.disk.close()
                    with farblock.connect(URL) as disk:
                        disk.flush()
                    code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.disk.flush()

    def test_a_child_forked_during_calls_must_connect_again(self):
        def work():
            while not over.is_set():
                self.disk.write(0, bytes(1 << 20))

        over = threading.Event()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    code = 1
                    # Stop a child that hangs.
                    signal.alarm(60)
                    try:
                        code = self.every_call_fails_in_a_child()
                    finally:
                        os._exit(code)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.disk.flush()

    def every_call_fails_in_a_child(self):
        disk = self.disk
        calls = [
            lambda: disk.size,
            lambda: disk.state,
            lambda: disk.paths,
            lambda: disk.read(0, 512),
            lambda: disk.readinto(0, bytearray(512)),
            lambda: disk.write(0, bytes(512)),
            lambda: disk.zeroes(0, 512),
            lambda: disk.discard(0, 512),
            disk.flush,
        ]
        for call in calls:
            try:
                call()
                return 2
            except farblock.Error as error:
                if "connect again" not in str(error):
                    return 3
        if "forked" not in repr(disk):
            return 4
        disk.close()
        disk.close()
        with farblock.connect(URL) as again:
            again.flush()
        return 0


if __name__ == "__main__":
    unittest.main()
