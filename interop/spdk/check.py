"""check.py FARBLOCK SPDK-RPC FOLDER: see ../spdk-rpc.sh."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import parameters

FARBLOCK, CLIENT, FOLDER = sys.argv[1:]
NQN = "nqn.2016-06.io.spdk:cnode1"
OTHER = "nqn.2016-06.io.spdk:cnode2"
NGUID = "6F61C8A42C0F4D0E9D5B0D3B8F6A1C11"
HOST = "nqn.2014-08.org.nvmexpress:uuid:0f3a8b2c-0000-4000-8000-000000000001"
# The timeout in seconds, generous for busy machines.
PATIENCE = 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def path(name):
    return os.path.join(FOLDER, name)


def disk(name, size):
    with open(path(name), "wb") as file:
        file.truncate(size)
    return path(name)


class Target:
    """A farblock process with a socket for SPDK's clients."""

    def __init__(self, name, *more):
        self.socket, self.log = path(f"{name}.sock"), path(f"{name}.log")
        self.port = free_port()
        command = [FARBLOCK, "serve", "--no-control", "--spdk-rpc", self.socket,
                   "--listen", f"127.0.0.1:{self.port}", *more]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while "listening on" not in self.said():
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.02)

    def said(self):
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.said()
        assert not os.path.exists(self.socket)

    def rpc(self, *words, **more):
        """The official command's output, parsed if it is JSON."""
        done = subprocess.run([CLIENT, "-s", self.socket, *words], capture_output=True, text=True,
                              timeout=PATIENCE, **more)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        try:
            return json.loads(done.stdout)
        except ValueError:
            return done.stdout.strip()

    def refused(self, code, message, *words):
        """Checks that the official command is refused with this error."""
        done = subprocess.run([CLIENT, "-s", self.socket, *words], capture_output=True, text=True,
                              timeout=PATIENCE)
        said = done.stdout + done.stderr
        assert done.returncode == 1, f"{words}: {said}"
        error = json.loads(said[said.index("response:") + 9:])
        assert (error["code"], error["message"]) == (code, message), f"{words}: {error}"

    def call(self, method, params=None):
        """The complete answer to a request, a result or an error."""
        with Raw(self) as raw:
            request = {"jsonrpc": "2.0", "method": method, "id": 1}
            raw.send(json.dumps(request if params is None else {**request, "params": params}))
            return raw.answer()

    def url(self, nqn, nsid, port=None):
        return f"nvme+tcp://127.0.0.1:{port or self.port}/{nqn}?ns={nsid}"


class Raw:
    """A client that sends arbitrary bytes to the target's RPC socket."""

    def __init__(self, target):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(target.socket)
        self.bytes = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, text):
        self.socket.sendall(text.encode())

    def answer(self):
        while b"\n" not in self.bytes:
            more = self.socket.recv(1 << 16)
            if not more:
                break
            self.bytes += more
        first, _, self.bytes = self.bytes.partition(b"\n")
        return json.loads(first)

    def closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def write(url, data, offset=0):
    subprocess.run([FARBLOCK, "--quiet", "write", url, "--offset", str(offset)], input=data,
                   check=True, timeout=PATIENCE)


def read(url, length, offset=0):
    command = [FARBLOCK, "--quiet", "read", url, "--offset", str(offset), "--length", str(length)]
    return subprocess.run(command, check=True, timeout=PATIENCE, stdout=subprocess.PIPE).stdout


def noise(length):
    return os.urandom(length)


def parameters_are_the_packages():
    """farblock knows all of the package's parameters, with their types, and no others. The package
    always sends what farblock requires, and farblock requires what its command line requires."""
    with Target("parameters") as target:
        methods = target.rpc("rpc_get_methods", "--current")
        assert TUNING <= set(methods), TUNING - set(methods)
        methods = [one for one in methods if one not in TUNING]
        package = parameters.of_package(methods)
        assert len(package) >= 40, sorted(package)
        typed = 0
        for method, sent in sorted(package.items()):
            ours, names = known(target, method), set(sent.kinds)
            # SPDK's documents list parameters that the command line has no option for.
            extra = ours - names - UNSENT.get(method, set())
            assert not names - ours, f"{method} does not know {names - ours}"
            assert not extra, f"{method} knows {extra}, and the package does not"
            for name, kinds in sent.kinds.items():
                kind = kind_of(target, method, name)
                assert kind is None or kinds == {kind}, f"{method}: {name} is {kind}, not {kinds}"
                typed += kind is not None
            needed = needed_here(target, method, ours)
            unsent = needed - (sent.always or set())
            assert not unsent, f"{method} needs {unsent}, which the package may leave out"
            lax = {one for one in sent.needed & ours if one not in needed}
            assert lax <= OPTIONAL.get(method, set()), f"{method} does not need {lax}"
        assert typed > 100, typed
        print(f"parameters: those of {len(package)} methods are the package's, {typed} with types")


# Methods that tune components of SPDK that farblock lacks. farblock accepts any parameters there.
TUNING = {"bdev_nvme_set_options", "bdev_nvme_set_hotplug", "bdev_iscsi_set_options",
          "bdev_raid_set_options", "framework_set_scheduler", "fsdev_set_opts"}

# SPDK's parameters that its command line never sends, or not in the way that SPDK documents.
UNSENT = {
    "nvmf_create_transport": {"num_shared_buffers", "io_unit_size", "buf_cache_size"},
    "nvmf_subsystem_add_ns": {"namespace.hide_metadata"},
    "nvmf_subsystem_add_listener": {"numa_id"},
}


# Parameters that the command line requires but farblock does not.
OPTIONAL = {}

# The types in serde's messages, as JSON types.
EXPECTED = (("a sequence", "array"), ("boolean", "boolean"), ("string", "string"),
            ("UUID", "string"), (r"[ui]\d+", "number"), ("struct", "object"))


def kind_of(target, method, name):
    """The type that farblock requires of a parameter; None if it accepts any."""
    params = {}
    outer, _, inner = name.rpartition(".")
    params[outer or inner] = {inner: {}} if outer else {}
    error = target.call(method, params).get("error", {})
    said = re.search(r"invalid type: map, expected (.*)", error.get("data") or "")
    if not said:
        return None
    kinds = [kind for words, kind in EXPECTED if re.search(words, said[1])]
    assert kinds, f"{method}: {name}: {error}"
    return kinds[0]


def needed_here(target, method, names):
    """The parameters that farblock requires for a method."""
    values = {"number": 1, "string": "x", "boolean": True, "array": [], "object": {}, None: "x"}
    outer_of = {one.split(".")[1]: one.split(".")[0] for one in names if "." in one}
    params, needed = {}, set()
    for _ in range(16):
        error = target.call(method, params).get("error", {})
        said = re.search(r"missing field `(\w+)`", error.get("data") or "")
        if not said:
            return needed
        name, outer = said[1], outer_of.get(said[1])
        if outer:
            needed.add(f"{outer}.{name}")
            params.setdefault(outer, {})[name] = values[kind_of(target, method, f"{outer}.{name}")]
        elif name in outer_of.values():
            params[name] = {}
        else:
            needed.add(name)
            params[name] = values[kind_of(target, method, name)]
    raise AssertionError(f"{method} needs {needed}, and something else")


def known(target, method, prefix=""):
    """The parameters of a method, from farblock's answer to an unknown parameter."""
    params = {"nope": 1}
    for part in reversed(prefix.split(".")[:-1]):
        params = {part: params}
    error = target.call(method, params)["error"]
    if "requires no" in error["message"]:
        return set()
    said = error["data"]
    assert "unknown field `nope`" in said, f"{method}: {error}"
    names = set(re.findall(r"`(\w+)`", said.split("expected", 1)[1]))
    found = set()
    for name in names:
        if name in ("listen_address", "address", "namespace") and not prefix:
            found |= {f"{name}.{inner}" for inner in known(target, method, f"{name}.")}
        else:
            found.add(name)
    return found


def everything_is_made_used_and_saved():
    """Disks that the official client makes are used by farblock's host, saved, and loaded again."""
    image = disk("aio.img", 16 << 20)
    bases = [disk(name, 8 << 20) for name in ("left.img", "right.img")]
    port = free_port()
    with Target("first") as target:
        rpc = target.rpc
        assert rpc("spdk_get_version")["fields"]["major"] == 26
        assert rpc("nvmf_get_transports") == []
        target.refused(-32602, "Subsystem with NQN 'nqn.x' not found",
                       "nvmf_subsystem_add_listener", "nqn.x", "-t", "tcp", "-a", "127.0.0.1",
                       "-s", str(port))
        rpc("nvmf_create_transport", "-t", "TCP")
        target.refused(-32602, "Transport type 'TCP' already exists",
                       "nvmf_create_transport", "-t", "TCP")
        assert rpc("bdev_malloc_create", "8", "512", "-b", "M0") == "M0"
        assert rpc("bdev_malloc_create", "8", "4096") == "Malloc0"
        assert rpc("bdev_null_create", "N0", "64", "512") == "N0"
        assert rpc("bdev_aio_create", image, "A0", "512") == "A0"
        assert rpc("bdev_uring_create", bases[0], "L", "512") == "L"
        assert rpc("bdev_aio_create", bases[1], "R", "512") == "R"
        rpc("bdev_raid_create", "-n", "Raid", "-z", "64", "-r", "raid0", "-b", "L R")
        assert not rpc("bdev_get_bdevs", "-b", "M0")[0]["claimed"]
        rpc("nvmf_create_subsystem", NQN, "-s", "SPDK001", "-d", "model", "-m", "8")
        rpc("nvmf_create_subsystem", OTHER, "-a", "--ana-reporting")
        add = "nvmf_subsystem_add_ns"
        rpc(add, NQN, "M0")
        rpc(add, NQN, "A0", "-n", "5", "--nguid", NGUID)
        rpc(add, NQN, "Raid")
        rpc(add, OTHER, "Malloc0", "--anagrpid", "3")
        shared = {one["nqn"]: one.get("namespaces") for one in rpc("nvmf_get_subsystems")}
        ids = [(one["nsid"], one["bdev_name"]) for one in shared[NQN]]
        assert ids == [(1, "M0"), (2, "Raid"), (5, "A0")], ids
        assert shared[OTHER][0]["anagrpid"] == 3
        nguids = [one["nguid"] for one in shared[NQN]]
        assert nguids[2] == NGUID and len(set(nguids)) == 3, nguids
        seen_by_some(target)
        for nqn in (NQN, OTHER):
            rpc("nvmf_subsystem_add_listener", nqn, "-t", "tcp", "-a", "127.0.0.1", "-s", str(port))
        rpc("nvmf_subsystem_add_host", NQN, HOST)
        reached_and_limited(target, port)
        denied = subprocess.run([FARBLOCK, "read", target.url(NQN, 1, port), "--length", "512"],
                                capture_output=True, timeout=PATIENCE)
        assert denied.returncode != 0
        rpc("nvmf_subsystem_allow_any_host", NQN, "--allow-any-host")
        data = noise(1 << 20)
        for nsid in (1, 2, 5):
            write(target.url(NQN, nsid, port), data, offset=512 * nsid)
            assert read(target.url(NQN, nsid, port), len(data), offset=512 * nsid) == data
        used_and_counted(target, port)
        kept_while_unused(target, data, port)
        saved = json.dumps(rpc("save_config"))
        seen = rpc("nvmf_get_subsystems")
        assert "\n" not in saved and HOST in json.dumps(seen)
    with Target("second") as target:
        target.rpc("load_config", input=saved)
        loaded = target.rpc("nvmf_get_subsystems")
        assert loaded == seen, f"{loaded}\n{seen}"
        assert json.dumps(target.rpc("save_config")) == saved
        for nsid in (2, 5):
            assert read(target.url(NQN, nsid, port), len(data), offset=512 * nsid) == data
    spdk_lays_out_the_same(data, bases)
    print("made, used, saved, loaded: the same subsystems, the same data")


def seen_by_some(target):
    """A namespace that only named hosts see; it is saved and loaded, too."""
    rpc = target.rpc
    rpc("bdev_malloc_create", "1", "512", "-b", "Hidden")
    rpc("nvmf_subsystem_add_ns", OTHER, "Hidden", "-n", "9", "--no-auto-visible")

    def seen_by():
        shown = [one for one in rpc("nvmf_get_subsystems", OTHER)[0]["namespaces"]
                 if one["nsid"] == 9]
        assert shown[0]["no_auto_visible"]
        return [one["nqn"] for one in shown[0]["hosts"]]

    assert seen_by() == []
    rpc("nvmf_ns_add_host", OTHER, "9", HOST)
    assert seen_by() == [HOST]
    rpc("nvmf_ns_remove_host", OTHER, "9", HOST)
    assert seen_by() == []
    for nsid, host in ((9, HOST), (1, HOST), (7, HOST)):
        target.refused(-32602, "Invalid parameters", "nvmf_ns_remove_host", OTHER, str(nsid), host)
    target.refused(-32602, "Invalid parameters", "nvmf_ns_add_host", OTHER, "9", "nqn.bad")
    rpc("nvmf_ns_add_host", OTHER, "9", HOST)


def reached_and_limited(target, port):
    """ANA states of a listener and limits of a bdev; they are saved and loaded, too."""
    rpc = target.rpc
    where = ["-t", "tcp", "-a", "127.0.0.1", "-s", str(port)]
    set_state = ["nvmf_subsystem_listener_set_ana_state", NQN, *where]

    def states(nqn):
        [listener] = rpc("nvmf_subsystem_get_listeners", nqn)
        return {one["ana_group"]: one["ana_state"] for one in listener["ana_states"]}

    assert states(OTHER) == {1: "optimized", 3: "optimized"}
    rpc(*set_state, "-n", "inaccessible", "-g", "3")
    rpc(*set_state, "-n", "non_optimized", "-g", "9")
    assert states(OTHER) == {1: "optimized", 3: "inaccessible"}
    target.refused(-32602, "Invalid parameters", *set_state, "-n", "optimized", "-g", "129")
    # First for all groups, then for a group without namespaces.
    rpc(*set_state, "-n", "optimized")
    assert states(OTHER) == {1: "optimized", 3: "optimized"}
    rpc(*set_state, "-n", "non_optimized", "-g", "9")

    def limits(name):
        return tuple(rpc("bdev_get_bdevs", "-b", name)[0]["assigned_rate_limits"].values())

    set_limit = ["bdev_set_qos_limit", "M0"]
    rpc(*set_limit, "--rw-ios-per-sec", "1000000", "--r-mbytes-per-sec", "4000")
    rpc(*set_limit, "--w-mbytes-per-sec", "5000")
    assert sorted(limits("M0")) == [0, 4000, 5000, 1000000], limits("M0")
    rpc(*set_limit, "--rw-ios-per-sec", "0")
    assert sorted(limits("M0")) == [0, 0, 4000, 5000], limits("M0")
    # A limit for a bdev without a namespace applies once a namespace uses it.
    rpc("bdev_set_qos_limit", "N0", "--rw-mbytes-per-sec", "7")
    rpc("nvmf_subsystem_add_ns", OTHER, "N0", "-n", "7")
    assert sorted(limits("N0")) == [0, 0, 0, 7]
    rpc("nvmf_subsystem_remove_ns", OTHER, "7")
    assert sorted(limits("N0")) == [0, 0, 0, 7]


def used_and_counted(target, port):
    """Checks that the target counts the I/O of hosts."""
    counted = {one["name"]: one for one in target.rpc("bdev_get_iostat")["bdevs"]}
    wrote = [counted[name]["bytes_written"] for name in ("M0", "A0", "Raid", "N0")]
    assert wrote == [1 << 20] * 3 + [0], wrote
    url = target.url(OTHER, 1, port)
    before = target.rpc("bdev_get_iostat", "--names", "Malloc0")["bdevs"][0]["bytes_written"]
    write(url, noise(65536))
    after = target.rpc("bdev_get_iostat", "--names", "Malloc0")["bdevs"][0]["bytes_written"]
    assert after - before == 65536, f"{before} {after}"
    assert any(one["name"] == "spdk-rpc" for one in target.rpc("thread_get_stats")["threads"])
    assert target.rpc("nvmf_get_stats")["poll_groups"][0]["completed_nvme_io"] > 0
    reader = subprocess.Popen([FARBLOCK, "--quiet", "write", url], stdin=subprocess.PIPE)
    end = time.monotonic() + PATIENCE
    while not target.rpc("nvmf_subsystem_get_controllers", OTHER):
        assert time.monotonic() < end
    controller = target.rpc("nvmf_subsystem_get_controllers", OTHER)[0]
    qpairs = target.rpc("nvmf_subsystem_get_qpairs", OTHER)
    assert {one["cntlid"] for one in qpairs} == {controller["cntlid"]}
    reader.communicate()


def kept_while_unused(target, data, port):
    """A RAM disk keeps its data while no namespace uses it."""
    target.rpc("nvmf_subsystem_remove_ns", NQN, "1")
    assert not target.rpc("bdev_get_bdevs", "-b", "M0")[0]["claimed"]
    target.rpc("nvmf_subsystem_add_ns", NQN, "M0", "-n", "1")
    assert read(target.url(NQN, 1, port), len(data), offset=512) == data


def spdk_lays_out_the_same(data, bases):
    """RAID 0 distributes strips in turn, as SPDK does: farblock's host wrote at byte 1024."""
    whole = bytearray()
    parts = [open(name, "rb").read() for name in bases]
    for strip in range(20):
        start = strip // 2 * 65536
        whole += parts[strip % 2][start:start + 65536]
    assert bytes(whole[1024:1024 + len(data)]) == data


def keys_come_back_with_their_hosts():
    """A host is saved with its key file, and needs the key after loading."""
    secret, tls, other = (path(name) for name in ("dhchap.key", "tls.key", "other.key"))
    for kind, name in ((["--tls"], tls), ([], secret), ([], other)):
        subprocess.run([FARBLOCK, "keys", "new", *kind, "--output", name], check=True,
                       timeout=PATIENCE, stdout=subprocess.DEVNULL)
    port, strict = free_port(), free_port()

    def comes_in(at, nqn, *keys):
        url = f"nvme+tcp://127.0.0.1:{at}/{nqn}?ns=1&hostnqn={HOST}"
        command = ["timeout", "20", FARBLOCK, "--quiet", "read", url, "--length", "512", *keys]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0

    def judge():
        assert comes_in(port, NQN, "--dhchap-secret", secret)
        assert not comes_in(port, NQN) and not comes_in(port, NQN, "--dhchap-secret", other)
        assert comes_in(strict, OTHER, "--tls-key", tls) and not comes_in(strict, OTHER)

    with Target("keyed") as target:
        rpc = target.rpc
        rpc("nvmf_create_transport", "-t", "TCP")
        for name, file in (("secret", secret), ("own", other), ("psk", tls)):
            rpc("keyring_file_add_key", name, file)
        target.refused(-17, "File exists", "keyring_file_add_key", "psk", tls)
        target.refused(-1, "Operation not permitted", "keyring_file_add_key", "x", "tls.key")
        target.refused(-2, "No such file or directory", "keyring_file_add_key", "x", path("none"))
        target.refused(-126, "Required key not available", "keyring_file_remove_key", "x")
        for nqn, name in ((NQN, "M0"), (OTHER, "M1")):
            rpc("bdev_malloc_create", "1", "512", "-b", name)
            rpc("nvmf_create_subsystem", nqn)
            rpc("nvmf_subsystem_add_ns", nqn, name)
        add = ["nvmf_subsystem_add_host", NQN, HOST]
        target.refused(-32602, "Invalid parameters", *add, "--dhchap-key", "x")
        target.refused(-32603, "Internal error", *add, "--dhchap-ctrlr-key", "own")
        rpc(*add, "--dhchap-key", "secret", "--dhchap-ctrlr-key", "own")
        rpc("nvmf_subsystem_add_host", OTHER, HOST, "--psk", "psk")
        listen = ["-t", "tcp", "-a", "127.0.0.1", "-s"]
        rpc("nvmf_subsystem_add_listener", NQN, *listen, str(port))
        rpc("nvmf_subsystem_add_listener", OTHER, *listen, str(strict), "--secure-channel")
        judge()
        given_other_keys(target, lambda key: comes_in(port, NQN, "--dhchap-secret", key),
                         {"secret": secret, "own": other})
        judge()
        saved = json.dumps(rpc("save_config"))
        seen = rpc("nvmf_get_subsystems"), rpc("keyring_get_keys")
        everything = saved + json.dumps(seen) + target.said()
        for file in (secret, tls, other):
            with open(file, encoding="utf-8") as text:
                assert re.search(r":([\w+/=]{40,}):", text.read())[1] not in everything
    with Target("keyed-again") as target:
        target.rpc("load_config", input=saved)
        assert (target.rpc("nvmf_get_subsystems"), target.rpc("keyring_get_keys")) == seen
        assert json.dumps(target.rpc("save_config")) == saved
        judge()
    print("keys: added from files, saved, loaded, and required")


def given_other_keys(target, comes_in, files):
    """A listed host gets other keys, and then its old ones again."""
    keys = ["nvmf_subsystem_set_keys", NQN, HOST]
    target.refused(-22, "Invalid argument", *keys, "--dhchap-ctrlr-key", "own")
    target.refused(-22, "Invalid argument", "nvmf_subsystem_set_keys", NQN, "nqn.2026-11.h:none")
    target.refused(-32602, "Invalid parameters", *keys, "--dhchap-key", "x")
    target.rpc(*keys, "--dhchap-key", "own")
    assert comes_in(files["own"]) and not comes_in(files["secret"])
    target.rpc(*keys, "--dhchap-key", "secret", "--dhchap-ctrlr-key", "own")


def errors_are_spdks():
    """Error numbers and messages that clients match."""
    image = disk("errors.img", 1 << 20)
    nothing = "No such device"
    invalid = "Invalid parameters"
    undecoded = "spdk_json_decode_object failed"
    with Target("errors") as target:
        rpc, refused = target.rpc, target.refused
        for kind in ("malloc", "null", "aio", "uring"):
            refused(-19, nothing, f"bdev_{kind}_delete", "Nope")
        refused(-19, "raid bdev Nope not found", "bdev_raid_delete", "Nope")
        refused(-19, nothing, "bdev_get_bdevs", "-b", "Nope")
        refused(-19, nothing, "bdev_get_iostat", "--names", "Nope")
        rpc("bdev_malloc_create", "1", "512", "-b", "M0")
        refused(-19, nothing, "bdev_aio_delete", "M0")
        refused(-17, "File exists", "bdev_malloc_create", "1", "512", "-b", "M0")
        refused(-22, "Invalid argument", "bdev_malloc_create", "1", "520")
        refused(-2, "No such file or directory", "bdev_aio_create", path("no.img"), "A", "512")
        refused(-22, "Invalid argument", "bdev_aio_create", image, "A")
        rpc("bdev_aio_create", image, "A", "512")
        refused(-16, "Device or resource busy", "bdev_aio_create", image, "B", "512")
        raid = ["bdev_raid_create", "-n", "Raid", "-z", "64", "-r", "raid0", "-b"]
        refused(-19, "Failed to create RAID bdev Raid: No such device", *raid, "M0 Nope")
        refused(-22, "Failed to create RAID bdev Raid: Invalid argument", *raid, "M0 M0")
        rpc("nvmf_create_subsystem", NQN, "-a", "-m", "1")
        refused(-32603, f"Unable to create subsystem {NQN}", "nvmf_create_subsystem", NQN)
        long = "nqn.2016-06.io.spdk:" + "x" * 250
        refused(-32603, f"Unable to create subsystem {long}", "nvmf_create_subsystem", long)
        refused(-32602, invalid, "nvmf_create_subsystem", OTHER, "-s", "x" * 21)
        refused(-32602, invalid, "nvmf_subsystem_add_ns", NQN, "Nope")
        refused(-32602, invalid, "nvmf_subsystem_add_ns", NQN, "M0", "-n", "2")
        refused(-32602, invalid, "nvmf_subsystem_add_ns", NQN, "M0", "--anagrpid", "129")
        rpc("nvmf_subsystem_add_ns", NQN, "M0")
        refused(-32602, invalid, "nvmf_subsystem_add_ns", NQN, "M0")
        refused(-1, "Failed to create RAID bdev Raid: Operation not permitted", *raid, "M0")
        refused(-32602, invalid, "nvmf_subsystem_remove_ns", NQN, "7")
        refused(-32602, f"Subsystem with NQN '{OTHER}' not found", "nvmf_delete_subsystem", OTHER)
        address = ["-t", "tcp", "-a", "127.0.0.1", "-s", str(target.port)]
        listen = ["nvmf_subsystem_add_listener", NQN, *address]
        refused(-32602, invalid, *listen)
        rpc("nvmf_create_transport", "-t", "tcp")
        rpc(*listen)
        refused(-32602, invalid, *listen)
        refused(-32602, invalid, *listen[:-2], "-s", "x")
        unknown = ["nvmf_create_transport", "-t", "vfiouser"]
        refused(-32602, "Invalid transport type 'vfiouser'", *unknown)
        rpc("nvmf_subsystem_remove_listener", NQN, *address)
        refused(-32602, invalid, "nvmf_subsystem_remove_listener", NQN, *address)
        refused(-32602, invalid, "nvmf_subsystem_remove_host", NQN, HOST)
        refused(-32601, "Method not found", "bdev_lvol_get_lvstores")
        refused(-19, nothing, "bdev_set_qos_limit", "Nope", "--rw-ios-per-sec", "1000")
        refused(-22, "Invalid argument", "bdev_set_qos_limit", "M0")
        refused(-22, "Invalid argument", "bdev_set_qos_limit", "M0", "--r-mbytes-per-sec",
                str(1 << 50))
        state = ["nvmf_subsystem_listener_set_ana_state", NQN, *address, "-n", "inaccessible"]
        refused(-32602, invalid, *state)
        assert target.call("framework_start_init")["error"]["code"] == -1
        for method, code, words in (("bdev_malloc_create", -32603, undecoded),
                                    ("bdev_raid_create", -32700, undecoded),
                                    ("nvmf_create_subsystem", -32602, invalid)):
            error = target.call(method, {"name": {}, "nqn": 7})["error"]
            assert (error["code"], error["message"]) == (code, words), error
        rpc("bdev_malloc_delete", "M0")
        assert rpc("nvmf_get_subsystems")[1]["namespaces"] == []
    print("errors: farblock answers with SPDK's numbers and texts")


def removal_under_load():
    """Deletes a bdev while a host writes to it. The host of another bdev must not notice."""
    port = free_port()
    with Target("removal") as target:
        rpc = target.rpc
        rpc("nvmf_create_transport", "-t", "TCP")
        for nqn, name in ((NQN, "Goes"), (OTHER, "Stays")):
            rpc("bdev_malloc_create", "64", "512", "-b", name)
            rpc("nvmf_create_subsystem", nqn, "-a")
            rpc("nvmf_subsystem_add_ns", nqn, name)
            rpc("nvmf_subsystem_add_listener", nqn, "-t", "tcp", "-a", "127.0.0.1", "-s", str(port))
        ended = {}
        stop = threading.Event()

        def load(nqn):
            data = noise(4 << 20)
            while not stop.is_set():
                # If a host finds no namespace when it reconnects, it waits until the namespace
                # returns.
                command = ["timeout", "10", FARBLOCK, "--quiet", "write", target.url(nqn, 1, port)]
                done = subprocess.run(command, input=data, capture_output=True)
                ended.setdefault(nqn, []).append(done.returncode)
                if done.returncode:
                    return

        loads = [threading.Thread(target=load, args=(nqn,)) for nqn in (NQN, OTHER)]
        for one in loads:
            one.start()
        count(lambda: len(ended.get(NQN, [])) > 1 and len(ended.get(OTHER, [])) > 1)
        rpc("bdev_malloc_delete", "Goes")
        loads[0].join(PATIENCE)
        assert ended[NQN][-1] != 0
        before = len(ended[OTHER])
        count(lambda: len(ended[OTHER]) > before + 1)
        rpc("nvmf_delete_subsystem", NQN)
        stop.set()
        loads[1].join(PATIENCE)
        assert set(ended[OTHER]) == {0}
        assert [one["name"] for one in rpc("bdev_get_bdevs")] == ["Stays"]
    print("removal: a bdev is deleted under load, and the other bdev's host continues")


def count(is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def broken_clients_are_answered_once():
    """An invalid request gets one error, and does not affect other clients."""
    with Target("broken") as target:
        silent = [Raw(target) for _ in range(16)]
        for one in silent:
            one.send('{"jsonrpc": "2.0", "id": 1, "method": "')
        for text in ("GET / HTTP/1.1\r\n", "7", "[" * 33, '["' + "x" * (1 << 18)):
            with Raw(target) as raw:
                raw.send(text)
                error = raw.answer()["error"]
                assert error["code"] == -32700 and error["data"], error
                assert raw.closed()
        with Raw(target) as raw:
            raw.send('{"jsonrpc":"2.0","id":1,"method":"nope"}{"id":2,"method":"spdk_get_version"}')
            raw.send('[{"id":3,"method":"spdk_get_version"},{"method":"spdk_get_version"}]{]')
            assert raw.answer()["error"]["message"] == "Method not found"
            assert raw.answer()["id"] == 2
            assert [one["id"] for one in raw.answer()] == [3]
        # A client that sends requests and never reads fills only its own socket.
        deaf = Raw(target)
        deaf.socket.settimeout(1)
        try:
            while True:
                deaf.send('{"id": 1, "method": "rpc_get_methods"}' * 100)
        except TimeoutError:
            pass
        assert target.rpc("spdk_get_version")["fields"]["minor"] == 9
        resident = [line for line in open(f"/proc/{target.process.pid}/status") if "VmRSS" in line]
        assert int(resident[0].split()[1]) < 256 << 10, resident
        for one in [*silent, deaf]:
            one.socket.close()
    print("broken clients: one error each")


def main():
    parameters_are_the_packages()
    errors_are_spdks()
    everything_is_made_used_and_saved()
    keys_come_back_with_their_hosts()
    removal_under_load()
    broken_clients_are_answered_once()


main()
