"""Models that somebody else wrote: how they are changed, and what becomes of them in a child."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import random
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cotune.files import sealed

#: What a changed value becomes.
EXTREMES = (
    -1, 0, 1, 2, 7, -7, 2**15, 2**31 - 1, -(2**31), 2**31, 10**9, 2**63, -(10**18), 0.5, 1e300,
    float("nan"), float("inf"), None, True, "", "3", "-1", "1000000000", "dart", [], [0], {}, [[]],
)  # fmt: skip


def forged(message: bytes, payload: bytes | None = None, **changed: Any) -> bytes:
    """A packed model with another payload, digest and all, or with other fields in its manifest."""
    packed = msgspec.msgpack.decode(message)
    if payload is not None:
        packed["payload"] = payload
        packed["manifest"]["sha256"] = hashlib.sha256(payload).hexdigest()
    packed["manifest"] |= changed
    return msgspec.msgpack.encode(packed)


def payload_of(message: bytes) -> bytes:
    payload: bytes = msgspec.msgpack.decode(message)["payload"]
    return payload


def fates(messages: list[bytes], frame: Any) -> list[str]:
    """What became of each model: `predicted`, `refused: ...`, another exception or a signal.

    Each is read, by `Model.load` from a folder, and predicts, in a process that may die of it.
    """
    found: list[str] = []
    context = multiprocessing.get_context("spawn")
    while len(found) < len(messages):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_judge, args=(messages[len(found) :], frame, there))
        child.start()
        there.close()
        try:
            while len(found) < len(messages):
                found.append(here.recv())
        except EOFError:
            child.join()
            found.append(f"signal or exit {child.exitcode}")
        child.join()
    return found


def _judge(messages: list[bytes], frame: Any, told: Any) -> None:
    import resource
    import tempfile

    from cotune.model.model import Model  # the libraries come before the limit

    if any(b"weights.npy" in message for message in messages):
        import torch  # noqa: F401
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    with tempfile.TemporaryDirectory() as folder:
        for message in messages:
            _write(message, Path(folder))
            told.send(_fate(Model, Path(folder), frame))


def _write(message: bytes, folder: Path) -> None:
    packed = msgspec.msgpack.decode(message)
    for file in folder.iterdir():
        file.unlink()
    manifest = packed["manifest"]  # a forger seals it, too
    content = sealed(manifest) if isinstance(manifest, dict) else json.dumps(manifest).encode()
    (folder / "model.json").write_bytes(content)
    for name in ("booster.json", "estimator.skops", "weights.npy"):
        (folder / name).write_bytes(packed["payload"])


def _fate(kind: Any, folder: Path, frame: Any) -> str:
    import warnings

    from cotune.errors import CotuneError

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model = kind.load(folder)
            model.table(frame)
    except CotuneError as error:
        sentence = str(error)
        return f"refused: {sentence}" if sentence and "\n" not in sentence else "no sentence"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "predicted"


def mutated(message: bytes, draw: random.Random) -> bytes:
    """The model with something changed, in its payload most of the times, else in its manifest."""
    if draw.random() < 0.15:
        packed = msgspec.msgpack.decode(message)
        manifest = _changed(packed["manifest"], draw)
        return msgspec.msgpack.encode(packed | {"manifest": manifest})
    payload = payload_of(message)
    if payload[:2] == b"PK":
        return forged(message, _archive(payload, draw))
    if payload[:6] == b"\x93NUMPY":
        return forged(message, _array(payload, draw))
    text = json.dumps(_booster(json.loads(payload), draw))
    if draw.random() < 0.1:  # a second field of the same name
        name = draw.choice(["trees", "tree_info", "left_children", "name", "num_class", "parents"])
        text = text.replace(
            f'"{name}":', f'"{name}": {json.dumps(draw.choice(EXTREMES))}, "{name}":'
        )
    return forged(message, text.encode())


def _booster(model: Any, draw: random.Random) -> Any:
    """Something changed in a tree, or in what is said of all trees, or anywhere."""
    whole = model["learner"]["gradient_booster"]
    trees = whole["model"]["trees"]
    where = draw.random()
    if where < 0.6:
        number = draw.randrange(len(trees))
        trees[number] = _changed(trees[number], draw)
    elif where < 0.8:
        whole["model"] = _changed(whole["model"] | {"trees": []}, draw)
        if isinstance(whole["model"], dict):
            whole["model"]["trees"] = trees
    else:
        model = _changed(model, draw)
    return model


def _archive(payload: bytes, draw: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(["schema.json", *files])
    if name == "schema.json":
        files[name] = json.dumps(_changed(json.loads(files[name]), draw)).encode()
    else:
        files[name] = _array(files[name], draw)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def _array(content: bytes, draw: random.Random) -> bytes:
    array = np.load(io.BytesIO(content))
    end = content.index(b"\n") + 1
    how = draw.randrange(7)
    if how == 0:
        return content[: draw.randrange(len(content))]
    if how == 1:
        header = content[:end].replace(
            b"'shape': (", b"'shape': (" + draw.choice([b"9", b"-", b"1,"])
        )
        return header + content[end:]
    if how == 2:
        kind = draw.choice([b"<f4", b"<i8", b"|O", b"<U9", b"|V8", b"<c16", b"|u1"])
        return content[:end].replace(array.dtype.str.encode(), kind) + content[end:]
    if how == 3:
        array = np.resize(array, draw.choice([0, 1, array.size + 1, 2 * array.size]))
    elif how == 4:
        array = array.reshape(-1)[::-1].reshape(array.shape) if array.size else array
    elif how == 5 and array.size:
        body = bytearray(array.tobytes())
        for _ in range(draw.randrange(1, 9)):
            body[draw.randrange(len(body))] = draw.choice([0, 1, 127, 128, 255])
        array = np.frombuffer(bytes(body), array.dtype).reshape(array.shape)
    elif array.dtype.names or draw.random() < 0.5:
        array = array[..., None]
    else:
        array = array.astype("U9" if draw.random() < 0.3 else "f4")
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _changed(value: Any, draw: random.Random) -> Any:
    """A description with one to three of its parts replaced, removed, repeated or exchanged."""
    whole = [json.loads(json.dumps(value))]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        holder, place = _somewhere(whole, draw)
        if isinstance(holder, dict):
            if draw.random() < 0.15:
                holder[draw.choice(["name", "extra", *holder])] = holder.pop(place)
            else:
                holder[place] = draw.choice([_near(holder[place], draw), *EXTREMES[:4]])
        else:
            other = draw.randrange(len(holder))
            how = draw.randrange(5)
            if how == 0 and holder is not whole:
                del holder[place]
            elif how == 1 and holder is not whole:
                holder.insert(other, holder[place])
            elif how == 2:
                holder[place], holder[other] = holder[other], holder[place]
            else:
                holder[place] = _near(holder[place], draw)
    return whole[0]


def _near(value: Any, draw: random.Random) -> Any:
    """Another value, of the same type more often than not: others are refused at first sight."""
    if draw.random() < 0.3 or isinstance(value, bool):
        return deepcopy(draw.choice(EXTREMES))
    numbers = [extreme for extreme in EXTREMES if type(extreme) is int]
    if isinstance(value, int):
        return draw.choice([value + draw.choice([-2, -1, 1, 2, 3, 100]), *numbers])
    if isinstance(value, float):
        return draw.choice([-value, value * 1e30, 1e300, -1e300, 0.0])
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return str(draw.choice(numbers))
    return deepcopy(draw.choice(EXTREMES))


def _somewhere(whole: list[Any], draw: random.Random) -> tuple[Any, Any]:
    """A place in a description, deep ones as likely as those near its root."""
    holder, place = whole, 0
    while isinstance(holder[place], dict | list) and holder[place] and draw.random() < 0.85:
        holder = holder[place]
        place = (
            draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
        )
    return holder, place
