"""Processes that begin with the package loaded: `capacity` and `python -c` of the handbook, hundreds of times.

A server loads the package and runs nothing. Asked for a command it forks, and the fork takes the asker's folder,
environment and streams, and ends as a process of its own ends. `python warm_process.py SOCKET` is the server.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY, READY_LINE = b"r", b"ready\n"
SHIM = "#!{python} -SI\nimport sys\nsys.path.insert(0, {tests!r})\nimport warm_process\n"
SHIM += "sys.exit(warm_process.ask({address!r}, ['capacity', *sys.argv[1:]], (0, 1, 2)))\n"


def ask(address: str, words: Sequence[str], streams: Sequence[int], folder: str | None = None) -> int:
    """The exit code of a process with these words (`capacity ...`, or `-c` and a text) on these descriptors."""
    asked = {"words": [*words], "folder": folder or str(Path.cwd()), "environment": dict(os.environ)}
    message = json.dumps(asked).encode("utf-8", "surrogateescape")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [READY], [*streams])
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        return int(connection.makefile().read() or 70)


@contextmanager
def warm_server(folder: Path) -> Iterator[Path]:
    """Put a `capacity` that begins loaded and the server's address into a folder, while the server runs."""
    with tempfile.TemporaryDirectory() as short:  # an address has at most 107 characters
        address, shim = f"{short}/server", folder / "capacity"
        shim.write_text(SHIM.format(python=sys.executable, tests=str(Path(__file__).parent), address=address))
        shim.chmod(0o755)
        (folder / "address").write_text(address)
        program = [sys.executable, __file__, address]
        with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == READY_LINE
            yield folder
            os.killpg(server.pid, signal.SIGKILL)


def run_code(code: str, folder: Path, warm: Path) -> str:
    """Return what Python prints for a text, in a process that begins loaded; it must exit with 0."""
    with (
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryFile() as said,
        Path(os.devnull).open() as nothing,
    ):
        streams = [stream.fileno() for stream in (nothing, printed, said)]
        ended = ask((warm / "address").read_text(), ["-c", code], streams, str(folder))
        texts = []
        for stream in (printed, said):
            stream.seek(0)
            texts.append(stream.read().decode())
    assert ended == 0, "\n".join((code, *texts))
    return texts[0]


def _load() -> None:
    """Every module of the package, and every verb's flags; no command is run, so that nothing is answered already."""
    import contextlib
    import importlib
    import pkgutil

    from typer.main import get_command

    import capacity
    from capacity.cli.main import app

    own = [module.name for module in pkgutil.walk_packages(capacity.__path__, "capacity.")]
    for name in (
        *own,
        "numpy.random",
        "plotly.graph_objects",
        "plotly.subplots",
        "rich.table",
        "matplotlib.pyplot",
    ):
        with contextlib.suppress(ImportError):  # what is not installed is missed where it is used
            importlib.import_module(name)
    for verb, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        command.make_context(verb, [], resilient_parsing=True)


def _serve(address: str) -> int:
    """Fork for each that asks; the code of its process is the answer. Returns in each fork alone."""
    import selectors

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listening:
                connection = listening.accept()[0]
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                asked = json.loads(connection.makefile(encoding="utf-8", errors="surrogateescape").read())
                child = os.fork()
                if not child:
                    waiting.close()
                    listening.close()
                    connection.close()
                    return _become(streams, **asked)
                for stream in streams:
                    os.close(stream)
                waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, connection))
            else:
                child, connection = key.data
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with connection:
                    connection.sendall(str(code if code >= 0 else 128 - code).encode())


def _become(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> int:
    """The process that was asked for."""
    import types

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.environ["PATH"] = os.pathsep.join(
        (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    )
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, "r" if number == 0 else "w") for number in (0, 1, 2)
    )
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c"], ""
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
        _end()
    from capacity.__main__ import main as command

    sys.argv = words
    del sys.path[0]
    try:
        command()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _end(end.code or 0)
        raise
    return 0


def _end(code: int = 0) -> None:
    """End with 0 as an interpreter ends, without taking every loaded module apart (half a second of CPU time)."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # waits for other threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _load()
    sys.exit(_serve(sys.argv[1]))
