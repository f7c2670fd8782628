"""Language models of transformers and peft beside their own loss, `model(labels=...).loss`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from blocks import blocks_of
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from landscape import Job, JobError, Problem, run
from landscape.model.parameters import describe_parameters

pytestmark = pytest.mark.frameworks

DOCS = Path(__file__).parents[2] / "docs"
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=256)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=0.5)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
}
LENGTHS = (17, 5, 11, 2, 8, 14)


def model_of(kind: str):
    torch.manual_seed(0)
    return MODELS[kind]().eval()


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in LENGTHS]


def own_loss(model) -> float:
    """The mean over all predicted tokens, by the model's own loss, sequence by sequence."""
    total = tokens = 0.0
    with torch.no_grad():
        for sequence in sequences():
            ids = torch.tensor([sequence])
            total += float(model(input_ids=ids, labels=ids).loss) * (len(sequence) - 1)
            tokens += len(sequence) - 1
    return total / tokens


def computed(folder, problem, **fields):
    landscapes = [{"name": "plane", "size": 3, "range": [-0.1, 0.1]}]
    fields = {"num_samples": len(LENGTHS), "tile": 3, "engine": "eager"} | fields
    return run(Job(run=str(folder), problem=problem, landscapes=landscapes, **fields))["plane"]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_the_origin_has_the_loss_that_the_model_computes_itself(kind, batch_size, tmp_path):
    surface = computed(tmp_path, lambda: Problem.causal_lm(model_of(kind), sequences()), batch_size=batch_size)
    expected = own_loss(model_of(kind))
    assert surface.origin_loss == pytest.approx(expected, rel=1e-6)
    assert surface.loss[1, 1] == surface.origin_loss
    assert surface["perplexity"][1, 1] == pytest.approx(float(torch.tensor(expected).double().exp()), rel=1e-5)
    assert Problem.causal_lm(model_of(kind), sequences()).observe.in_chunks


def test_a_padded_batch_has_the_loss_of_labels_without_the_padding(tmp_path):
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in sequences()], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(length) for length in LENGTHS], batch_first=True).long()
    batch = {"input_ids": ids, "attention_mask": mask}
    surface = computed(tmp_path, lambda: Problem.causal_lm(model_of("llama"), batch))
    with torch.no_grad():
        expected = model_of("llama")(**batch, labels=ids.masked_fill(mask == 0, -100), use_cache=False).loss
    assert surface.origin_loss == pytest.approx(float(expected), rel=1e-6)


def test_a_column_of_a_data_set_is_the_same_as_the_list(tmp_path):
    columns = {"text": ["left out"] * len(LENGTHS), "input_ids": sequences()}
    rows = Dataset.from_dict(columns | {"attention_mask": [[1] * length for length in LENGTHS]})
    for number, data in enumerate((rows, rows.with_format("torch"), rows.to_iterable_dataset())):
        surface = computed(tmp_path / str(number), lambda data=data: Problem.causal_lm(model_of("llama"), data))
        assert surface.origin_loss == pytest.approx(own_loss(model_of("llama")), rel=1e-6)


def lora(rank: int = 4):
    torch.manual_seed(2)
    settings = LoraConfig(target_modules=["q_proj", "v_proj"], r=rank, init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(model_of("llama"), settings).eval()


def test_only_adapters_move(tmp_path):
    surface = computed(tmp_path, lambda: Problem.causal_lm(lora(), sequences()))
    assert surface.origin_loss == pytest.approx(own_loss(lora()), rel=1e-6)
    assert surface.loss[0, 0] != surface.loss[1, 1]
    moving = [info.name for info in describe_parameters(lora()) if info.trainable]
    assert len(moving) == 8  # A and B, of q and v, in two layers
    assert all("lora_" in name for name in moving)


def test_an_adapter_that_was_loaded_frozen_is_refused_with_the_remedy(tmp_path):
    lora().save_pretrained(str(tmp_path))
    with pytest.raises(JobError, match="is_trainable=True"):
        Problem.causal_lm(PeftModel.from_pretrained(model_of("llama"), str(tmp_path)), sequences())
    loaded = PeftModel.from_pretrained(model_of("llama"), str(tmp_path), is_trainable=True).eval()
    problem = Problem.causal_lm(loaded, sequences())
    with torch.no_grad():
        values = problem.observe(loaded, problem.data.collate_fn(sequences()))
    mean = (values["loss"] * values["weight"]).sum() / values["weight"].sum()
    assert float(mean) == pytest.approx(own_loss(lora()), rel=1e-6)


@pytest.mark.timeout(600)
def test_smollm2_has_the_loss_that_it_computes_itself(tmp_path, monkeypatch):
    """The example of the documentation, whole, at one point: a real model of 135 million parameters."""
    (block,) = (block for block in blocks_of(DOCS / "howto" / "language-models.md") if block.file == "smollm2.py")
    (tmp_path / "smollm2.py").write_text(block.code)
    problem = runpy.run_path(str(tmp_path / "smollm2.py"))["problem"]()
    tokens = problem.data.dataset
    with torch.no_grad():
        values = problem.observe(problem.model.eval(), problem.data.collate_fn(tokens))
        expected = [
            float(problem.model(input_ids=row, labels=row).loss) for row in map(torch.tensor, ([t] for t in tokens))
        ]
    torch.testing.assert_close(values["loss"], torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert problem.observe.in_chunks
    assert float(values["token_accuracy"].mean()) > 0.3
