"""Train a byte-level Mamba language model on the CPU, then save it for C++.

    python train_lm.py                      # a minute on the English text of Python's own language reference
    python train_lm.py --text book.txt --seconds 600 --out .

Writes model.pt, which `generate` (generate.cpp) runs without Python, and reference.pt, the logits that it compares
its own with.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from mamba_ops.nn import MambaConfig, MambaLM
from torch import Tensor


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="file to learn from; default: the text of pydoc_data.topics")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for model.pt and reference.pt")
    parser.add_argument("--seconds", type=float, default=60, help="time to train for")
    parser.add_argument("--steps", type=int, help="train for so many steps instead")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--state", type=int, default=16, help="states per channel")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="bytes of context in training")
    parser.add_argument("--lr", type=float, default=5e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_bytes(path: Path | None) -> Tensor:
    """The text as byte values, (length,) int64."""
    if path is not None:
        text = path.read_bytes()
    else:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


class Progress:
    """A bar redrawn in place on a terminal; a line every twentieth of the way elsewhere."""

    def __init__(self, width: int = 30) -> None:
        self.width, self.terminal, self.drawn = width, sys.stdout.isatty(), -1

    def show(self, fraction: float, note: str) -> None:
        step = int(fraction * (1000 if self.terminal else 20))  # how often there is something new to show
        if step == self.drawn:
            return
        self.drawn = step
        filled = int(fraction * self.width)
        bar = f"[{'#' * filled}{'.' * (self.width - filled)}] {int(100 * fraction):3d}%  {note}"
        print(f"\r{bar}\033[K" if self.terminal else bar, end="" if self.terminal else "\n", flush=True)

    def close(self) -> None:
        if self.terminal:
            print()


def train(model: MambaLM, text: Tensor, args: argparse.Namespace) -> None:
    """AdamW on random windows of the text; the learning rate warms up, then falls to zero at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    window = torch.arange(args.length + 1)
    progress, start, steps, smooth = Progress(), time.perf_counter(), 0, math.nan

    def fraction_done() -> float:
        return steps / args.steps if args.steps else (time.perf_counter() - start) / args.seconds

    while (fraction := fraction_done()) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (steps + 1) / 20) * 0.5 * (1 + math.cos(math.pi * fraction))
        batch = text[torch.randint(len(text) - args.length, (args.batch, 1)) + window]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        steps += 1
        bits = loss.item() / math.log(2)
        smooth = bits if math.isnan(smooth) else 0.9 * smooth + 0.1 * bits
        progress.show(fraction, f"step {steps:4d}   loss {smooth:.2f} bits per byte")
    progress.show(1.0, f"step {steps:4d}   loss {smooth:.2f} bits per byte")
    progress.close()


@torch.no_grad()
def bits_per_byte(model: MambaLM, text: Tensor, chunk: int = 1024) -> float:
    """The mean loss over a text read once from its start, the state carried from chunk to chunk."""
    total, cache = 0.0, model.new_cache(1)
    for part in range(0, len(text) - 1, chunk):
        ids, targets = text[part : part + chunk + 1][:-1], text[part + 1 : part + chunk + 1]
        hidden, cache = model.backbone.prefill(ids[None], cache)
        total += F.cross_entropy(model.lm_head(hidden)[0], targets, reduction="sum").item()
    return total / math.log(2) / (len(text) - 1)


@torch.no_grad()
def reference(model: MambaLM, prompt: Tensor, steps: int = 64) -> dict[str, Tensor]:
    """What C++ is compared with: the logits of a prompt at once, then those of each decoding step, greedily."""
    logits, cache = model.prefill(prompt)
    tokens, decoded = [], [logits]
    for _ in range(steps):
        tokens.append(decoded[-1].argmax(-1))
        decoded.append(model.step(tokens[-1], cache))
    return {
        "prompt": prompt,
        "prompt_logits": model(prompt),
        "tokens": torch.stack(tokens, 1),
        "decoded_logits": torch.stack(decoded, 1),
    }


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    text = read_bytes(args.text)
    if len(text) < 20 * (args.length + 1):
        sys.exit(f"the text has {len(text)} bytes: too short to learn from and to hold some out")
    held_out = text[-len(text) // 20 :]
    text = text[: -len(held_out)]

    model = MambaLM(MambaConfig(vocab_size=256, d_model=args.d_model, n_layer=args.layers, d_state=args.state))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size:,} parameters, {len(text):,} bytes to learn from, {torch.get_num_threads()} threads")
    before = bits_per_byte(model, held_out)
    train(model, text, args)
    print(f"held-out text: {before:.2f} bits per byte before, {bits_per_byte(model, held_out):.2f} after")

    args.out.mkdir(parents=True, exist_ok=True)
    model.eval()
    torch.jit.script(model).save(args.out / "model.pt")
    torch.save(reference(model, held_out[None, :256].clone()), args.out / "reference.pt")
    print(f"saved {args.out / 'model.pt'} and {args.out / 'reference.pt'}")


if __name__ == "__main__":
    main()
