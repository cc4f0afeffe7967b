"""Real architectures with a few thousand random weights, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MARKS = ("<pad>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}PICTURE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LANGUAGE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None,
}  # fmt: skip


def tokenizer(*marks: str, template: str | None = TEMPLATE) -> Any:
    """A token a byte, and one for each mark."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: place for place, word in enumerate([*MARKS, *marks, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=MARKS[2],
        pad_token=MARKS[0],
        extra_special_tokens=[MARKS[1], *marks],
        chat_template=template,
    )


def _save(model: Any, processor: Any, folder: Path, seed: int) -> Path:
    """Weights far from zero, so that what is read changes what is said."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.25, generator=draws)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def reading(folder: Path, seed: int = 0, template: str | None = TEMPLATE) -> Path:
    """A Llama that reads text alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer(template=template)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(words), eos_token_id=2, pad_token_id=0, **LANGUAGE)
    )
    return _save(model, words, folder, seed)


def seeing(folder: Path, seed: int = 0, template: str = TEMPLATE) -> Path:
    """An Idefics3 (SmolVLM's architecture), which cuts large pictures into tiles."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *tiles]
    words = tokenizer(*marks)
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = Idefics3Processor(
        pictures, words, image_seq_len=4, chat_template=template.replace("PICTURE", "<image>")
    )
    config = Idefics3Config(
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
        text_config={
            "model_type": "llama", "vocab_size": len(words), "eos_token_id": 2, "pad_token_id": 0,
            **LANGUAGE,
        },
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        },
    )  # fmt: skip
    model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = 2
    return _save(model, processor, folder, seed)


def seeing_any_size(folder: Path, seed: int = 0) -> Path:
    """A Qwen2-VL, which gives a larger picture more tokens; its processor wants torchvision."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    words = tokenizer(*marks)
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=112 * 112),
        tokenizer=words,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE.replace("PICTURE", picture),
    )
    place = words.convert_tokens_to_ids
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(words), "eos_token_id": 2, "pad_token_id": 0,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, **LANGUAGE,
        },
        vision_config={
            "depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2,
        },
        image_token_id=place(marks[0]),
        video_token_id=place(marks[1]),
        vision_start_token_id=place(marks[2]),
        vision_end_token_id=place(marks[3]),
    )  # fmt: skip
    return _save(Qwen2VLForConditionalGeneration(config), processor, folder, seed)
