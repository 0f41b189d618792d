"""The parameters that SPDK's package knows of each method, found by calling it."""

import argparse
import contextlib
import io
import types

# Values to try for any option. The first value that the option's parser accepts is used.
VALUES = ["1", "raid0", "tcp", "127.0.0.1", "none", "optimized", "16", "x",
          "6f5b1a52-8a53-4f5b-9c0e-1f2f00000001", "all", "sha256", "0x1"]


class Recorder:
    """A client that records the parameters instead of sending them."""

    def __init__(self):
        self.calls = []

    def call(self, method, params=None):
        self.calls.append((method, params or {}))
        return []

    def __getattr__(self, name):
        return lambda **params: self.call(name, {k: v for k, v in params.items() if v is not None})


# JSON's names for the types of values.
KINDS = {bool: "boolean", int: "number", str: "string", list: "array", tuple: "array"}


class Parameters:
    """The package's parameters of a method: types by name; nested names contain dots."""

    def __init__(self):
        self.kinds = {}
        # The parameters that the client always sends, and those that its command line requires.
        self.always, self.needed = None, set()

    def saw(self, params):
        sent = {}
        for name, value in params.items():
            if isinstance(value, dict) and name in ("listen_address", "address", "namespace"):
                sent |= {f"{name}.{inner}": it for inner, it in value.items()}
            else:
                sent[name] = value
        for name, value in sent.items():
            self.kinds.setdefault(name, set()).add(KINDS.get(type(value), "object"))
        self.always = set(sent) if self.always is None else self.always & set(sent)


def words(action):
    """Ways to pass one argument on a command line."""
    option = list(action.option_strings[-1:])
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return [option]
    values = list(action.choices) if action.choices else VALUES
    return [option + [str(value)] for value in values]


def recorded(parser, argv):
    """The parameters that this command line would send; None if it is invalid."""
    client = Recorder()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            args = parser.parse_args(argv)
            args.client = client
            args.func(args)
    except (SystemExit, Exception):
        return None
    return client.calls


def of_method(parser, method, command):
    """All parameters that the package can send with a method."""
    actions = [one for one in command._actions if one.dest != "help"]
    needed = [one for one in actions if one.required or not one.option_strings]
    groups = [group._group_actions for group in command._mutually_exclusive_groups
              if group.required]
    base = []
    for action in needed:
        base += next((way for way in words(action)
                      if action.choices or _accepts(action, way)), words(action)[0])
    for group in groups:
        if not any(action in needed for action in group):
            base += words(group[0])[0]
    found, tried = Parameters(), 0
    for action in [None] + [one for one in actions if one not in needed]:
        for way in [[]] if action is None else words(action):
            calls = recorded(parser, [method] + base + way)
            if calls:
                tried += 1
                for name, params in calls:
                    if name == method:
                        found.saw(params)
                break
    assert tried, f"no command line for {method} was found: {base}"
    found.needed = {one.dest for one in needed if one.nargs not in ("?", "*")}
    return found


def _accepts(action, way):
    try:
        if action.type:
            action.type(way[-1])
        return True
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False


def of_package(methods):
    """The parameters of these methods, by method."""
    from spdk import cli, spdk_rpc

    parser, subparsers = spdk_rpc.create_parser()
    for module in vars(cli).values():
        if isinstance(module, types.ModuleType):
            for name in ("print_dict", "print_json", "print_array"):
                setattr(module, name, lambda _: None)
    commands = subparsers.choices
    return {one: of_method(parser, one, commands[one]) for one in methods if one in commands}
