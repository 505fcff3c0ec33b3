"""A model directory for `--load-format dummy`: a configuration and a tokenizer, no weights.

Its scheduler, chunked prefill, prefix cache and HTTP front end are the real ones; only the text is
nonsense. `dense-tiny` is a Qwen3; `next-tiny` a Qwen3-Next, whose linear-attention layers put vLLM's prefix
cache into align mode. Writing the tokenizer needs the `tokenizers` package, which stands beside vLLM: this
file is run as a script there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 8192
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if reasoning_effort %}<effort>{{ reasoning_effort }}</effort>\n{% endif %}{% endif %}"
)
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16",
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def _dense() -> dict[str, Any]:
    return {
        **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "max_position_embeddings": 131072, "rope_theta": 1000000,
    }  # fmt: skip


def _next(layers: int = 4, interval: int = 4, state_heads: int = 4, inner: int = 512) -> dict[str, Any]:
    kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    return {
        **_COMMON, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "dtype": "bfloat16",
        "max_position_embeddings": 65536, "attn_output_gate": True, "num_hidden_layers": layers,
        "full_attention_interval": interval, "layer_types": kinds,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "linear_num_key_heads": state_heads, "linear_num_value_heads": state_heads, "mamba_ssm_dtype": "float32",
        "partial_rotary_factor": 0.25, "bos_token_id": None, "rope_theta": 10000000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner, "mlp_only_layers": [], "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001, "output_router_logits": False,
    }  # fmt: skip


def _next_slim() -> dict[str, Any]:
    """A twelfth of next-tiny's work a token. The attention is slimmed with the state: a block stays 256
    tokens.
    """
    slim = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    return {**_next(layers=2, interval=2, state_heads=1, inner=128), **slim}


KINDS = {"dense-tiny": _dense, "next-tiny": _next, "next-slim": _next_slim}


def write(kind: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_tokenizer())
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "model_max_length": 1000000, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
    }))  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}))
    (folder / "config.json").write_text(json.dumps(KINDS[kind](), indent=1))  # last: its presence means complete


def _tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(errors="ignore") for path in sorted(library.glob("*.py"))[:150]]
    trainer = trainers.BpeTrainer(
        vocab_size=6000,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    for i in range(len(vocabulary), VOCABULARY):
        vocabulary[f"\u0120w{i}"] = i  # no text leads to these; they make every id that the model picks decodable
    return json.dumps(data)


def model(kind: str, python: Path, root: Path | None = None) -> Path:
    """The model directory of this kind, made when it is not there yet. Where the CPU has no bfloat16,
    next-tiny is next-slim: a prefill of 14,000 tokens takes about a second on either.
    """
    from headway.errors import CheckFailed, UsageError  # not at the top: as a script this file stands alone
    from headway.lab.launch import has_bfloat16

    if kind not in KINDS:
        raise UsageError(f"model kind {kind!r} is unknown; there are {', '.join(sorted(KINDS))}")
    if kind == "next-tiny" and not has_bfloat16():
        kind = "next-slim"
    folder = (root or Path.cwd()) / ".cache" / "models" / kind
    if not (folder / "config.json").exists():
        command = [str(python), "-P", str(Path(__file__).resolve()), kind, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CheckFailed(f"making model {kind} with {python} failed: {done.stderr.strip()[-400:]}")
    return folder


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
