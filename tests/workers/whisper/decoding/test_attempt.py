"""Greedy, sampling and beams over toy logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.workers.whisper.toy import DIMS, VOCAB, ToyEncoded, ToyModel, ToyRows, hashed
from workers.whisper.decoding.attempt import Attempt, Beams, Hypothesis, Independent, Limits, compression_ratio
from workers.whisper.decoding.filters import Filters
from workers.whisper.decoding.sampling import Sampler
from workers.whisper.tokenizer import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
EOT = TOKENIZER.eot
PROMPT = [50258, 50259, 50359, 50363]
LIMITS = Limits(224, 448)


def drive(
    model: ToyModel, make: Callable[[ToyRows], Attempt], prompt: Sequence[int] = PROMPT, key: bytes = b"w"
) -> Attempt:
    rows, logits = model.prefill(ToyEncoded(1500, key, np.zeros(1)), prompt, [-1])
    attempt = make(rows)
    attempt.feed(logits)
    while (tokens := attempt.wants()) is not None:
        attempt.feed(model.step([attempt.search.rows], [tokens])[0])
    return attempt


def untimed() -> Filters:
    return Filters(TOKENIZER, VOCAB, timestamps=False)


def independent(n: int = 1, temperature: float = 0.0, key: tuple[int, ...] = (1, 2)) -> Callable[[ToyRows], Attempt]:
    return lambda rows: Attempt(Independent(rows, EOT, n, Sampler(temperature, key)), untimed(), LIMITS, len(PROMPT))


def beams(
    size: int, patience: float = 1.0, penalty: float | None = None, limits: Limits = LIMITS
) -> Callable[[ToyRows], Attempt]:
    return lambda rows: Attempt(Beams(rows, EOT, size, patience), untimed(), limits, len(PROMPT), penalty)


def test_greedy_takes_the_likeliest_token_until_the_end() -> None:
    best = drive(ToyModel(), independent()).best()
    rows, logits = ToyModel().prefill(ToyEncoded(1500, b"w", np.zeros(1)), PROMPT, [-1])
    said: list[int] = []
    filters = untimed()
    for _ in range(len(best.tokens)):
        token = int(filters.apply(logits, [said])[0].argmax())
        said.append(token)
        logits = ToyModel().step([rows], [np.array([token])])[0]
    assert said == best.tokens
    assert int(filters.apply(logits, [said])[0].argmax()) == EOT or len(said) == 224
    assert best.sum_logprob < sum(best.logprobs) + 1e-9
    assert len(best.logprobs) == len(best.tokens)


def test_samples_do_not_depend_on_how_many_there_are() -> None:
    alone = drive(ToyModel(), independent(1, 4.0)).search.candidates()
    five = drive(ToyModel(), independent(5, 4.0)).search.candidates()
    assert five[0].tokens == alone[0].tokens
    assert len({tuple(row.tokens) for row in five}) == 5


def test_another_key_is_another_sample() -> None:
    one = drive(ToyModel(), independent(1, 4.0, (1, 0))).best()
    other = drive(ToyModel(), independent(1, 4.0, (1, 3000))).best()
    assert one.tokens != other.tokens


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    sampler = Sampler(1.0, (7,))
    counts = np.bincount([sampler.choose(logits, 0, i) for i in range(4000)], minlength=4) / 4000
    assert np.abs(counts - [0.5, 0.25, 0.125, 0.125]).max() < 0.03
    assert {Sampler(0.01, (7,)).choose(logits, 0, i) for i in range(100)} == {0}


def openai_beam_search(
    model: ToyModel, size: int, patience: float, penalty: float | None, sample_len: int = 224
) -> list[int]:
    """openai/whisper's algorithm written down plainly, without caches."""
    filters, encoded = untimed(), ToyEncoded(1500, b"w", np.zeros(1))
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: dict[tuple[int, ...], float] = {}
    for _ in range(sample_len):
        scores: dict[tuple[int, ...], float] = {}
        for said, total in live:
            logits = filters.apply(model.says(encoded, [*PROMPT, *said])[None], [list(said)])[0].astype(np.float64)
            logprobs = logits - np.logaddexp.reduce(logits)
            for token in np.argsort(-logprobs, kind="stable")[: size + 1]:
                scores[(*said, int(token))] = total + logprobs[token]
        live, newly = [], {}
        for said in sorted(scores, key=scores.__getitem__, reverse=True):
            if said[-1] == EOT:
                newly[said] = scores[said]
            else:
                live.append((said, scores[said]))
                if len(live) == size:
                    break
        for said in sorted(newly, key=newly.__getitem__, reverse=True):
            if len(finished) < round(size * patience):
                finished[said] = newly[said]
        if len(finished) >= round(size * patience):
            break
    for said, total in sorted(live, key=lambda item: -item[1]):
        if len(finished) >= size:
            break
        finished[(*said, EOT)] = total

    def score(said: tuple[int, ...]) -> float:
        length = len(said) - 1
        return finished[said] / (length if penalty is None else ((5 + length) / 6) ** penalty)

    return list(max(finished, key=score)[:-1])


def test_beams_equal_openais_search() -> None:
    for size, patience, penalty in [(2, 1.0, None), (5, 1.0, None), (5, 2.0, None), (3, 0.5, 0.6), (4, 1.0, 0.0)]:
        model = ToyModel()
        expected = openai_beam_search(model, size, patience, penalty)
        found = drive(ToyModel(), beams(size, patience, penalty)).best()
        assert found.tokens == expected, (size, patience, penalty)


def test_beams_cut_short_rank_what_there_is() -> None:
    found = drive(ToyModel(), beams(5, limits=Limits(6, 448))).best()
    assert found.tokens == openai_beam_search(ToyModel(), 5, 1.0, None, sample_len=6)


def test_one_beam_is_greedy() -> None:
    assert drive(ToyModel(), beams(1)).best().tokens == drive(ToyModel(), independent()).best().tokens


def never_ends(encoded: ToyEncoded, said: list[int]) -> np.ndarray:
    logits = hashed(encoded, said)
    logits[EOT] = -50
    return logits


def test_an_attempt_stops_at_half_the_context() -> None:
    assert len(drive(ToyModel(never_ends), independent()).best().tokens) == 224


def test_a_full_prompt_leaves_as_many_tokens_as_the_reference_takes() -> None:
    prompt = [50361, *[1] * 223, 50258, 50259, 50359]
    attempt = drive(
        ToyModel(never_ends),
        lambda rows: Attempt(Independent(rows, EOT, 1, Sampler(0, ())), untimed(), LIMITS, len(prompt)),
        prompt,
    )
    assert attempt.search.rows.position == DIMS.n_text_ctx
    assert len(attempt.best().tokens) == 449 - len(prompt)


def test_the_result_counts_the_end_of_text() -> None:
    attempt = drive(ToyModel(), independent())
    result = attempt.result(TOKENIZER, 0.0, 0.25)
    row = attempt.search.candidates()[0]
    assert math.isclose(result.avg_logprob, sum(row.logprobs) / (len(result.tokens) + 1))
    assert result.no_speech_prob == 0.25


def test_compression_ratio_is_the_references() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("ha" * 100) > 10


def test_a_hypothesis_is_extended_without_touching_its_prefix() -> None:
    row = Hypothesis([1], [-0.5], -0.5)
    assert row.extended(2, -1.0).tokens == [1, 2]
    assert row.tokens == [1]
