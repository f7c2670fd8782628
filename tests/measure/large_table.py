"""The table of docs/howto/large-models.md: `python tests/measure/large_table.py`. Nothing of it is measured."""

from __future__ import annotations

from landscape.compute.memory import H100, device_bytes, seconds_of_point

# Parameters, and those of the largest block that FSDP2 gathers: Llama's sizes, and one of a billion.
MODELS = {"1": (10**9, 50 * 10**6), "7": (7 * 10**9, 202 * 10**6), "70": (70 * 10**9, 856 * 10**6),
          "405": (405 * 10**9, 3190 * 10**6)}  # fmt: skip
DEVICES = (1, 2, 4, 8, 16, 64)
TOKENS, AT_ONCE, ROOM = 65536, 8192, 64e9  # tokens of a point and of a batch; bytes of 80 GB without activations


def table() -> str:
    """Rows of the smallest number of devices that holds each model, and of more."""
    heads = ("10⁹ weights", "devices", "weights, GB", "with the origin", "while a block is gathered",
             "s a point, FSDP2", "s a point, tensor parallel")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, (parameters, block) in MODELS.items():
        for ranks in DEVICES:
            alone = device_bytes(parameters, 2, ranks=ranks, origin_on_device=False, block=block if ranks > 1 else 0)
            both = device_bytes(parameters, 2, ranks=ranks)
            if alone.forward > ROOM:
                continue
            batches = max(1, TOKENS // (AT_ONCE * ranks))
            split = {"ranks": ranks, "batches": batches}
            gathered, along = (
                seconds_of_point(parameters, 2, TOKENS, H100, **split, gathers=gathers and ranks > 1)["point"]
                for gathers in (True, False)
            )
            origin = f"{both.held / 1e9:.3g}" if both.held <= ROOM else "no"
            lines.append(
                f"| {name} | {ranks} | {alone.held / 1e9:.3g} | {origin} | {alone.forward / 1e9:.3g} | "
                f"{gathered:.2g} | {along:.2g} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
