"""Bad job files, options, callbacks and checkpoints: refused by a line that names what is wrong, before anything is written."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from cases import Case, Step
from nasty import SCALARS, at, places, value
from scene import CALLBACK, JOB, MODULE, Scene

RUN = ("run", "job.yaml", "--serial", "--run", "fresh")


def job_value(chance: random.Random, scene: Scene) -> Case:
    """One value of a healthy job replaced, or a key added or taken away."""
    job = copy.deepcopy(JOB)
    place = chance.choice(places(job))
    owner = at(job, place[:-1])
    what = chance.random()
    if what < 0.8:
        owner[place[-1]] = value(chance)
        done = f"{'.'.join(map(str, place))} = {str(owner[place[-1]])[:60]!r}"
    elif what < 0.9 and isinstance(owner, dict):
        del owner[place[-1]]
        done = f"without {'.'.join(map(str, place))}"
    else:
        mapping = owner if isinstance(owner, dict) else job
        key = chance.choice(["sizes", "Size", "", "\x1b[2J", "x" * 500, "kind", "axes", "plane", "refine"])
        mapping[key] = value(chance)
        done = f"with {key[:20]!r}"
        place = (*place[:-1], key)
    names = tuple(str(each) for each in place if not isinstance(each, int) and str(each).isprintable() and each)
    try:
        scene.write_job(job)
    except yaml.YAMLError:
        scene.job.write_text(str(job))
    return Case(done, [Step(("plan", "job.yaml", "--run", "fresh") if chance.random() < 0.5 else RUN, named=names)])


def job_text(chance: random.Random, scene: Scene) -> Case:
    """The text of a healthy job file damaged: bytes changed, cut, repeated; YAML's own traps."""
    text = scene.job.read_bytes()
    trap = chance.random()
    if trap < 0.5:
        data = bytearray(text)
        for _ in range(chance.choice([1, 1, 2, 5, 40])):
            spot = chance.randrange(len(data))
            data[spot : spot + chance.choice([0, 1, 1, 5])] = chance.choice(
                [
                    b"",
                    b"\x00",
                    b"\xff",
                    b"\t",
                    b": ",
                    b"- ",
                    b"{",
                    b"&a ",
                    b"*a",
                    b"!!python/name:os.system ",
                    b"\n",
                    b"%",
                ]
            )
        done = "bytes changed"
    elif trap < 0.7:
        lines = text.splitlines(keepends=True)
        k = chance.randrange(len(lines))
        data, done = bytearray(b"".join([*lines[: k + 1], lines[k], *lines[k + 1 :]])), "a line twice"
    else:
        bombs = {
            "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
                f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(9)
            ) + "run: *j\n",
            "deep": "run: " + "[" * 5000 + "]" * 5000,
            "deep map": "".join(" " * k + f"k{k}:\n" for k in range(300)),
            "empty": "", "list": "- 1\n- 2\n", "number": "7", "two": "run: a\n---\nrun: b\n", "nul": "run: \"\\0\"\n",
            "loop": "run: &a\n  b: *a\n", "tab": "\trun: a\n", "huge": "run: " + "y" * 3_000_000,
            "tag": "run: !!python/object/apply:os.system ['true']\n", "bom": "\ufeffrun: a\n", "merge": "<<: {run: a}\nrun: b\n",
        }  # fmt: skip
        done = chance.choice(sorted(bombs))
        data = bytearray(bombs[done].encode())
    scene.job.write_bytes(bytes(data))
    return Case(f"job text: {done}", [Step(("plan", "job.yaml"))])


OPTIONS = {
    "--num-samples": "num_samples", "--seed": "seed", "--batch-size": "batch_size", "--precision": "precision",
    "--batch-norm": "batch_norm", "--device": "device", "--threads": "threads", "--num-gpus": "num_gpus",
    "--device-ids": "device_ids", "--run": "run", "--address": "address", "--log-format": "log_format", "--sizes": "sizes",
}  # fmt: skip


def option(chance: random.Random, scene: Scene) -> Case:
    """An option that cannot be, of some command."""
    name = chance.choice(sorted(OPTIONS))
    given = str(chance.choice([each for each in SCALARS if "\x00" not in str(each)]))[:5000]
    if name == "--address" and given in ("", "~"):
        given = "nowhere"
    words = ["run", "job.yaml", *([] if name == "--address" else ["--serial"]), f"{name}={given}"]
    if chance.random() < 0.25:
        command = chance.choice(
            ["status", "validate", "export", "plan", "import", "logs", "cancel", "doctor", "bench", "view"]
        )
        words, name = [command, given], command
    named = (
        name.lstrip("-"),
        OPTIONS.get(name, "run"),
        "run",
        "job",
        "serial",
        "address",
        "cluster",
        "samples",
        "landscape",
    )
    return Case(f"{' '.join(words)[:80]!r}", [Step(tuple(words), named=named)])


RAISED = ["ValueError", "KeyError", "RuntimeError", "StopIteration", "MemoryError", "RecursionError", "OSError", "SystemExit",
          "KeyboardInterrupt", "GeneratorExit", "NotImplementedError", "UnicodeDecodeError", "AssertionError"]  # fmt: skip
MESSAGES = ["'boom'", "''", "'\\x1b[31mred'", "'x' * 200000", "'a\\nb\\nc'", "0", "None", "'\\u202e'", "{}"]
BODIES = {
    "import": "{fault}\n",
    "callback": "def problem():\n    {fault}\n",
    "length": "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        {fault}\n    def __getitem__(self, i):\n"
    "        return torch.zeros(3), 0\n\ndef problem():\n    return Problem.supervised(network(), Data())\n",
    "item": "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 16\n    def __getitem__(self, i):\n"
    "        {fault}\n\ndef problem():\n    return Problem.supervised(network(), Data())\n",
    "batches": "class Data:\n    def __iter__(self):\n        yield torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)\n"
    "        {fault}\n\ndef problem():\n    return Problem.supervised(network(), Data())\n",
    "observe": "def observe(model, batch):\n    {fault}\n\ndef problem():\n    return Problem(network(), data(), observe)\n",
    "forward": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = nn.Linear(3, 2)\n"
    "    def forward(self, x):\n        {fault}\n\ndef problem():\n    return Problem.supervised(Net(), data())\n",
}
RETURNED = ["None", "7", "'text'", "{}", "[]", "torch.zeros(3)", "{'loss': 1.0}", "{'loss': torch.zeros(3)}", "{'loss': torch.zeros(())}",
            "{'loss': torch.zeros(len(batch[0]), 2)}", "{'loss': torch.zeros(len(batch[0]), dtype=torch.complex64)}",
            "{'acc': torch.zeros(len(batch[0]))}", "{'loss': torch.zeros(len(batch[0])), 'status': torch.zeros(len(batch[0]))}",
            "{'loss': torch.zeros(len(batch[0])), 3: torch.zeros(len(batch[0]))}", "{'loss': None}", "iter(())",
            "{'loss': torch.zeros(len(batch[0])).numpy()}", "{'loss': [0.0] * len(batch[0])}"]  # fmt: skip
PROBLEMS = ["None", "7", "Problem", "Problem(None, data(), None)", "Problem(network(), None, lambda m, b: {})", "network()",
            "Problem(network(), [], lambda m, b: {})", "Problem.supervised(network(), data(), criterion=7)",
            "Problem.supervised(network(), data(), metrics={'loss': lambda o, t: t})",
            "Problem.supervised(network(), data(), metrics=['nonsense'])", "Problem.supervised(network(), data()[0])",
            "Problem.supervised(network(), (data()[0], data()[1][:3]))", "Problem.supervised(nn.Identity(), data())",
            "Problem.supervised(network().half(), data())", "Problem.supervised(network().to('meta'), data())",
            "Problem.supervised(network(), (data()[0] * float('nan'), data()[1]))"]  # fmt: skip


def callback(chance: random.Random, scene: Scene) -> Case:
    """User code that raises, exits or returns something else, somewhere."""
    source, what = CALLBACK, chance.random()
    step = Step(RUN)
    if what < 0.6:
        place, kind = chance.choice(sorted(BODIES)), chance.choice(RAISED)
        text = chance.choice(MESSAGES)
        fault = f"raise {kind}({text})" if kind != "UnicodeDecodeError" else "b'\\xff'.decode()"
        if kind == "SystemExit" and chance.random() < 0.5:
            fault = "import sys; sys.exit(0)"
        if chance.random() < 0.3:
            fault = f"print('on stdout'); {fault}"
        source += "\n" + BODIES[place].format(fault=fault)
        done, raised = f"{place}: {fault[:60]}", kind
        step = Step(RUN, refused=True, raised=raised)
    elif what < 0.8:
        returned = chance.choice(RETURNED)
        source += f"\ndef observe(model, batch):\n    model(batch[0])\n    return {returned}\n"
        source += "\ndef problem():\n    return Problem(network(), data(), observe)\n"
        done, step = f"observe returns {returned}", Step(RUN, refused=True, named=("observe", "observables"))
    else:
        made = chance.choice(PROBLEMS)
        source += f"\ndef problem():\n    return {made}\n"
        done, step = (
            f"problem is {made}",
            Step(RUN, named=("problem", "data", "model", "observe", "metrics", "criterion", "samples")),
        )
    (scene.folder / f"{MODULE}.py").write_text(source)
    return Case(done, [step])


def checkpoint(chance: random.Random, scene: Scene) -> Case:
    """Files that are no checkpoint, or of another network, given to `import`."""
    files = sorted(scene.folder.glob("ckpt_*.pt"))
    target = chance.choice(files)
    data = target.read_bytes()
    makers: dict[str, Callable[[Path], object]] = {
        "empty": lambda path: path.write_bytes(b""),
        "half": lambda path: path.write_bytes(data[: len(data) // 2]),
        "garbage": lambda path: path.write_bytes(chance.randbytes(500)),
        "text": lambda path: path.write_text("no checkpoint\n"),
        "gone": lambda path: path.unlink(),
        "folder": lambda path: (path.unlink(), path.mkdir()),
        "zeros": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
        "itself": lambda path: (path.unlink(), path.symlink_to(path.name)),
        "pickle": lambda path: torch.save({"a": object}, path),
        "other": lambda path: torch.save({"w": torch.zeros(2)}, path),
        "nan": lambda path: torch.save({k: v * float("nan") for k, v in torch.load(path).items()}, path),
        "sparse": lambda path: torch.save({k: v.to_sparse() for k, v in torch.load(path).items()}, path),
        "meta": lambda path: torch.save({k: v.to("meta") for k, v in torch.load(path).items()}, path),
        "long header": lambda path: path.write_bytes((2**60).to_bytes(8, "little") + b"{" + b" " * 100),
        "deep header": lambda path: path.write_bytes((20000).to_bytes(8, "little") + b"{" * 20000),
        "flipped": lambda path: path.write_bytes(data[:99] + bytes([data[99] ^ 255]) + data[100:]),
    }
    done = chance.choice(sorted(makers))
    makers[done](target)
    place = chance.choice(["run", "new"])
    words = [
        "import",
        *(each.name for each in files),
        "--run",
        place,
        *(["--overwrite"] if chance.random() < 0.5 else []),
    ]
    chance.shuffle(words[1:-2])
    harmless = done in ("nan", "sparse", "meta", "flipped", "half")
    return Case(
        f"checkpoint {done} into {place}",
        [Step(tuple(words), named=(target.name, "run", "checkpoint"), refused=not harmless, keeps=place == "run")],
    )


KINDS = {"job value": (job_value, 5), "job text": (job_text, 3), "option": (option, 3), "callback": (callback, 4),
         "checkpoint": (checkpoint, 2)}  # fmt: skip
