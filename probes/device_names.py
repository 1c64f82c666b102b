"""The names of devices, checked before anything runs: spelt right, here, named once."""

from __future__ import annotations

from probes.messages import nearest
from probes.settings import CatalogueError


def check_device(name: str, option: str = "--device ") -> None:
    """Raises `CatalogueError`, led by the option, where torch knows no such device, or this machine has none."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise CatalogueError(f"{option}{name}: no such device{nearest(name, _devices())}") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise CatalogueError(f"{option}{name}: torch finds no CUDA device on this machine; nearest is 'cpu'")
        if device.index is not None and device.index >= count:
            raise CatalogueError(f"{option}{name}: this machine has {count}; nearest is 'cuda:{count - 1}'")
    elif device.type != "cpu":
        raise CatalogueError(f"{option}{name}: only cpu and cuda are supported; nearest is 'cpu'")


def read_devices(text: str) -> list[str]:
    """`0,1` or `cuda:0,cuda:1` as `["cuda:0", "cuda:1"]`, `all` as every CUDA device of this machine.

    Raises `CatalogueError` for a name that is none, one that is named twice, or a device that is not here, in this
    order over all names.
    """
    if text.strip() == "all":
        check_device("cuda", "--devices all: ")
        return [name for name in _devices() if name != "cpu"]
    if not text.strip():
        raise CatalogueError(f"--devices {text!r} names no device; write 0,1 or all, or leave it out for --device")
    names = [f"cuda:{part}" if part.isdecimal() else part for part in map(str.strip, text.split(","))]
    for name in names:
        if not name.startswith("cuda:") or not name.removeprefix("cuda:").isdecimal():
            raise CatalogueError(f"--devices {text}: {name!r} is no CUDA device; write 0,1 or all")
    for name in names:
        if names.count(name) > 1:
            raise CatalogueError(f"--devices {text}: {name} is named twice")
    for name in names:
        check_device(name, "--devices ")
    return names


def _devices() -> list[str]:
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
