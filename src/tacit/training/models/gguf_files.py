"""Models of next words as one GGUF file, for programs that are not Python's (llama.cpp, Ollama).

GPT-2's and Llama's layouts are written, in single precision, with a byte-level BPE tokenizer. The
names of tensors are the gguf package's own. Where a tokenizer puts a space before a text, the file
says so, and whoever reads it has to put one there: few programs do.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tacit.errors import UsageError, require_package
from tacit.files import whole_file

SERVED = ("gpt2", "llama")
_TURNED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""GPT-2's matrices that transformers keeps the other way round."""


def write_gguf(model: Any, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write a model of next words with its tokenizer."""
    gguf = require_package("gguf", "Writing a GGUF file")
    kind = model.config.model_type
    if kind not in SERVED or not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise UsageError(
            f"{type(model).__name__} has no layout in GGUF files that is written here; these have: "
            f"models of next words of the kinds {', '.join(SERVED)}."
        )
    words = _words(tokenizer)
    with whole_file(path) as draft:
        writer = gguf.GGUFWriter(str(draft), kind)
        _write_sizes(writer, model.config)
        _write_tokenizer(writer, tokenizer, words, model.config.vocab_size)
        names = gguf.get_tensor_name_map(
            gguf.MODEL_ARCH.LLAMA if kind == "llama" else gguf.MODEL_ARCH.GPT2,
            model.config.num_hidden_layers,
        )
        for name, tensor in _tensors(model).items():
            own = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if own is None:
                raise UsageError(f"The tensor {name} has no place in a GGUF file of this kind.")
            writer.add_tensor(own, _laid_out(name, tensor, model.config).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _tensors(model: Any) -> dict[str, Tensor]:
    """The weights by name; an output layer that is the embedding is not repeated."""
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    found = {name: p.detach().to("cpu", torch.float32) for name, p in model.named_parameters()}
    if not tied:
        found["lm_head.weight"] = model.get_output_embeddings().weight.detach().float().cpu()
    return found


def _laid_out(name: str, tensor: Tensor, config: Any) -> Tensor:
    """A tensor as programs that read GGUF files expect it."""
    if config.model_type == "gpt2" and name.endswith(_TURNED):
        return tensor.t().contiguous()
    heads = {
        "q_proj.weight": config.num_attention_heads,
        "k_proj.weight": getattr(config, "num_key_value_heads", None),
    }
    count = heads.get(".".join(name.split(".")[-2:]))
    if config.model_type == "llama" and count:
        # Pairs of coordinates that turn together lie side by side there, half a head apart here.
        parts = tensor.view(count, 2, -1, tensor.shape[1])
        return parts.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor.contiguous()


def _write_sizes(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_vocab_size(config.vocab_size)


def _words(tokenizer: Any) -> dict[str, Any]:
    """The tokenizer as its library writes it; only byte-level BPE has a place in these files."""
    own = json.loads(tokenizer.backend_tokenizer.to_str())
    before = json.dumps(own.get("pre_tokenizer"), allow_nan=False)
    if own["model"].get("type") != "BPE" or "ByteLevel" not in before:
        raise UsageError(
            "A GGUF file has a place for byte-level BPE tokenizers, and this one is another; share "
            "the folder instead."
        )
    space = '"add_prefix_space": true' in before
    added = own.get("added_tokens", [])
    return {**own["model"], "digits": "Digits" in before, "space": space, "added": added}


def _write_tokenizer(writer: Any, tokenizer: Any, words: dict[str, Any], size: int) -> None:
    by_id = {number: token for token, number in words["vocab"].items()}
    special = {one["id"]: one["content"] for one in words["added"]}
    by_id |= special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if words["digits"] else "gpt-2")
    writer.add_token_list([by_id.get(n, f"[unused {n}]") for n in range(size)])
    # 3 is a token that controls, 5 one that is never said, 1 an ordinary one.
    writer.add_token_types([3 if n in special else 1 if n in by_id else 5 for n in range(size)])
    pairs = (one if isinstance(one, str) else " ".join(one) for one in words["merges"])
    writer.add_token_merges(list(pairs))
    for name in ("bos", "eos", "pad", "unk"):
        number = getattr(tokenizer, f"{name}_token_id")
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(bool(words["space"]))
