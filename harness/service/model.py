"""A made-up model folder: what FastDeploy reads of one before it loads weights."""

import io
import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END, PAD, START = "<|endoftext|>", "<|pad|>", "<|im_start|>"
MARKS = ("<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>")
_ERNIE = (
    *("<|begin_of_sentence|>", "<|end_of_sentence|>", "<cls>", "<sep>", "<|im_start|>", "<|im_end|>"),
    *(f"<|{kind}_{place}|>" for kind in ("IMAGE", "VIDEO") for place in ("START", "END")),
    "<|IMAGE_PLACEHOLDER|>", *(f"<mask:{number}>" for number in range(8)),
)  # fmt: skip
_WORDS = "the of and a to in is you that it he was for on are as with his they at be this have from"
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make(folder: Path, layers: int = 2, experts: int = 0) -> tuple[int, int]:
    """Write the folder of a text model.

    Parameters
    ----------
    layers : int
        The made-up model's.
    experts : int
        How many of 128 each token has in each layer; 0: the model has none.

    Returns
    -------
    first, last : int
        Ids from first to last - 1 are text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="Qwen2Tokenizer",
        model_max_length=32768,
        eos_token=END,
        pad_token=PAD,
        bos_token=None,
        clean_up_tokenization_spaces=False,
        chat_template=_TEMPLATE,
    )
    vocabulary = json.loads(tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in vocabulary["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    more = {"moe_k": experts, "moe_num_experts": 128} if experts else {}
    _write_configs(folder, "Qwen2ForCausalLM", "qwen2", size, layers, end, end, pad, **more)
    return 3 + len(MARKS), size


def _write_configs(
    folder: Path, cls: str, kind: str, size: int, layers: int, end: int, begin: int, pad: int, **more: object
) -> None:
    """Write what FastDeploy reads of a model's shape and of how it samples."""
    _write(
        folder / "config.json",
        architectures=[cls],
        model_type=kind,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=32768,
        vocab_size=size,
        tie_word_embeddings=True,
        torch_dtype="bfloat16",
        eos_token_id=end,
        bos_token_id=begin,
        pad_token_id=pad,
        **more,
    )
    _write(
        folder / "generation_config.json", eos_token_id=[end], pad_token_id=pad, top_p=0.8, temperature=0.7
    )


def ids_of(folder: Path, text: str) -> list[int]:
    """The tokens of a text, marks as one token each."""
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def make_multimodal(folder: Path) -> tuple[int, int]:
    """Write the folder of an ERNIE-4.5-VL, whose tokenizer and preprocessor of images are FastDeploy's.

    Returns
    -------
    first, last : int
        As of `make`.
    """
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    symbols = [*_ERNIE, *MARKS]
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_text()), model_writer=made, model_type="bpe", vocab_size=1200,
        byte_fallback=True, user_defined_symbols=symbols, pad_id=3, hard_vocab_limit=False,
        add_dummy_prefix=False, minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(made.getvalue())
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    size = tokenizer.vocab_size()
    _write(
        folder / "tokenizer_config.json",
        tokenizer_class="Ernie4_5Tokenizer",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<|begin_of_sentence|>",
        sep_token="<|end_of_sentence|>",
        mask_token="<mask:1>",
        chat_template=_TEMPLATE,
    )
    ids = tokenizer.eos_id(), tokenizer.bos_id(), tokenizer.pad_id()
    _write_configs(
        folder, "Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_moe_vl", size, 2, *ids,
        rope_3d=True,
        freq_allocation=4,
        im_patch_id=tokenizer.piece_to_id("<|IMAGE_PLACEHOLDER|>"),
        spatial_conv_size=2,
        temporal_conv_size=2,
        vision_config={"depth": 1, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 14},
    )  # fmt: skip
    _write(folder / "preprocessor_config.json", patch_size=14, merge_size=2, temporal_conv_size=2)
    return 4 + len(symbols), size


def _text() -> list[str]:
    """Text that tokenizers are made of."""
    words = _WORDS.split()
    text = [f"{a} {b} {c}{n}" for n, (a, b) in enumerate(itertools.pairwise(words)) for c in words]
    return text + ["你好，世界。", "naïve café – déjà vu", "def f(x):\n    return x + 1\n"] * 20


def _tokenizer() -> Tokenizer:
    """Byte-level, with a few merges: some tokens are parts of a character, as in real ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=[END, PAD, START, *MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    return tokenizer


def _write(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False))
