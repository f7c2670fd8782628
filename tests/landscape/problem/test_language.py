"""`Problem.causal_lm` beside a plain loop over sequences and tokens, for all forms of models and tokens."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from small_models import make_job
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from landscape import JobError, Problem, run
from landscape.problem import language
from landscape.problem.language import Padding, logits

VOCABULARY, WIDTH = 23, 8
LENGTHS = (7, 2, 5, 9)


class Backbone(nn.Module):
    """A recurrent network below its head: no token sees a later one. A mask is taken, and not needed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=True):
        assert use_cache is False
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        states = self.embed(input_ids) + self.positions(places)
        if attention_mask is not None:  # padding is skipped: it leaves the state as it is
            out = torch.zeros_like(states)
            for row, seen in enumerate(attention_mask.bool()):
                out[row, seen] = self.mix(states[row : row + 1, seen])[0][0]
            return (out,)
        return (self.mix(states)[0],)


class Network(nn.Module):
    """A model as transformers builds them: a backbone, a head, an output with logits."""

    def __init__(self, cap: float | None = None, told: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.base_model, self.head = Backbone(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.cap, self.config = cap, type("Config", (), {"final_logit_softcapping": cap if told else None})()

    def get_input_embeddings(self):
        return self.base_model.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=True):
        out = self.head(self.base_model(input_ids, attention_mask, position_ids, use_cache)[0])
        out = out if self.cap is None else torch.tanh(out / self.cap) * self.cap
        return type("Output", (), {"logits": out})()


class Plain(nn.Module):
    """Any module that returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def forward(self, tokens):
        return self.network(tokens, use_cache=False).logits


MODELS = {
    "head in chunks": Network,
    "soft cap": lambda: Network(cap=0.3),
    "cap that no config tells": lambda: Network(cap=0.3, told=False),
    "plain": Plain,
}


def sequences(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def expected(model: nn.Module, tokens: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy of one sequence, token by token, from its own logits."""
    with torch.no_grad():
        rows = logits(model, {"input_ids": tokens[None]})[0].double().log_softmax(-1)
    pairs = list(zip(rows, tokens[1:], strict=False))
    loss = [-float(row[wanted]) for row, wanted in pairs]
    return sum(loss) / len(loss), sum(int(row.argmax()) == int(wanted) for row, wanted in pairs) / len(pairs)


def batch_of(problem: Problem):
    data = problem.data
    return (
        data.collate_fn([data.dataset[k] for k in range(len(data.dataset))]) if isinstance(data, DataLoader) else data
    )


def observed(problem: Problem, batch=None):
    with torch.no_grad():
        return problem.observe(problem.model, batch_of(problem) if batch is None else batch)


@pytest.fixture(params=[1 << 27, 3 * 4 * VOCABULARY], ids=["one chunk", "chunks of three tokens"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(language, "CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("kind", MODELS)
def test_each_sequence_has_the_mean_loss_of_its_own_tokens(kind):
    problem = Problem.causal_lm(MODELS[kind](), sequences())
    values = observed(problem)
    wanted = [expected(problem.model, tokens) for tokens in sequences()]
    np.testing.assert_allclose(values["loss"], [loss for loss, _ in wanted], rtol=1e-6)
    np.testing.assert_allclose(values["token_accuracy"], [share for _, share in wanted], rtol=1e-6)
    assert values["weight"].tolist() == [length - 1 for length in LENGTHS]
    assert problem.observe.in_chunks == (kind in ("head in chunks", "soft cap"))
    assert problem.derived == {"perplexity": "exp(loss)"}


@pytest.mark.parametrize("kind", MODELS)
def test_rectangles_lists_and_data_sets_of_the_same_tokens_give_the_same(kind):
    model, tokens = MODELS[kind](), torch.stack([sequences(k)[0] for k in range(4)])
    forms = [
        tokens,
        tokens.numpy(),
        {"input_ids": tokens},
        {"input_ids": tokens.tolist()},
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
        {"input_ids": tokens, "labels": tokens},
        tokens.tolist(),
        list(tokens),
        [{"input_ids": row} for row in tokens.tolist()],
        TensorDataset(tokens),
        DataLoader(TensorDataset(tokens), collate_fn=Padding()),
    ]
    first = observed(Problem.causal_lm(model, forms[0]))
    for form in forms[1:]:
        values = observed(Problem.causal_lm(model, form))
        for name, value in first.items():
            torch.testing.assert_close(values[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_does_not_change_the_loss(side):
    tokens = sequences()
    ids, mask = torch.full((4, 12), 5), torch.zeros(4, 12, dtype=torch.long)
    for row, sequence in enumerate(tokens):
        place = slice(12 - len(sequence), 12) if side == "left" else slice(0, len(sequence))
        ids[row, place], mask[row, place] = sequence, 1
    padded = Problem.causal_lm(Network(), {"input_ids": ids, "attention_mask": mask})
    values, alone = observed(padded), observed(Problem.causal_lm(Network(), tokens))
    for name, value in alone.items():
        torch.testing.assert_close(values[name], value, rtol=1e-6, atol=1e-7)


def test_a_model_without_a_mask_takes_no_padding_on_the_left():
    ids, mask = torch.ones(1, 4, dtype=torch.long), torch.tensor([[0, 1, 1, 1]])
    with pytest.raises(JobError, match="attention_mask: sequence 0 of 1 is padded on the left"):
        Problem.causal_lm(Plain(), {"input_ids": ids, "attention_mask": mask})


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([{"text": "left out", "input_ids": tokens.tolist()} for tokens in sequences()])


def test_an_iterable_data_set_is_padded_batch_by_batch_and_foreign_columns_are_left_out():
    problem = Problem.causal_lm(Network(), Streamed())
    (batch,) = problem.data
    values, listed = observed(problem, batch), observed(Problem.causal_lm(Network(), sequences()))
    for name, value in listed.items():
        torch.testing.assert_close(values[name], value)


def test_one_batch_and_batches_of_one_give_the_same():
    problem = Problem.causal_lm(Network(), sequences())
    together = observed(problem)
    alone = [observed(problem, problem.data.collate_fn([sequence])) for sequence in sequences()]
    for name, value in together.items():
        torch.testing.assert_close(torch.cat([values[name] for values in alone]), value, rtol=1e-6, atol=1e-7)


def test_labels_say_which_tokens_count():
    tokens = sequences()[0][None]
    labels = tokens.clone()
    labels[0, :4] = -100  # a prompt
    values = observed(Problem.causal_lm(Network(), {"input_ids": tokens, "labels": labels}))
    rows = logits(Network(), {"input_ids": tokens})[0].log_softmax(-1)
    wanted = torch.stack([-rows[place - 1, tokens[0, place]] for place in (4, 5, 6)]).mean()
    torch.testing.assert_close(values["loss"][0], wanted)
    assert values["weight"].tolist() == [3]


def test_sixteen_bit_logits_are_summed_in_thirty_two():
    values = observed(Problem.causal_lm(Network().bfloat16(), sequences()))
    assert values["loss"].dtype == torch.float32
    torch.testing.assert_close(
        values["loss"], observed(Problem.causal_lm(Network(), sequences()))["loss"], rtol=0.02, atol=0
    )


def test_the_model_is_left_as_it_was_and_the_problem_travels():
    model = Network().train()
    model.head.eval()
    problem = Problem.causal_lm(model, sequences())
    assert (model.training, model.base_model.training, model.head.training) == (True, True, False)
    copied, observe = pickle.loads(pickle.dumps((problem.model.state_dict(), problem.observe)))
    other = Network()
    other.load_state_dict(copied)
    with torch.no_grad():
        assert torch.equal(observe(other, batch_of(problem))["loss"], observed(problem)["loss"])


def test_a_model_that_does_not_run_here_has_its_logits_whole(monkeypatch, caplog):
    caplog.set_level("INFO", "landscape")
    with monkeypatch.context() as patched:
        patched.setattr(Backbone, "forward", lambda self, *_, **__: 1 / 0)
        problem = Problem.causal_lm(Network(), sequences())
    assert not problem.observe.in_chunks
    assert "does not run on 8 tokens here (ZeroDivisionError" in caplog.text
    assert observed(problem)["loss"].isfinite().all()


IDS = torch.randint(0, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "tokens, text",
    [
        ("text", "must be token ids, not text 'text'"),
        (IDS.float(), "input_ids must be whole numbers with 2 dimensions, not torch.float32"),
        (IDS[0], r"must be sequences \[N, T\] with N >= 1, not \(6,\)"),
        (IDS[:0], r"must be sequences \[N, T\] with N >= 1, not \(0, 6\)"),
        ([], "must be sequences"),
        (IDS + VOCABULARY, "ids must be 0 to 22, the vocabulary of the model, not "),
        (IDS - VOCABULARY, "ids must be 0 to 22, the vocabulary of the model, not -"),
        (IDS[:, :1], "sequence 0 of 4 has 1 tokens and predicts none"),
        ([[1, 2], [3]], "sequence 1 has 1 tokens and predicts none"),
        ([[1, 2], []], "sequence 1 has 0 tokens and predicts none"),
        ([[1, 2], [3, 99]], "sequence 1: ids must be 0 to 22"),
        ([[1, 2], "ab"], "sequence 1: input_ids must be whole numbers, not 'ab'"),
        ({"ids": IDS}, "must have the field 'input_ids'"),
        ({"input_ids": 5}, r"input_ids must be sequences \[N, T\], not 5"),
        ({"input_ids": IDS, "pixels": IDS}, "unknown field 'pixels'"),
        ({"input_ids": IDS, "attention_mask": IDS[:, :3]}, "all fields must have the shape of input_ids"),
        ({"input_ids": IDS, "attention_mask": torch.zeros_like(IDS)}, "sequence 0 of 4 has 6 tokens and predicts none"),
        ({"input_ids": IDS, "labels": torch.full_like(IDS, -100)}, "predicts none"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 1]}], "all fields must have one length"),
    ],
)
def test_tokens_that_cannot_be_predicted_are_refused_with_the_place(tokens, text):
    with pytest.raises(JobError, match=text):
        Problem.causal_lm(Network(), tokens)


@pytest.mark.parametrize("batch", [[1, 2], {"input_ids": [[1, 2]]}, {"ids": IDS}, torch.arange(5)])
def test_a_batch_that_is_no_tokens_is_told_what_it_must_be(batch):
    problem = Problem.causal_lm(Network(), IDS)
    with pytest.raises(JobError, match=r"^tokens: a batch must be token ids \[N, T\], or a dict of"):
        problem.observe(problem.model, batch)


def test_a_foreign_id_from_a_loader_is_refused_when_it_is_observed():
    loader = DataLoader(TensorDataset(IDS + VOCABULARY), collate_fn=Padding())
    problem = Problem.causal_lm(Network(), loader)
    with pytest.raises(JobError, match="ids must be 0 to 22"):
        observed(problem)


def test_a_model_that_returns_no_logits_is_refused():
    class Other(nn.Linear):
        def forward(self, tokens):
            return {"states": tokens}

    with pytest.raises(JobError, match="must return logits"):
        Problem.causal_lm(Other(2, 2), IDS)


def test_adapters_that_were_loaded_frozen_are_refused():
    model = Network().requires_grad_(False)
    model.peft_config = {}
    with pytest.raises(JobError, match="is_trainable=True"):
        Problem.causal_lm(model, IDS)


def test_a_model_that_translates_is_refused():
    model = Network()
    model.config.is_encoder_decoder = True
    with pytest.raises(JobError, match="must predict the next token of what it reads, not Network"):
        Problem.causal_lm(model, IDS)


def test_sequences_beyond_the_positions_of_a_model_are_refused():
    model = Network()
    model.config.max_position_embeddings = 16
    problem = Problem.causal_lm(model, torch.ones(2, 17, dtype=torch.long))
    with pytest.raises(JobError, match="must have at most 16 tokens, the positions of the model, not 17"):
        observed(problem)


@pytest.mark.long
@pytest.mark.parametrize("batch_size, order", [(1, 1), (3, 1), (64, 1), (2, -1)])
def test_a_landscape_is_the_mean_over_tokens_in_batches_of_any_size_and_order(tmp_path, batch_size, order):
    def problem() -> Problem:
        return Problem.causal_lm(Network(), sorted(sequences(), key=len)[::order] if order < 0 else sequences())

    job = make_job(
        tmp_path, problem, [{"name": "a", "size": 3}], num_samples=4, batch_size=batch_size, tile=3, engine="eager"
    )
    surface = run(job)["a"]
    pairs = [(expected(Network(), tokens)[0], len(tokens) - 1) for tokens in sequences()]
    mean = sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)
    assert surface.origin_loss == pytest.approx(mean, rel=1e-6)
    np.testing.assert_array_equal(surface["perplexity"], np.exp(surface.loss))
    error = sum((count * (loss - mean)) ** 2 for loss, count in pairs) ** 0.5 / sum(count for _, count in pairs)
    assert surface.origin_loss_stderr == pytest.approx(error * (4 / 3) ** 0.5, rel=1e-5)
    assert (surface.record.weighted, surface.record.samples_in_words) == (True, "4, weighted")


def test_the_vocabulary_may_be_large_beside_the_chunk():
    model = copy.deepcopy(Network())
    problem = Problem.causal_lm(model, IDS)
    assert problem.observe.vocabulary == VOCABULARY
    assert math.isfinite(float(observed(problem)["loss"].sum()))


def test_the_model_is_fed_all_tokens_and_one_whose_context_is_shorter_says_so(tmp_path):
    class Placed(nn.Module):
        def __init__(self, context: int) -> None:
            super().__init__()
            self.fed: list[int] = []
            self.tokens, self.places, self.out = nn.Embedding(50, 8), nn.Embedding(context, 8), nn.Linear(8, 50)

        def forward(self, tokens):
            self.fed.append(tokens.shape[1])
            return self.out(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))

    rows = torch.randint(0, 50, (4, 17))
    whole = Problem.causal_lm(Placed(17), rows)
    assert whole.observe(whole.model, rows)["weight"].tolist() == [16] * 4
    assert set(whole.model.fed[-1:]) == {17}
    cut = Problem.causal_lm(Placed(16), rows)
    with pytest.raises(JobError, match=r"is fed all 17 tokens of a sequence, and raises .*T tokens make T - 1 pred"):
        cut.observe(cut.model, rows)
