"""Whose prompt is read next, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from workers.llm.queue import Line, Pace, Shares


@dataclass(eq=False)
class Prompt:
    client: str
    left: int


def line_of(shares: Shares, *prompts: Prompt) -> Line[Prompt]:
    line: Line[Prompt] = Line(shares, lambda each: each.client, lambda each: each.left)
    for prompt in prompts:
        shares.enter(prompt.client)
        line.add(prompt)
    return line


def test_an_empty_line_has_nobody_next() -> None:
    assert line_of(Shares()).next() is None


def test_of_one_clients_prompts_the_shortest_goes_first() -> None:
    long, short = Prompt("a", 500), Prompt("a", 20)
    assert line_of(Shares(), long, short).next() is short


def test_the_client_that_has_had_least_goes_first() -> None:
    shares = Shares()
    a, b = Prompt("a", 20), Prompt("b", 500)
    line = line_of(shares, a, b)
    shares.charge("a", 0.1)
    assert line.next() is b


def test_a_short_chat_is_not_stuck_behind_eight_long_ones() -> None:
    shares = Shares()
    longs = [Prompt(f"client {n}", 2000) for n in range(8)]
    line = line_of(shares, *longs)
    for long in longs:
        shares.charge(long.client, 0.4)
    short = Prompt("new", 30)
    shares.enter("new")
    line.add(short)
    assert line.next() is short


def test_who_comes_anew_starts_level_and_claims_no_past() -> None:
    shares = Shares()
    shares.enter("a")
    shares.charge("a", 100.0)
    shares.enter("b")
    assert shares.had("b") == 100.0


def test_clients_that_left_are_forgotten() -> None:
    shares = Shares()
    shares.enter("a")
    shares.enter("a")
    shares.charge("a", 5.0)
    shares.leave("a")
    assert shares.had("a") == 5.0
    shares.leave("a")
    shares.charge("a", 1.0)
    assert shares.had("a") == 0.0


def test_a_long_prompt_is_overtaken_by_its_own_client_sixteen_times_at_most() -> None:
    shares = Shares()
    long = Prompt("a", 500)
    line = line_of(shares, long)
    turns = 0
    while True:
        short = Prompt("a", 1)
        shares.enter("a")
        line.add(short)
        chosen = line.next()
        if chosen is long:
            break
        assert chosen is short
        line.remove(short)
        turns += 1
    assert turns == 16


def test_who_does_not_fit_is_passed_over() -> None:
    shares = Shares()
    first, second = Prompt("a", 1), Prompt("b", 2)
    line = line_of(shares, first, second)
    assert line.next(lambda each: each is second) is second


def test_who_left_the_line_is_not_next() -> None:
    first, second = Prompt("a", 1), Prompt("b", 2)
    line = line_of(Shares(), first, second)
    line.remove(first)
    line.remove(first)
    assert line.next() is second
    assert len(line) == 1


def test_a_slow_piece_makes_the_next_one_smaller() -> None:
    pace = Pace(0.1, first=64)
    pace.took(64, 0.2)
    assert pace.piece(1000) == 32


def test_a_quick_full_piece_makes_the_next_one_larger() -> None:
    pace = Pace(0.1, first=64)
    pace.took(64, 0.08)
    assert pace.piece(1000) == 80


def test_a_quick_piece_that_was_a_rest_says_nothing() -> None:
    pace = Pace(0.1, first=64)
    pace.took(5, 0.01)
    assert pace.piece(1000) == 64


def test_pieces_stay_between_their_bounds() -> None:
    pace = Pace(0.1, first=16, least=16, most=100)
    pace.took(16, 5.0)
    assert pace.piece(1000) == 16
    for _ in range(20):
        pace.took(pace.piece(10_000), 0.001)
    assert pace.piece(10_000) == 100


def test_a_small_rest_is_read_with_the_piece_before_it() -> None:
    assert Pace(0.1, first=64).piece(80) == 80
    assert Pace(0.1, first=64).piece(81) == 64
