"""Write a GGUF model with random weights, for llama.cpp: `python tests/tiny_gguf.py FILE [HIDDEN LAYERS]`."""

import sys

import gguf
import numpy as np


def write_model(path: str, hidden: int = 64, layers: int = 1) -> None:
    """A Llama with byte tokens and 1,440 syllables as its vocabulary; a text of words is a few tokens for each."""
    heads, feed_forward, source = hidden // 64, hidden * 3, np.random.default_rng(0)
    kind = gguf.TokenType
    tokens = [("<unk>", 0.0, kind.UNKNOWN), ("<s>", 0.0, kind.CONTROL), ("</s>", 0.0, kind.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, kind.BYTE) for byte in range(256)]
    words = ["▁" + a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    words += list("abcdefghijklmnopqrstuvwxyz.,:?!▁")
    tokens += [(word, -float(number), kind.NORMAL) for number, word in enumerate(words)]
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("random")
    out.add_context_length(4096)
    out.add_embedding_length(hidden)
    out.add_block_count(layers)
    out.add_feed_forward_length(feed_forward)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(64)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_token_list([text for text, _, _ in tokens])
    out.add_token_scores([score for _, score, _ in tokens])
    out.add_token_types([kind for _, _, kind in tokens])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:")

    def add(name: str, *shape: int) -> None:
        values = np.ones(shape) if len(shape) == 1 else source.standard_normal(shape) / np.sqrt(shape[-1])
        out.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", len(tokens), hidden)
    add("output_norm", hidden)
    add("output", len(tokens), hidden)
    square, wide, narrow = (hidden, hidden), (feed_forward, hidden), (hidden, feed_forward)
    shapes: dict[str, tuple[int, ...]] = {"attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square}
    shapes |= {"ffn_gate": wide, "ffn_up": wide, "ffn_down": narrow, "attn_norm": (hidden,), "ffn_norm": (hidden,)}
    for layer in range(layers):
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}", *shape)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    write_model(sys.argv[1], *map(int, sys.argv[2:4]))
