"""Peak memory of the loss of a language model with a large vocabulary: `Problem.causal_lm` beside the plain loss.

    python tests/measure/language_memory.py [vocabulary] [tokens]

Each way runs in a process of its own, after a pass over few tokens; printed is what the memory of the process grows by
at most, and the loss. Needs transformers.
"""

from __future__ import annotations

import resource
import subprocess
import sys

WAYS = ("plain", "causal_lm")


def measured(way: str, vocabulary: int, length: int) -> tuple[float, float]:
    """MiB that the process grows by, and the loss."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from landscape import Problem

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=vocabulary, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    tokens = torch.randint(0, vocabulary, (1, length))
    problem = Problem.causal_lm(model.requires_grad_(True), tokens)

    def loss(given: torch.Tensor) -> float:
        with torch.no_grad():
            if way == "plain":
                return float(model(input_ids=given, labels=given, use_cache=False).loss)
            return float(problem.observe(model, {"input_ids": given})["loss"])

    loss(tokens[:, :8])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value = loss(tokens)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, value


def main() -> None:
    vocabulary, length = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 131072), (2, 2048)))
    if len(sys.argv) > 3:
        print(*measured(sys.argv[3], vocabulary, length))
        return
    peaks = {}
    for way in WAYS:
        command = [sys.executable, "-W", "ignore", __file__, str(vocabulary), str(length), way]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        peaks[way] = float(printed[-2])
        print(f"{way:10} {peaks[way]:8.0f} MiB   loss {float(printed[-1]):.7f}")
    print(f"ratio      {peaks['causal_lm'] / peaks['plain']:8.3f}")


if __name__ == "__main__":
    main()
