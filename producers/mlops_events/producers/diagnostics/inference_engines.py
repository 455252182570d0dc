"""Loads a model with unsloth or transformers; both, and torch, are imported when one is asked for."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mlops_events.producers.diagnostics.inference import Backend, InferenceUnavailableError

__all__ = ["load_engine"]

_MAX_SEQUENCE = 2048
_INSTALL = {
    "unsloth": 'pip install "mlops-events[unsloth]"',
    "transformers": "pip install torch transformers",
}


def load_engine(model: str, *, backend: Backend, prompt: str, load_in_4bit: bool) -> "Engine":
    """Load a model.

    Raises:
        InferenceUnavailableError: something is missing, or it cannot be loaded.
    """
    for name in ("torch", backend):
        if find_spec(name) is None:
            raise InferenceUnavailableError(f"{name} is not installed; run: {_INSTALL[backend]}")
    if _is_path(model) and not Path(model).expanduser().is_dir():
        raise InferenceUnavailableError(
            f"there is no folder {model}; give one that has a model, or a name on Hugging Face"
        )
    try:
        if backend == "unsloth":
            return _with_unsloth(model, prompt, load_in_4bit=load_in_4bit)
        return _with_transformers(model, prompt)
    except Exception as error:  # these libraries raise of all kinds, for all kinds of reasons
        raise InferenceUnavailableError(
            f"{model} cannot be loaded with {backend}: {_first_line(error)}"
        ) from error


class Engine:
    """A loaded model of transformers, made by whichever library."""

    memory_of: Literal["GPU", "process"]

    def __init__(
        self, model: Any, tokenizer: Any, *, asked: str, backend: str, prompt: str
    ) -> None:
        self._torch: Any = import_module("torch")
        self._model = model
        where = next(model.parameters()).device
        inputs = tokenizer(prompt, return_tensors="pt")
        self._inputs = {name: inputs[name].to(where) for name in ("input_ids", "attention_mask")}
        pad = tokenizer.pad_token_id
        self._pad = tokenizer.eos_token_id if pad is None else pad
        self._where = where
        self.backend = backend
        self.model = str(getattr(model.config, "_name_or_path", "") or asked)
        self.dtype = str(model.dtype).removeprefix("torch.")
        if getattr(model, "is_loaded_in_4bit", False):
            self.dtype += ", weights in 4 bits"
        self.prompt_tokens = int(self._inputs["input_ids"].shape[1])
        on_gpu = where.type == "cuda"
        self.device = str(self._torch.cuda.get_device_name(where)) if on_gpu else str(where.type)
        self.memory_of = "GPU" if on_gpu else "process"
        if on_gpu:
            self._torch.cuda.reset_peak_memory_stats(where)

    def generate(self, new_tokens: int, first: Callable[[], None], /) -> int:
        """Generate greedily, and wait until all of it is there."""
        self._wait()
        with self._torch.inference_mode():
            output = self._model.generate(
                **self._inputs,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,  # as many, whatever the model would like to say
                do_sample=False,
                pad_token_id=self._pad,
                streamer=_FirstToken(first),
            )
        self._wait()
        return int(output.shape[1]) - self.prompt_tokens

    def peak_memory(self) -> int | None:
        """Return the most that torch had allocated on the GPU, or that this process had resident."""
        if self.memory_of == "GPU":
            return int(self._torch.cuda.max_memory_allocated(self._where))
        return _peak_resident()

    def _wait(self) -> None:
        if self.memory_of == "GPU":
            self._torch.cuda.synchronize(self._where)


class _FirstToken:
    """What transformers hands the prompt to, then each token as it is made."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._puts = 0

    def put(self, value: object) -> None:
        self._puts += 1
        if self._puts == 2:
            self._first()

    def end(self) -> None:
        pass


def _with_unsloth(name: str, prompt: str, *, load_in_4bit: bool) -> Engine:
    fast: Any = import_module("unsloth").FastLanguageModel
    model, tokenizer = fast.from_pretrained(
        model_name=name, max_seq_length=_MAX_SEQUENCE, dtype=None, load_in_4bit=load_in_4bit
    )
    fast.for_inference(model)
    return Engine(model, tokenizer, asked=name, backend="unsloth", prompt=prompt)


def _with_transformers(name: str, prompt: str) -> Engine:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(name).eval()
    if torch.cuda.is_available() and not getattr(model, "is_quantized", False):
        model = model.to("cuda")
    return Engine(model, tokenizer, asked=name, backend="transformers", prompt=prompt)


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).exists()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else repr(error)


def _peak_resident() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0)) or None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
