"""`servetwin gpu info`: which device there is, and what runs on it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say which devices PyTorch can use here."""
    import json

    from gpu_backend.device import choose_device, device_name, free_bytes

    device = choose_device()
    found = {"device": str(device), "name": device_name(device), "free_bytes": free_bytes(device)}
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        typer.echo(f"{found['device']}: {found['name']}, {free_bytes(device) / 2**30:.1f} GiB free")


def register(app: typer.Typer) -> None:
    app.command("info")(info)
