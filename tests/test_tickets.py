"""Tickets for the wire: served in their order, one at a time, and never waited for in vain."""

import random
import threading
import time

import pytest

from gradwire.transport.tickets import Tickets


@pytest.mark.parametrize("seed", range(5))
def test_tickets_are_served_in_order_whoever_comes_first(seed):
    tickets, had = Tickets(), []
    made = [tickets.make() for _ in range(12)]
    unused = set(random.Random(seed).sample(range(12), 4))

    def have(number):
        time.sleep(random.Random(seed + number).random() / 50)
        if number not in unused:
            with made[number]:
                had.append(("in", number))
                time.sleep(0.001)
                had.append(("out", number))
        made[number].end()

    threads = [threading.Thread(target=have, args=(number,)) for number in range(12)]
    random.Random(seed).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    used = [number for number in range(12) if number not in unused]
    assert had == [(what, number) for number in used for what in ("in", "out")]


def test_a_ticket_that_ended_early_does_not_let_a_later_one_pass_an_earlier_one():
    tickets = Tickets()
    first, second, third = (tickets.make() for _ in range(3))
    second.end()
    has_turn = threading.Event()

    def have():
        with third:
            has_turn.set()

    thread = threading.Thread(target=have)
    thread.start()
    assert not has_turn.wait(0.05)
    first.end()
    assert has_turn.wait(10)
    thread.join()


def test_a_ticket_ends_with_an_error_too():
    tickets = Tickets()
    first, second = tickets.make(), tickets.make()
    with pytest.raises(ZeroDivisionError), first:
        raise ZeroDivisionError
    with second:
        pass
