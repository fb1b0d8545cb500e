"""Who gets a seat and who does not, and what is noted about those who have one."""

from contextlib import ExitStack

import pytest

from space_env.models import WordleObservation
from space_env.sessions import PLAYER, STRANGER, TRUSTED, Caller, Desk, Kind, NoSeatError, Patience, Session

TRAINER = Caller("10.0.0.1", TRUSTED)


def take(desk: Desk, stack: ExitStack, caller: Caller, count: int) -> None:
    for _ in range(count):
        stack.enter_context(desk.seat(caller))


def test_whoever_is_trusted_may_have_every_seat_and_the_next_is_refused() -> None:
    desk = Desk(capacity=8)
    with ExitStack() as stack:
        take(desk, stack, TRAINER, 8)
        with pytest.raises(NoSeatError, match="Server at capacity: 8/8 sessions active; try again in 5 s"):
            take(desk, stack, TRAINER, 1)
    assert desk.status()["refused"] == {"capacity": 1}


def test_a_seat_is_free_again_after_an_error_too() -> None:
    desk = Desk(capacity=1)
    with pytest.raises(ZeroDivisionError):
        with desk.seat(TRAINER):
            raise ZeroDivisionError
    with desk.seat(TRAINER):
        assert desk.sessions == 1
    assert desk.sessions == 0


@pytest.mark.parametrize("kind", [PLAYER, STRANGER])
def test_one_visitor_cannot_take_all_seats_and_leaves_another_visitor_theirs(kind: Kind) -> None:
    assert kind.each is not None
    desk = Desk()
    with ExitStack() as stack:
        take(desk, stack, Caller("198.51.100.1", kind), kind.each)
        with pytest.raises(NoSeatError, match=f"{kind.each} sessions are open from your address"):
            take(desk, stack, Caller("198.51.100.1", kind), 1)
        take(desk, stack, Caller("198.51.100.2", kind), 1)
    assert desk.status()["refused"] == {"visitor": 1}


def test_however_many_play_on_the_page_most_seats_are_left_for_the_key() -> None:
    desk = Desk()
    assert PLAYER.together is not None
    with ExitStack() as stack:
        for visitor in range(PLAYER.together):
            take(desk, stack, Caller(f"198.51.100.{visitor}", PLAYER), 1)
        with pytest.raises(NoSeatError, match="64 visitors play here"):
            take(desk, stack, Caller("198.51.100.255", PLAYER), 1)
        take(desk, stack, TRAINER, 256 - 64)


def test_a_seat_on_the_page_does_not_count_against_the_same_address_with_the_key() -> None:
    desk = Desk()
    with ExitStack() as stack:
        take(desk, stack, Caller("198.51.100.1", PLAYER), 4)
        take(desk, stack, Caller("198.51.100.1", TRUSTED), 100)
    assert desk.sessions == 0


def test_a_reported_game_is_at_play_until_it_ends_and_then_counted() -> None:
    desk = Desk()
    with desk.seat(TRAINER) as session:
        for observation in (WordleObservation(), WordleObservation(turn=1)):
            desk.report(observation)
            desk.answered(session)
        assert (desk.status()["playing"], desk.status()["episodes"]) == (1, 0)
        desk.report(WordleObservation(turn=2, done=True, won=True))
        desk.answered(session)
        assert (desk.status()["playing"], desk.status()["episodes"], desk.status()["solved"]) == (0, 1, 1)
    assert desk.status()["steps"] == 2


def test_a_game_outside_of_a_session_is_not_counted() -> None:
    desk = Desk()
    desk.report(WordleObservation(done=True, won=True))
    assert desk.status()["episodes"] == 0


def test_a_game_at_play_is_waited_for_longer_than_a_session_without_one() -> None:
    patience, session = Patience(idle_s=1, abandoned_s=2), Session(TRAINER)
    assert patience.limit_for(session) == 1
    session.playing = True
    assert patience.limit_for(session) == 2
