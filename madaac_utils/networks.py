"""Networks on disk: files that describe the network they hold, so that a changed network is read back as changed.

A network is an `nn.Sequential` of linear layers and activations. A linear layer is either `nn.Linear` or a stack with
weight [networks, in, out] and bias [networks, 1, out]: one network per agent, or a joint one for all. Its tensors are
saved as weight_0, bias_0, weight_1, ... and the header lists the layers.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes

from madaac_utils.files import FORMAT_VERSION, UserError, is_list_of, require_fits_task, writing

# Activations that can be saved, and the names of their parameters
ACTIVATIONS = dict.fromkeys(("ReLU", "Tanh", "Sigmoid", "SiLU", "Mish", "Identity"), ())
ACTIVATIONS |= {"LeakyReLU": ("negative_slope",), "ELU": ("alpha",), "GELU": ("approximate",)}
ACTIVATIONS |= {"Softplus": ("beta", "threshold")}


def describe(network: nn.Sequential, envs, kind: str, **header) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and header of a network; an error if the format has no word for one of its layers."""
    layers, tensors = [], {}
    for module in network:
        name = type(module).__name__
        parameters = dict(module.named_parameters())
        if parameters.keys() == {"weight", "bias"} and parameters["weight"].ndim > 1:  # not a normalisation
            number = len(tensors) // 2
            tensors |= {f"{part}_{number}": tensor.detach().cpu().clone() for part, tensor in parameters.items()}
            layers.append(["linear"])
        elif name in ACTIVATIONS:
            layers.append([name, *(getattr(module, parameter) for parameter in ACTIVATIONS[name])])
        else:
            raise UserError(
                f"a layer of type {name} cannot be saved, because the file format has no description for it; use "
                f"linear layers with a bias and {', '.join(ACTIVATIONS)}, or add the layer to madaac_utils/networks.py"
            )
    return tensors, {"kind": kind, "layers": layers} | header | task_header(envs)


class SavedNetwork:
    """A network rebuilt from its description. Inputs are [networks, batch, in] for stacks."""

    def __init__(self, layers: list, tensors: dict[str, torch.Tensor]):
        self.steps, number = [], 0
        for kind, *values in layers:
            if kind == "linear":
                weight, bias = tensors[f"weight_{number}"], tensors[f"bias_{number}"]
                if bias.ndim != (3 if weight.ndim == 3 else 1):  # it would be broadcast
                    raise ValueError(f"bias_{number} has shape {list(bias.shape)}")
                self.steps.append(functools.partial(linear, weight, bias))
                number += 1
            else:
                self.steps.append(getattr(nn, kind)(**dict(zip(ACTIVATIONS[kind], values, strict=True))))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


def linear(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.baddbmm(bias, x, weight) if weight.ndim == 3 else F.linear(x, weight, bias)


@contextlib.contextmanager
def rebuilding(origin: Path | str):
    """Turn whatever goes wrong while a network is rebuilt and tried out into one line about the file."""
    try:
        yield
    except Exception as error:
        line = str(error).split("\n")[0]
        raise UserError(f"{origin} does not hold a network that fits its own header ({line})") from None


@torch.no_grad()
def require_same(described: Callable, in_memory: Callable, envs, description: str) -> None:
    """Raise an error unless two functions of observations [agents, batch, widest] compute the same."""
    generator = torch.Generator().manual_seed(0)  # so that the generator of the training is not touched
    obs = torch.randn(len(envs.agents), 16, int(max(envs.obs_sizes)), generator=generator)
    obs *= torch.arange(obs.shape[-1]) < torch.as_tensor(envs.obs_sizes)[:, None, None]  # zero-padded
    if not torch.allclose(described(obs), in_memory(obs).cpu(), rtol=1e-3, atol=1e-4, equal_nan=True):
        raise UserError(f"the script computes something that {description} does not describe, so it cannot be saved")


def task_header(envs) -> dict:
    return {
        "format_version": FORMAT_VERSION,
        "env_id": envs.env_id,
        "agents": list(envs.agents),
        "obs_sizes": np.asarray(envs.obs_sizes).tolist(),
        "num_actions": np.asarray(envs.num_actions).tolist(),
    }


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], header: dict, envs) -> None:
    """Write a safetensors file whose header also says which task, agents and sizes it is for."""
    header = header | task_header(envs)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header["sha256"] = digest(tensors, header)
    with writing(path) as temporary:
        # One entry of metadata: safetensors would write several in any order, and equal networks are equal files.
        temporary.write_bytes(safetensors_bytes(tensors, {"header": json.dumps(header)}))


def digest(tensors: dict[str, torch.Tensor], header: dict) -> str:
    """A checksum of a header and its tensors."""
    checksum = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        checksum.update(name.encode() + tensors[name].numpy().tobytes())
    return checksum.hexdigest()


def load_tensors(path: Path, kind: str, what: str, envs=None) -> tuple[dict[str, torch.Tensor], dict]:
    """Read tensors and header of a file of this kind. With `envs`, the file must fit that task."""
    if not Path(path).is_file():
        raise UserError(f"there is no {what} at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("header", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable {what} ({error})") from None
    if not isinstance(header, dict) or header.get("kind") != kind or header.get("format_version") != FORMAT_VERSION:
        raise UserError(f"{path} is not a {what} of format version {FORMAT_VERSION}")
    if "sha256" in header and header.pop("sha256") != digest(tensors, header):  # older files do not have it
        raise UserError(f"{path} is damaged: its checksum is wrong")
    valid = isinstance(header.get("env_id"), str) and is_list_of(str, header.get("agents"))
    for name in ("obs_sizes", "num_actions"):
        valid = valid and is_list_of(int, header.get(name)) and len(header[name]) == len(header["agents"])
        valid = valid and 0 < min(header[name]) <= max(header[name]) < 2**20
    if not valid:
        raise UserError(f"{path} is not a {what}: its header does not describe a task")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise UserError(f"{path}: {name} contains numbers that are not finite or not of type float32")
    if envs is not None:
        require_fits_task(path, header, envs)
    return tensors, header
