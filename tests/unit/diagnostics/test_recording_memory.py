"""Which allocation an address belonged to, though CUDA gives the same addresses again."""

from __future__ import annotations

import pytest

from streamkit._cuda.memory_pools import Allocation  # what the driver says of memory
from streamkit.diagnostics.recording import steps  # what is made of facts
from streamkit.diagnostics.recording.memory import Lives  # no public name has it
from support.cuda_calls import fact_of

pytestmark = pytest.mark.portable


def memory(start, size=16, *, is_host=False):
    return Allocation(start, size, is_host=is_host, context=0)


class Story:
    """Memory that is made and ends, and what an address belongs to between these."""

    def __init__(self, *calls, now=()):
        self._steps = steps.steps([fact_of(*call) for call in calls])
        self.asked = []
        self._now = now

    def ask(self, address):
        self.asked.append(address)
        return next((one for one in self._now if one[0] <= address < one[0] + one[1]), None)

    def lives_of(self, address):
        """The number of the life at an address: at first, and after each step."""
        lives = Lives(self._steps, self.ask)
        found = [lives.at(address)]
        for step in self._steps:
            lives.read(step)
            found.append(lives.at(address))
        return [one and one.number for one in found]


def alloc(start, size=16):
    return "cuMemAllocAsync", (0, size, 16), memory(start, size)


def free(start, size=16):
    return "cuMemFreeAsync", (start, 16), memory(start, size)


def test_each_life_of_an_address_is_another_one():
    found = Story(alloc(100), free(100), alloc(100), free(100), alloc(96, 32)).lives_of(100)
    first, second, third = found[1], found[3], found[5]
    assert found == [None, first, None, second, None, third]
    assert len({first, second, third, None}) == 4


def test_what_was_there_before_and_ends_inside_is_known_from_the_beginning():
    before, after = Story(free(100)).lives_of(110)
    assert (before is not None, after) == (True, None)


def test_what_is_there_throughout_is_asked_for_once():
    story = Story(alloc(100), free(100), now=[memory(500, 64)])
    lives = set(story.lives_of(510))
    assert len(lives) == 1
    assert None not in lives
    assert story.asked == [510]


def test_what_is_there_now_was_not_there_before_it_was_made():
    before, after = Story(alloc(100), now=[memory(100)]).lives_of(105)
    assert (before, after is not None) == (None, True)


def test_what_is_there_now_was_not_there_between_an_earlier_life_and_its_own():
    story = Story(alloc(100), free(100), alloc(100), now=[memory(100)])
    before, first, between, second = story.lives_of(105)
    assert (before, between) == (None, None)
    assert len({first, second, None}) == 3


def test_memory_that_ended_unseen_is_not_the_one_that_is_made_there():
    found = Story(alloc(100, 32), alloc(116)).lives_of(120)
    assert found[1] != found[2]
    found = Story(alloc(100, 32), alloc(116)).lives_of(104)
    assert found[1:] == [found[1], None]


@pytest.mark.parametrize(
    ("name", "fields", "more"),
    [
        ("cuMemFree", (100,), memory(100)),
        ("cuMemFreeHost", (100,), memory(100)),
        ("cuMemHostUnregister", (100,), memory(100)),
        ("cuIpcCloseMemHandle", (100,), memory(100)),
        ("cuMemUnmap", (96, 64), None),
    ],
)
def test_each_way_to_end_memory_ends_it(name, fields, more):
    made, ended = alloc(100), (name, fields, more, 1)
    _, there, *gone = Story(made, ended).lives_of(105)
    assert there is not None
    assert gone[-1] is None


def test_memory_that_another_thread_is_given_before_the_free_returns_is_new():
    freed = "cuMemFree", (100,), memory(100), 1  # it began before the second one was made
    lives = Story(alloc(100), alloc(100), freed).lives_of(100)
    assert lives[-1] is not None
    assert lives[-1] != lives[1]


def test_an_array_can_lie_in_two_mappings():
    lives = Lives([], Story(now=[memory(100), memory(116)]).ask)
    assert [one.stop for one in lives.across(110, 120)] == [116, 132]
    assert [one.stop for one in lives.across(110, 116)] == [116]
    assert [*lives.across(140, 150)] == []
