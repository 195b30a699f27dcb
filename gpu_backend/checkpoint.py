"""A folder of safetensors: which file holds which tensor, and every check before a value is copied.

Headers are read when a file is opened, values one tensor at a time. Pickled weights are never read.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from simulator.errors import InputError
from simulator.specs.hf_config import load_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' names of the unquantised types
HUB_FILES = ("*.json", "*.safetensors")
LAYER = re.compile(r"model\.layers\.(\d+)\.")


def checkpoint_folder(source: str | Path) -> Path:
    """Return the local folder of a checkpoint, after a download if `source` is a name of the hub."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w-]+/[\w.-]+", str(source)):
        raise InputError(f"{source}: is no folder with config.json and safetensors")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f"{source}: is no local folder, and to download it from the hub huggingface_hub must be installed"
        )
    from huggingface_hub import snapshot_download  # optional, and slow to import

    try:
        return Path(snapshot_download(str(source), allow_patterns=list(HUB_FILES)))
    except Exception as error:  # its own, requests' and OSError, by version
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{source}: is no local folder, and the hub did not give it: {reason}") from None


class Checkpoint:
    """The tensors of a folder by name. A context manager: it keeps the files open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}  # safe_open has no type of its own
        self._open = ExitStack()
        self._filled: set[str] = set()
        self._places = self._index() if (folder / INDEX).is_file() else self._whole()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def fill(self, name: str, target: Tensor) -> None:
        """Copy the tensor of this name into `target`, converted to its type; its shape must be the same."""
        if name not in self._places:
            raise InputError(f"{self.folder}: tensor {name} is missing, expected {_shape(target.shape)}")
        path = self.folder / self._places[name]
        try:
            file = self._file(path)
            found = file.get_slice(name)
            shape, dtype = found.get_shape(), found.get_dtype()
            if dtype not in FLOATS:
                known = ", ".join(FLOATS)
                raise InputError(f"{path}: tensor {name} is of type {dtype}; only {known} can be loaded")
            if list(shape) != list(target.shape):
                expected = _shape(target.shape)
                raise InputError(
                    f"{path}: tensor {name} must be {expected} by config.json, is {_shape(shape)}"
                )
            target.copy_(file.get_tensor(name))
        except SafetensorError as error:  # an index that names a file without the tensor
            raise InputError(f"{path}: tensor {name} cannot be read: {_reason(error)}") from None
        self._filled.add(name)

    def refuse_strangers(self, num_layers: int, tied_embeddings: bool) -> None:
        """Raise InputError for a tensor that nobody asked for: the weights belong to another model.

        Later layers may stay, and so may what old versions saved besides: rotary frequencies, tied heads.
        """
        for name in self._places.keys() - self._filled:
            layer = LAYER.match(name)
            later = layer is not None and int(layer[1]) >= num_layers
            tied = tied_embeddings and name == "lm_head.weight"
            if not (later or tied or name.endswith("rotary_emb.inv_freq")):
                raise InputError(
                    f"{self.folder / self._places[name]}: tensor {name} has no place in the model "
                    "that config.json describes"
                )

    def _index(self) -> dict[str, str]:
        path = self.folder / INDEX
        places = load_json(path).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise InputError(f"{path}: weight_map must be an object of tensor names and file names")
        for file in sorted(set(places.values())):
            if Path(file).name != file:
                raise InputError(f"{path}: weight_map must name files of its own folder, got {file[:60]!r}")
            if not (self.folder / file).is_file():
                raise InputError(f"{self.folder}: {file} is missing, which {INDEX} names")
        return places

    def _whole(self) -> dict[str, str]:
        path = self.folder / WHOLE
        if not path.is_file():
            raise InputError(f"{self.folder}: has neither {WHOLE} nor {INDEX}; other formats are not read")
        return dict.fromkeys(self._file(path).keys(), WHOLE)

    def _file(self, path: Path) -> Any:
        if path.name not in self._files:
            try:
                opened = self._open.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path}: is not a whole safetensors file: {_reason(error)}") from None
            self._files[path.name] = opened
        return self._files[path.name]


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
