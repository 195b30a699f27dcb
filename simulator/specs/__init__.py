"""Hardware and models: instances whose every number has a source."""

from simulator.specs.hardware import HARDWARE, Hardware, get_hardware
from simulator.specs.hf_config import read_hf_config
from simulator.specs.models import MLA, Model, MoE
from simulator.specs.shipped_models import MODELS, get_model

__all__ = [
    "HARDWARE",
    "MLA",
    "MODELS",
    "Hardware",
    "MoE",
    "Model",
    "get_hardware",
    "get_model",
    "read_hf_config",
]
