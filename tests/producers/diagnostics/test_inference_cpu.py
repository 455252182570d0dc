"""`diagnose-unsloth --backend transformers` on a real model, made here of random weights, on the CPU.

Torch and transformers take gigabytes, so they may be in a folder of their own that TORCH_SITE names:

    uv pip install --target FOLDER torch transformers
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAM = '''
"""Make a model, run the command on it, and time the same by hand in the same process."""

import json, sys, time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mlops_events.producers.cli import main

folder, tokens, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
words = "<s> </s> <pad> <unk> a training run on many machines writes what it measures".split()
tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
).save_pretrained(folder)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
    bos_token_id=0, eos_token_id=1, pad_token_id=2,
))
model.save_pretrained(folder)

args = ["--backend", "transformers", "--model", folder, "--new-tokens", str(tokens)]
code = main(["diagnose-unsloth", *args, "--runs", str(runs), "--json"])

loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
prompt = AutoTokenizer.from_pretrained(folder)("a training run on many machines", return_tensors="pt")
rates = []
for _ in range(runs + 1):
    began = time.perf_counter()
    with torch.inference_mode():
        made = loaded.generate(input_ids=prompt["input_ids"], max_new_tokens=tokens,
                               min_new_tokens=tokens, do_sample=False)
    rates.append((made.shape[1] - prompt["input_ids"].shape[1]) / (time.perf_counter() - began))
print(json.dumps({
    "code": code,
    "by_hand": sorted(rates[1:])[runs // 2],
    "parameters": sum(p.numel() for p in model.parameters()),
}))
'''
TOKENS, RUNS = 48, 5


@pytest.fixture(scope="module")
def torch_site() -> str:
    """The folder that torch and transformers are in; "" where they are installed as usual."""
    if find_spec("torch") and find_spec("transformers"):
        return ""
    folder = os.environ.get("TORCH_SITE", "")
    if not all((Path(folder) / name).is_dir() for name in ("torch", "transformers")):
        pytest.skip(
            "no torch and transformers; run: uv pip install --target FOLDER torch transformers, "
            "and set TORCH_SITE=FOLDER"
        )
    return folder


@pytest.fixture(scope="module")
def told(torch_site: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command said of a model of a few hundred parameters, and what was timed by hand."""
    model = tmp_path_factory.mktemp("model")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(TOKENS), str(RUNS)],
        env={**os.environ, "PYTHONPATH": torch_site, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, by_hand = done.stdout.splitlines()
    return {"found": json.loads(found), **json.loads(by_hand)}


def test_the_command_measures_a_model(told: dict[str, Any]) -> None:
    """All of it: versions, the model that ran, where, with what it was loaded."""
    found, measured = told["found"], told["found"]["benchmark"]

    assert told["code"] == 0
    assert told["parameters"] < 1000
    assert found["installation"]["facts"]["versions"]["torch"]
    assert (measured["backend"], measured["device"], measured["dtype"]) == (
        "transformers",
        "cpu",
        "float32",
    )
    assert measured["memory_of"] == "process"
    assert measured["peak_memory"] > 50 << 20
    assert measured["load_s"] > 0


def test_only_new_tokens_are_counted(told: dict[str, Any]) -> None:
    """As many as were wanted, of which the first is there before the last."""
    measured = told["found"]["benchmark"]

    assert measured["prompt_tokens"] > 0
    assert [run["new_tokens"] for run in measured["runs"]] == [TOKENS] * RUNS
    assert all(0 < run["first_token_ns"] < run["duration_ns"] for run in measured["runs"])


def test_the_rate_is_that_of_a_loop_timed_by_hand(told: dict[str, Any]) -> None:
    """In the same process; widely, since the machine may be busy with other things meanwhile."""
    measured = told["found"]["benchmark"]

    assert measured["slowest"] <= measured["tokens_per_second"] <= measured["fastest"]
    assert 0.1 < measured["tokens_per_second"] / told["by_hand"] < 10
