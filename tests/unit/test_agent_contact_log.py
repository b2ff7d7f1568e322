"""What an agent logs of its contact with the dispatcher."""

import logging

import pytest

from trainmaster_agent.contact_log import ContactLog

NAME = "trainmaster_agent.contact_log"


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_contact_and_its_loss_are_logged_once_and_an_obstacle_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    watch = Watch()
    contact = ContactLog(watch)
    for _ in range(3):
        contact.answered("s-1")
    assert caplog.messages == ["in contact with the dispatcher, session s-1"]
    caplog.clear()
    for second in range(130):
        watch.seconds = 1000.0 + second
        contact.lost()
        contact.failed("no answer" if second < 100 else "refused")
    assert caplog.messages == ["no answer", "no answer", "refused"], "at 0, 60 and 100 seconds"
    caplog.clear()
    watch.seconds = 1130.0
    contact.answered("s-1")
    contact.answered("s-1")
    assert caplog.messages == ["in contact with the dispatcher again, after 130 s"]


def test_a_call_that_fails_while_others_are_answered_is_no_loss_of_contact(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    watch = Watch()
    contact = ContactLog(watch)
    for second in range(30):
        watch.seconds = float(second)
        contact.answered("s-1")
        contact.failed("the desired state was refused")
    assert caplog.messages == ["in contact with the dispatcher, session s-1", "the desired state was refused"]


def test_a_first_contact_is_none_again_however_late_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    contact = ContactLog(Watch())
    contact.lost()
    contact.answered("s-1")
    assert caplog.messages == ["in contact with the dispatcher, session s-1"]
