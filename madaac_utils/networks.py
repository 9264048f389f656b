"""Networks on disk: files that describe the network they hold, so that a changed network is read back as changed.

A network is an `nn.Sequential` of linear layers and activations. A linear layer is either `nn.Linear` or a stack of
one layer per agent with weight [agents, in, out] and bias [agents, 1, out]. Its tensors are saved as weight_0, bias_0,
weight_1, ... and the header lists the layers.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes

from env_utils import task_name
from madaac_utils.files import FORMAT_VERSION, UserError, writing

# Activations that can be saved, and the names of their parameters
ACTIVATIONS = {
    **{
        "LeakyReLU": ("negative_slope",),
        "ELU": ("alpha",),
        "Softplus": ("beta", "threshold"),
        "GELU": ("approximate",),
    },
    **dict.fromkeys(("ReLU", "Tanh", "Sigmoid", "SiLU", "Mish", "Identity"), ()),
}
DEFAULT_LAYERS = [["linear"], ["LeakyReLU", 0.01], ["linear"], ["LeakyReLU", 0.01], ["linear"]]


def describe(network: nn.Sequential) -> tuple[list, dict[str, torch.Tensor]]:
    """The list of layers and the tensors of a network; an error if the format has no word for one of its layers."""
    layers, tensors = [], {}
    for module in network:
        name = type(module).__name__
        parameters = dict(module.named_parameters())
        if parameters.keys() == {"weight", "bias"} and parameters["weight"].ndim > 1:  # not a normalisation
            number = len(tensors) // 2
            tensors |= {f"{kind}_{number}": tensor.detach().cpu().clone() for kind, tensor in parameters.items()}
            layers.append(["linear"])
        elif name in ACTIVATIONS:
            layers.append([name, *(getattr(module, parameter) for parameter in ACTIVATIONS[name])])
        else:
            raise UserError(
                f"a layer of type {name} cannot be saved, because the file format has no description for it; use "
                f"linear layers and {', '.join(ACTIVATIONS)}, or add the layer to madaac_utils/networks.py"
            )
    return layers, tensors


class SavedNetwork:
    """A network rebuilt from its description. Inputs are [agents, batch, in] for stacks, [batch, in] otherwise."""

    def __init__(self, layers: list, tensors: dict[str, torch.Tensor], origin: Path | str):
        self.steps, number = [], 0
        for layer in layers if isinstance(layers, list) else [None]:
            kind, *values = layer if isinstance(layer, list) and layer else [None]
            if kind == "linear":
                try:
                    weight, bias = tensors[f"weight_{number}"], tensors[f"bias_{number}"]
                except KeyError as missing:
                    raise UserError(f"{origin} has no {missing}, which its description names") from None
                self.steps.append((weight, bias))
                number += 1
            elif isinstance(kind, str) and kind in ACTIVATIONS and len(values) == len(ACTIVATIONS[kind]):
                try:
                    self.steps.append(getattr(nn, kind)(*values))
                    self.steps[-1](torch.zeros(1))
                except (TypeError, ValueError, RuntimeError):
                    raise UserError(f"{origin} describes an activation that does not exist: {layer!r}") from None
            else:
                raise UserError(f"{origin} describes a layer that this version does not know: {layer!r}")
        self.linear = [step for step in self.steps if isinstance(step, tuple)]

    def require_shapes(self, agents: int, size_in: int, size_out: int, stacked: bool, origin: Path | str) -> None:
        """Raise an error unless the layers fit one another, their inputs and their outputs."""
        size = size_in
        for weight, bias in self.linear:
            width = bias.shape[-1] if bias.ndim else 0
            expected = ((agents, size, width), (agents, 1, width)) if stacked else ((width, size), (width,))
            if (tuple(weight.shape), tuple(bias.shape)) != expected:
                found = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
                raise UserError(f"{origin}: weights and biases of shape {found} do not fit {size} inputs")
            size = width
        if size != size_out or not self.linear:
            raise UserError(f"{origin}: the network has {size} outputs, expected {size_out}")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            if not isinstance(step, tuple):
                x = step(x)
            elif step[0].ndim == 3:
                x = torch.baddbmm(step[1], x, step[0])
            else:
                x = F.linear(x, *step)
        return x


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
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def task_header(envs) -> dict:
    return {
        "format_version": FORMAT_VERSION,
        "env_id": envs.env_id,
        "agents": list(envs.agents),
        "obs_sizes": np.asarray(envs.obs_sizes).tolist(),
        "num_actions": np.asarray(envs.num_actions).tolist(),
    }


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
    counts = [header.get("obs_sizes"), header.get("num_actions")]
    agents = header.get("agents")
    named = isinstance(agents, list) and agents and all(isinstance(agent, str) for agent in agents)
    sized = (
        all(
            isinstance(count, list)
            and len(count) == len(agents)
            and all(type(n) is int and 0 < n < 2**31 for n in count)
            for count in counts
        )
        if named
        else False
    )
    if not sized or not isinstance(header.get("env_id"), str):
        raise UserError(f"{path} is not a {what}: its header does not describe a task")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise UserError(f"{path}: {name} contains numbers that are not finite or not of type float32")
    if envs is not None:
        require_fit(path, header, envs)
    return tensors, header


def require_fit(path: Path, header: dict, envs) -> None:
    """Raise an error unless the header is that of a file for this task."""
    if task_name(header["env_id"]) != task_name(envs.env_id):
        raise UserError(f"{path} is for another task: expected {envs.env_id}, found {header['env_id']}")
    for name in ("agents", "obs_sizes", "num_actions"):
        expected = np.asarray(getattr(envs, name)).tolist()
        if header[name] != expected:
            raise UserError(f"{path} does not fit the task: expected {name} {expected}, found {header[name]}")
