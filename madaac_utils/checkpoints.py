"""Checkpoints: tensors and plain values only, with checksums, the last two of a run."""

import os
import zipfile
from pathlib import Path

import numpy as np
import torch

from madaac_utils.files import UserError, remove_left_overs, writing

try:
    import fcntl
except ImportError:  # Windows: two processes on one run folder are not noticed there
    fcntl = None


def lock(folder: Path):
    """Refuse a second process on the same run folder, and remove what a killed process left half written."""
    try:
        file = open(folder / ".lock", "w")  # noqa: SIM115 (held until the process ends)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is working on {folder}") from None
    remove_left_overs(folder)
    return file


def save_checkpoint(folder: Path, state: dict) -> None:
    """Write checkpoint.pt with tensors and plain values only; the one before becomes checkpoint_previous.pt."""
    path, gpus = folder / "checkpoint.pt", torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    with writing(path) as temporary:
        try:
            with open(temporary, "wb") as file:
                torch.save(state | {"rng": [torch.get_rng_state(), *gpus]}, file)
        except RuntimeError as error:  # torch hides the error of a full disk behind its own
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
        if path.is_file():
            os.replace(path, folder / "checkpoint_previous.pt")


def load_checkpoint(folder: Path, repair: bool = False) -> dict:
    """The newest checkpoint that is undamaged, by the checksums that torch writes for every tensor.

    With `repair`, it takes the place of a damaged newer one, which would otherwise become the previous checkpoint.
    """
    paths = [path for name in ("checkpoint", "checkpoint_previous") if (path := folder / f"{name}.pt").is_file()]
    if not paths:
        raise UserError(f"cannot resume {folder}: there is no checkpoint.pt")
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise ValueError("a checksum is wrong")
            state = torch.load(path, weights_only=True, map_location="cpu")
            if not isinstance(state, dict):
                raise ValueError("it holds no dictionary")
            if repair:
                os.replace(path, folder / "checkpoint.pt")
            return state
        except Exception as error:  # torch and zipfile raise many kinds of errors for damaged files
            print(f"warning: {path} is damaged and is not used ({type(error).__name__}: {error})".split("\n")[0])
    raise UserError(f"cannot resume {folder}: no checkpoint is readable")


def state_of(envs, parts: dict) -> dict:
    """What a checkpoint holds of environments, networks, optimizers and buffers."""
    states = {name: to_tensors(part.state_dict()) for name, part in parts.items()}
    return {"envs": to_tensors(envs.state_dict()), "parts": states}


def restore_checkpoint(folder: Path, envs, parts: dict) -> dict:
    """Put environments, parts and random generators into the state of the newest checkpoint, which is returned."""
    state = load_checkpoint(folder, repair=True)

    def present() -> dict:
        return {"step": 0, "seconds": 0.0, "rng": []} | state_of(envs, parts)

    try:
        require_like(present(), state, "checkpoint")
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
            if isinstance(part, torch.optim.Optimizer):
                require_optimizer_fits(part, name)
        envs.load_state_dict(to_arrays(state["envs"]))
        require_like(present(), state, "checkpoint")  # now with the sizes of buffers
        torch.set_rng_state(state["rng"][0])
        if len(state["rng"]) > 1:
            torch.cuda.set_rng_state_all(state["rng"][1:])
    except Exception as error:  # the parts raise many kinds of errors for the state of another script
        line = str(error).strip().split("\n")[0][:200]
        raise UserError(f"the checkpoint in {folder} does not fit this script: {line}") from None
    return state


def require_like(expected, found, name: str) -> None:
    """Raise a ValueError unless a saved state has the types and shapes of the present one.

    What is empty now, such as a buffer or the moments of an optimizer before its first step, may have any size.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected and expected.keys() != found.keys():
            raise ValueError(f"{name} has the entries {sorted(map(str, found))}, expected {sorted(map(str, expected))}")
        for key, value in expected.items():
            require_like(value, found[key], f"{name}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        if expected and len(expected) != len(found):
            raise ValueError(f"{name} has {len(found)} entries, expected {len(expected)}")
        for number, value in enumerate(expected):
            require_like(value, found[number], f"{name}.{number}")
    elif torch.is_tensor(expected) and torch.is_tensor(found):
        same_shape = expected.shape == found.shape if expected.numel() else expected.ndim == found.ndim
        if expected.dtype != found.dtype or not same_shape:
            kinds = [f"{part.dtype} {list(part.shape)}" for part in (found, expected)]
            raise ValueError(f"{name} is {kinds[0]}, expected {kinds[1]}")
    elif type(expected) is not type(found):
        raise ValueError(f"{name} is {type(found).__name__}, expected {type(expected).__name__}")
    elif isinstance(found, int) and not 0 <= found < 2**62:
        raise ValueError(f"{name} is {found}")


def require_optimizer_fits(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Raise a ValueError unless the moments of a restored optimizer fit its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {frozenset(optimizer.state.get(parameter, ())) for parameter in parameters}
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if not torch.is_tensor(value) or value.shape not in (parameter.shape, ()) or len(names) > 1:
                raise ValueError(f"{name} does not fit its parameters")


def to_tensors(state):
    """NumPy arrays as tensors; no tensor of the result has more memory behind it than it shows, and none is copied."""
    if isinstance(state, dict):
        return {name: to_tensors(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [to_tensors(value) for value in state]
    if isinstance(state, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(state))
    if torch.is_tensor(state) and state.device.type == "cpu" and state.untyped_storage().nbytes() > state.nbytes:
        return torch.from_numpy(state.detach().numpy())  # a slice of a buffer: torch.save would write all of it
    return state


def to_arrays(state):
    if isinstance(state, dict):
        return {name: to_arrays(value) for name, value in state.items()}
    return state.numpy() if torch.is_tensor(state) else state
