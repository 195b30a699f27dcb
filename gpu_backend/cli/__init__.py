"""`servetwin gpu`: the commands of the real engine. Mounted by `simulator.cli` through an entry point."""

from __future__ import annotations

import importlib.util

import typer

from gpu_backend.cli import hardware, serving
from simulator.errors import ConfigError

app = typer.Typer(
    help="Run the same policies on a real engine, on CUDA or on the CPU, and measure it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _needs_torch() -> None:
    """Say which extra to install before anything else fails."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("servetwin gpu needs PyTorch: pip install 'servetwin[gpu]'")


for module in (hardware, serving):
    module.register(app)
