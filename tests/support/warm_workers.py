"""Ray's worker processes, forked from one that has imported torch: a fresh one spends two seconds of a core on that.

One server forks for all processes of a run of the tests; it imports with the first request. This project and Ray are
imported by each worker itself; Ray reads the environment of its session meanwhile, and a worker of a server that had
imported Ray died now and then. A worker's arguments, environment, folder, streams and module path are those that Ray
gives it. Only, it is no child of Ray's: where tests look at the processes of a command, Ray starts its workers itself.

As the file that Ray runs for a worker, also where it has an environment to set up first, this one hands the request
over to the server and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

ADDRESS = "TESTS_WARM_WORKERS"  # the variable with the server's address
MODULES = ("torch", "zarr", "pydantic", "safetensors.torch", "requests", "jsonschema", "yaml", "google.protobuf")
TRAINING = ("pyarrow", "pandas", "torch.distributed", "torch._dynamo")  # the last with DistributedDataParallel
PIECE = 1 << 16  # bytes that are read at once
END = b"\n"
STREAMS = (0, 1, 2)
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="  # what Ray tells the file that sets up


class WarmWorkers:
    """The server, from `start` until `stop` or the end of this process."""

    def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ll")
        os.environ[ADDRESS] = str(Path(self._folder) / "requests")
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "serve", os.environ[ADDRESS]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b".", "it listens"

    def stop(self) -> None:
        self._process.communicate()
        del os.environ[ADDRESS]
        shutil.rmtree(self._folder)


@contextlib.contextmanager
def warm_workers() -> Iterator[None]:
    """A Ray that this process starts within the block has its workers forked."""
    from ray._private.parameter import RayParams

    plain = RayParams.update_if_absent

    def update_if_absent(self: object, **given: object) -> None:
        plain(self, **given | {name: __file__ for name in ("worker_path", "setup_worker_path") if name in given})

    RayParams.update_if_absent = update_if_absent
    try:
        yield
    finally:
        RayParams.update_if_absent = plain


def serve(address: str) -> None:
    """Fork a worker for each request, until the process that started this one closes its end of stdin."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: Ray knows them by their ids
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b".")
        while 0 not in (ready := select.select([listening, 0], [], [])[0]):
            asking, _ = listening.accept()
            with asking:
                received, streams, _, _ = socket.recv_fds(asking, PIECE, len(STREAMS))
                while piece := asking.recv(PIECE):
                    received += piece
            if is_whole(received):
                request = json.loads(received)
                import_all(MODULES)
                if any(name.startswith("RAY_TRAIN") for name in request["environment"]):
                    import_all(TRAINING)
                if os.fork() == 0:
                    break
            for each in streams:
                os.close(each)
    if 0 not in ready:
        become_worker(request, streams)


def is_whole(received: bytes) -> bool:
    """Whether the request was sent to its end; who asks may be killed meanwhile."""
    return received.endswith(END)


def import_all(names: Sequence[str]) -> None:
    if not set(names) <= sys.modules.keys():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in names:
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a worker leaves the pages shared


def become_worker(request: dict, streams: Sequence[int]) -> None:
    """Run Ray's own file of a worker as `python FILE ARGUMENTS` does."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    file = str(Path(ray.origin).parent / "_private" / "workers" / "default_worker.py")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()  # as Ray has it of each worker, whose group it ends with it
    for number, each in zip(STREAMS, streams, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[:] = [file, *request["arguments"]]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    sys.path[:] = [str(Path(file).parent), *request["path"]]
    runpy.run_path(file, run_name="__main__")


def ask() -> None:
    """Have a worker forked with the arguments and the environment of this process."""
    arguments = set_up(sys.argv[1:])
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS}
    request = {"arguments": arguments, "environment": environment, "folder": os.getcwd(), "path": sys.path[1:]}
    message = json.dumps(request).encode() + END
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[ADDRESS])
        sent = socket.send_fds(server, [message], STREAMS)
        server.sendall(message[sent:])


def set_up(arguments: list[str]) -> list[str]:
    """The arguments of the worker alone, once this process has the environment that they ask for.

    What Ray does in a process of its own, which imports Ray for that; a folder is entered by a shell there and here.
    """
    if arguments[0] != __file__:  # which Ray's own process would run
        return arguments
    rest = [each for each in arguments[1:] if not each.startswith((CONTEXT, LANGUAGE))]
    for asked in (each.removeprefix(CONTEXT) for each in arguments if each.startswith(CONTEXT)):
        context = json.loads(asked)
        assert context["py_executable"] == sys.executable
        assert not context["override_worker_entrypoint"]
        for name, value in context["env_vars"].items():
            os.environ[name] = os.path.expandvars(value)
        if context["command_prefix"]:
            command = shlex.join([sys.executable, __file__, *rest])
            os.execvp("bash", ["bash", "-c", " ".join([*context["command_prefix"], "exec", command])])
    return rest


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask()
