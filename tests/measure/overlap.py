"""How much of the time that streamed samples travel to the GPU passes while others compute. Run it on a quiet machine.

    python tests/measure/overlap.py

Prints the milliseconds of computing alone, of travelling alone and of both at once: near the larger of the two where
they overlap, near their sum where they do not.
"""

from __future__ import annotations

import torch

from landscape.evaluation.feed import Feed, make_feed
from landscape.problem.batches import batch_edges

BATCHES, BATCH_SIZE = 32, 16


def milliseconds(feed: Feed | None, products: int, matrix: torch.Tensor) -> float:
    """Of all batches, each with so many products of the matrix; without a feed nothing travels."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(BATCHES) if feed is None else feed.batches():
        for _ in range(products):
            matrix @ matrix
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def main() -> None:
    gpu = torch.device("cuda:0")
    samples = torch.randint(0, 255, (BATCHES * BATCH_SIZE, 1 << 20), dtype=torch.uint8)  # 16 MiB a batch
    feed, matrix = make_feed(samples, gpu, torch.float32, limit=1 << 20), torch.randn(4096, 4096, device=gpu)
    feed.split(batch_edges(BATCHES * BATCH_SIZE, BATCH_SIZE))
    milliseconds(feed, 1, matrix)  # the first round loads the library and pins the memory
    print(f"computing alone    {milliseconds(None, 20, matrix):8.1f} ms")
    print(f"travelling alone   {milliseconds(feed, 0, matrix):8.1f} ms")
    print(f"both at once       {milliseconds(feed, 20, matrix):8.1f} ms")


if __name__ == "__main__":
    main()
