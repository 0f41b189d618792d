#!/usr/bin/env python3
"""Runs the test programs that cargo has built in parallel, because most of them mostly wait.

    cargo test --no-run --message-format json-render-diagnostics ... >BUILT
    suites.py BUILT

Each program runs in the folder that cargo would use. The runner prints the whole output of a failed
program, and one line for each that passed; at the end it names the suites that used the most
processor time. A program that crashes, hangs, or prints no result has failed.

When all programs have ended, the runner repeats the failed tests of each program, with nothing in
parallel. A test that then passes is flaky: the runner prints its name and appends it to the file
named by FARBLOCK_FLAKY. A test that fails twice fails the run. Exit code: 0 all passed, 1 a test
failed twice, 2 misuse.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

# The longest suites start first.
LONG = [
    "cli/attach", "sim/product", "sim/mistakes", "cli/transfers", "bench/floor", "reactor/chaos",
    "cli/dist", "cli/bench", "documentation",
]

# Suites that must run alone, with the reason.
ALONE = {
    "nvmf-target/allocations": "waits for a period in which its process allocates no memory; under"
    " Wine and beside other suites, the wait takes more than 100 seconds",
    "nvmf-target/locked_siege": "thousands of unauthenticated hosts use all processors",
    "nvmf-target/disk_stress": "fails after 30 seconds without progress; under Wine, reconnects are"
    " slow, and the test's faults may interrupt several of them before one succeeds",
}

# Seconds that a program has to exit after SIGTERM.
GRACE = 10

# Seconds that a program has to exit after it has printed its result.
TIME_TO_END = 60


# The report names this many suites with the most processor time.
COSTLIEST = 15


class Program(subprocess.Popen):
    """A child process whose `wait` also records its processor time."""

    # The processor time in seconds of the process and of the children that it has waited for.
    used = 0.0

    def wait(self, timeout=None):
        """The exit code; on timeout, TimeoutExpired."""
        if self.returncode is not None:
            return self.returncode
        handle = os.pidfd_open(self.pid)
        try:
            if not select.select([handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
        finally:
            os.close(handle)
        # Popen's own wait does not report the processor time.
        _, status, usage = os.wait4(self.pid, 0)
        self.used = usage.ru_utime + usage.ru_stime
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Suite:
    """A test program, or another command that runs in parallel to the test programs."""

    def __init__(self, name, folder, command, is_harness=True):
        self.name, self.folder, self.command = name, folder, command
        self.is_harness = is_harness

    def only(self, tests):
        """The same program, reduced to these tests."""
        return Suite(self.name, self.folder, [*self.command, "--exact", *tests])

    def environment(self):
        environment = dict(os.environ)
        if self.folder:
            environment["CARGO_MANIFEST_DIR"] = self.folder
        return environment


class Outcome:
    """The outcome of a suite."""

    def __init__(self, suite, log, problem, seconds, used=0.0):
        self.suite, self.log, self.problem, self.seconds = suite, log, problem, seconds
        self.used = used
        self.passed = sum(map(int, re.findall(r"^test result: .*?(\d+) passed", log, re.M)))

    def failed_tests(self):
        """The names of the failed tests; empty if the program did not print any names."""
        if not self.suite.is_harness or self.problem != "exit code 101":
            return []
        failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", self.log, re.M)
        return sorted(set(failed))

    def show(self):
        if self.problem:
            print(f"--- {self.suite.name} says:\n{self.log.rstrip()}")
        result = f"FAILED, {self.problem}" if self.problem else f"{self.passed} passed"
        word = "not ok" if self.problem else "ok"
        print(f"{word} - {self.suite.name}: {result}, {self.seconds:.0f} s,"
              f" processors {self.used:.1f} s", flush=True)


class Runner:
    def __init__(self, options):
        self.options = options
        self.running = set()
        self.lock = threading.Lock()
        self.is_stopped = False

    def start(self, suite, log):
        command = shlex.split(self.options.runner) + suite.command
        with self.lock:
            if self.is_stopped:
                raise OSError("stopped")
            # Start a process group, so that a kill also reaches the children. Do not start a
            # session: the first terminal that a test opens would become its controlling terminal.
            process = Program(
                command, cwd=suite.folder, env=suite.environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, process_group=0)
            self.running.add(process)
        return process

    def attempt(self, suite):
        begun = time.monotonic()
        with tempfile.TemporaryFile() as log:
            try:
                process = self.start(suite, log)
            except OSError as error:
                return Outcome(suite, "", f"cannot be started: {error}", 0)
            problem = self.wait(process, log)
            with self.lock:
                self.running.discard(process)
            log.seek(0)
            text = log.read().decode(errors="replace")
        if not problem and suite.is_harness and not re.search(r"^test result: ok", text, re.M):
            problem = "no result"
        return Outcome(suite, text, problem, time.monotonic() - begun, process.used)

    def wait(self, process, log):
        """Waits for the program. Returns a description of the problem, if there is one."""
        deadline = time.monotonic() + self.options.timeout
        said_at = None
        while True:
            try:
                return what_went_wrong(process.wait(GRACE))
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if said_at is None and has_said_result(log):
                said_at = now
            if said_at is not None and now > said_at + TIME_TO_END:
                end(process)
                return "did not exit after its result: killed"
            if now > deadline:
                end(process)
                return f"hung: killed after {self.options.timeout} s"

    def repeat(self, failed):
        """Runs failed tests again, with nothing in parallel, and returns the final outcome."""
        tests = failed.failed_tests()
        what = ", ".join(tests) if tests else "the whole program"
        print(f"again, alone - {failed.suite.name}: {what}", flush=True)
        outcome = self.attempt(failed.suite.only(tests) if tests else failed.suite)
        outcome.show()
        if not outcome.problem:
            note_flaky([f"{failed.suite.name} {test}" for test in tests] or [failed.suite.name])
        return outcome

    def run_all(self, suites, jobs):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(self.attempt, suite) for suite in suites]
            try:
                for done in concurrent.futures.as_completed(waiting):
                    outcome = done.result()
                    outcome.show()
                    yield outcome
            except KeyboardInterrupt:
                self.stop()
                os._exit(130)

    def stop(self):
        with self.lock:
            self.is_stopped = True
            for process in self.running:
                os.killpg(process.pid, signal.SIGKILL)


def note_flaky(names):
    for name in names:
        print(f"flaky - {name}: failed, then passed alone", flush=True)
    path = os.environ.get("FARBLOCK_FLAKY")
    if path:
        with open(path, "a", encoding="utf-8") as flaky:
            flaky.writelines(f"{name}\n" for name in names)


def has_said_result(log):
    size = os.fstat(log.fileno()).st_size
    last = os.pread(log.fileno(), 1000, max(0, size - 1000))
    return re.search(rb"^test result: .*\n\s*\Z", last, re.M) is not None


def what_went_wrong(code):
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}" if code else None


def end(process):
    """Stops a program and its children."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def built(path):
    """The suites that cargo's messages list."""
    suites = {}
    with open(path, encoding="utf-8") as messages:
        for line in messages:
            message = json.loads(line)
            if not message.get("executable") or not message["profile"]["test"]:
                continue
            folder = os.path.dirname(message["manifest_path"])
            target = message["target"]
            kind = target["kind"][0]
            name = f"{os.path.basename(folder)}/{target['name']}"
            if kind != "test":
                name += f" ({kind})"
            # Benches have another harness, which prints no result line.
            suites[name] = Suite(name, folder, [message["executable"]], kind != "bench")
    return suites


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("built", help="cargo's messages, in JSON")
    parser.add_argument("--jobs", type=int, default=2 * os.cpu_count(), help="suites in parallel")
    parser.add_argument("--timeout", type=int, default=900, help="seconds per suite")
    parser.add_argument("--runner", default="", help="command that starts each suite, such as wine")
    parser.add_argument("--only", default="*", help="run only suites that match, such as cli/*")
    parser.add_argument("--skip", action="append", default=[], help="do not run this suite")
    parser.add_argument("--with", dest="also", action="append", default=[],
                        metavar="NAME=COMMAND", help="another command to run in parallel")
    parser.add_argument("--args", default="", help="arguments of each program")
    return parser.parse_args()


def choose(options):
    """The suites that run in parallel, the longest first, and those that run alone."""
    suites = built(options.built)
    if not suites:
        misuse(f"{options.built} names no test program")
    for name in options.skip:
        if suites.pop(name, None) is None:
            misuse(f"there is no suite {name} to leave out")
        print(f"left out - {name}")
    suites = {name: suite for name, suite in suites.items() if fnmatch.fnmatch(name, options.only)}
    if not suites:
        misuse(f"no suite is called {options.only}")
    for suite in suites.values():
        suite.command += shlex.split(options.args)
    for also in options.also:
        name, _, command = also.partition("=")
        suites[name] = Suite(name, None, shlex.split(command), is_harness=False)
    rank = {name: place for place, name in enumerate(LONG)}
    together = [suite for name, suite in suites.items() if name not in ALONE]
    together.sort(key=lambda suite: rank.get(suite.name, len(rank)))
    return together, [suite for name, suite in suites.items() if name in ALONE]


def show_costliest(outcomes):
    """Names the suites that used the most processor time."""
    print("the costliest suites, in seconds of processor time:")
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.used)[:COSTLIEST]:
        print(f"{outcome.used:8.1f} {outcome.suite.name}")


def misuse(sentence):
    print(f"suites.py: {sentence}", file=sys.stderr)
    sys.exit(2)


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    together, alone = choose(options)
    runner = Runner(options)
    begun = time.monotonic()
    outcomes = [*runner.run_all(together, options.jobs), *runner.run_all(alone, 1)]
    repeated = [runner.repeat(outcome) for outcome in outcomes if outcome.problem]
    failed = [outcome.suite.name for outcome in repeated if outcome.problem]
    passed = sum(outcome.passed for outcome in outcomes + repeated)
    seconds = time.monotonic() - begun
    used = sum(outcome.used for outcome in outcomes + repeated)
    show_costliest(outcomes)
    print(f"{len(outcomes)} suites, {passed} tests passed,"
          f" {seconds:.0f} s, processors {used:.0f} s")
    if failed:
        print(f"{len(failed)} failed: {', '.join(sorted(failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
