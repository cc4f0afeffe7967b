"""A model of transformers in memory, with what its own files say of how to talk to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.checkpoints import Checkpoint

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can generate.

    Args:
        name: As identity and messages call it.
        model: As transformers gives it, on its device.
        processor: Turns conversations into tensors, padded on the left: a processor where the
            model sees, else a tokenizer.
        tokenizer: The processor's, or the same.
        sees: Whether it takes pictures.
        context_tokens: Prompt and reply together, None where the model does not say.
        ends: The tokens that end a reply.
    """

    name: str
    model: Any
    processor: Any
    tokenizer: Any
    sees: bool
    context_tokens: int | None
    ends: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device


@dataclass(frozen=True, slots=True)
class Loader:
    """Which model to load, and how; see `LocalModel` for the knobs."""

    checkpoint: Checkpoint
    device: str
    dtype: Dtype
    attention: str | None
    trusted: bool

    def load(self) -> Loaded:
        """The model in memory; may download it.

        Raises:
            OpenEQAError: It cannot be loaded, is not whole, or is no chat model.
        """
        import torch
        from safetensors import SafetensorError

        device = _device(self.device)
        try:
            loaded = self._load(device)
        except (OSError, ValueError, ImportError, SafetensorError) as error:
            raise OpenEQAError(self._why(error)) from error
        except torch.OutOfMemoryError as error:
            raise OpenEQAError(
                f"{self.checkpoint.name} does not fit into the memory of {device}: choose a "
                "smaller model, llm.dtype=bfloat16, or another llm.device"
            ) from error
        return loaded

    def _load(self, device: torch.device) -> Loaded:
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForImageTextToText,
            AutoProcessor,
            AutoTokenizer,
        )

        source = self.checkpoint.source
        origin = {"revision": self.checkpoint.commit, "trust_remote_code": self.trusted}
        config = AutoConfig.from_pretrained(source, **origin)
        sees = _sees(config)
        processor = (AutoProcessor if sees else AutoTokenizer).from_pretrained(source, **origin)
        tokenizer = processor.tokenizer if hasattr(processor, "tokenizer") else processor
        if sees and not hasattr(processor, "image_processor"):
            raise ValueError("it has no settings for pictures (preprocessor_config.json)")
        if not processor.chat_template:
            raise ValueError("it has no chat template, so it is no chat model")
        tokenizer.padding_side = "left"
        model, report = (
            AutoModelForImageTextToText if sees else AutoModelForCausalLM
        ).from_pretrained(
            source,
            config=config,
            dtype=self.dtype,
            attn_implementation=self.attention,
            output_loading_info=True,
            **origin,
        )
        # transformers fills what is missing with random numbers.
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"its weights are not whole: {len(missing)} are missing, such as {missing[0]}"
            )
        ends = _ends(model, tokenizer)
        _plain(model, tokenizer, ends)
        context = getattr(config.get_text_config(), "max_position_embeddings", None)
        name = self.checkpoint.name
        return Loaded(name, model.to(device).eval(), processor, tokenizer, sees, context, ends)

    def _why(self, error: BaseException) -> str:
        said = " ".join(str(error).split())
        remedy = "check llm.model"
        if "trust_remote_code" in said:
            remedy = (
                "it brings Python code of its own: read that, and set llm.trust_remote_code=true "
                "if you would run it"
            )
        elif isinstance(error, ImportError):
            remedy = "install what it names, in the build that fits this torch"
        return f"{self.checkpoint.name} cannot be loaded: {said[:500]} ({remedy})"


def _device(name: str) -> torch.device:
    import torch

    here = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in here.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OpenEQAError(
            f"llm.device is '{name}': expected auto, cpu, cuda, cuda:1 or mps"
        ) from None
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if not here.get(device.type, True) or (device.index or 0) >= count:
        raise OpenEQAError(
            f"llm.device is {name}, and torch {torch.__version__} finds no such device here: "
            f"{' and '.join(kind for kind, there in here.items() if there)} can be used"
        )
    return device


def _sees(config: Any) -> bool:
    """Whether transformers, or the model's own code, has a chat model with eyes for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    own = getattr(config, "auto_map", None) or {}
    return (
        config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        or "AutoModelForImageTextToText" in own
    )


def _ends(model: Any, tokenizer: Any) -> tuple[int, ...]:
    said = model.generation_config.eos_token_id
    if said is None:
        said = tokenizer.eos_token_id
    if said is None:
        raise ValueError("it does not say which token ends a reply (eos_token_id)")
    return tuple(said) if isinstance(said, Sequence) else (said,)


def _plain(model: Any, tokenizer: Any, ends: Sequence[int]) -> None:
    """Leave nothing of the model's own sampling, and have batches padded."""
    from transformers import GenerationConfig

    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = ends[0]
    model.generation_config = GenerationConfig(
        bos_token_id=model.generation_config.bos_token_id,
        eos_token_id=list(ends),
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
