"""No sequence of reports, duplicated, reordered or late, reaches an illegal state or two live runs.

A dispatcher with one job and its attempts, agents that live through a true history, and a network that drops, repeats,
reorders and delays what they say; people steer at random.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.jobs import Retries
from trainmaster.protocol.states import FailureCategory, HoldCause, JobState, RunState, StopCause, Wish
from trainmaster_dispatcher.domain import job_machine, lifecycle, run_machine
from trainmaster_dispatcher.domain.job_machine import TRANSITIONS, Job, RunEnding
from trainmaster_dispatcher.domain.run_machine import Report, ReportVerdict, Run

NOW = 1_000_000.0
_FORWARD = (RunState.ACCEPTED, RunState.PENDING, RunState.RUNNING)
_NOT_HERE_SEQ = 1_000_000


def resume(job: Job) -> Job:
    return job_machine.resume(job, NOW)


def retry(job: Job) -> Job:
    return job_machine.retry(job, NOW)


@dataclass
class HeldRuns:
    """A run as its agent holds it."""

    state: RunState = RunState.ACCEPTED
    generation: int = 1
    seq: int = 1
    cause: StopCause | None = None
    end: RunEnding | None = None

    @property
    def report(self) -> Report:
        return Report(self.state, self.generation, self.seq)

    def go(self, state: RunState) -> None:
        self.state = state
        self.seq += 1


@dataclass
class Message:
    """A report on its way."""

    number: int
    report: Report
    ending: RunEnding = field(default_factory=lambda: RunEnding(RunState.LOST))


class JobAndAgents(RuleBasedStateMachine):
    """Attempts may go to different clusters; an agent holds a run from its start until it may forget it."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job()
        self.retries = Retries()
        self.runs: dict[int, Run] = {}
        self.agents: dict[int, HeldRuns] = {}
        self.forgotten: set[int] = set()
        self.network: list[Message] = []
        self.ends: dict[int, RunState] = {}

    @initialize(
        limit=st.integers(0, 2),
        back_off=st.sampled_from(["0s", "5s"]),
        eligible_at=st.sampled_from([None, NOW - 10.0, NOW + 10.0]),
    )
    def submit(self, limit: int, back_off: str, eligible_at: float | None) -> None:
        self.retries = Retries(limit=limit, back_off=back_off)
        self.job = Job(eligible_at=eligible_at)

    # -- the dispatcher

    def become(self, job: Job) -> None:
        if job.state is not self.job.state:
            assert job.state in TRANSITIONS[self.job.state], f"{self.job.state} to {job.state}"
        self.job = job

    @property
    def live(self) -> int | None:
        found = [number for number, run in self.runs.items() if run.is_live]
        assert len(found) <= 1, "two live runs"
        return found[0] if found else None

    @precondition(lambda self: self.job.state is JobState.QUEUED)
    @rule()
    def dispatch(self) -> None:
        self.become(job_machine.dispatch(self.job))
        assert self.live is None
        self.runs[self.job.attempt] = Run()

    @precondition(lambda self: not self.job.state.has_live_run and self.job.state is not JobState.SUCCEEDED)
    @rule()
    def it_is_tried_again(self) -> None:
        """End whatever keeps the job from its next attempt."""
        if self.job.hold_cause is not None and self.job.hold_cause.ends_by_itself:
            self.become(job_machine.release(self.job))
        elif self.job.state is JobState.HELD:
            self.become(job_machine.resume(self.job, NOW + 20.0))
        elif self.job.state.is_terminal:
            self.become(job_machine.retry(self.job, NOW))
        self.dispatch()
        self.wish_arrives()

    @rule(act=st.sampled_from([job_machine.cancel, job_machine.suspend, resume, retry]))
    def control(self, act: Callable[[Job], Job]) -> None:
        with suppress(ProblemError):
            self.become(act(self.job))
        if self.live is not None:
            self.runs[self.live] = lifecycle.stop_for(self.job, self.runs[self.live])

    @precondition(lambda self: self.live is not None)
    @rule()
    def preempt(self) -> None:
        assert self.live is not None
        self.runs[self.live] = run_machine.ask_stop(self.runs[self.live], StopCause.PREEMPT)

    @precondition(lambda self: self.live is not None)
    @rule(up=st.booleans())
    def give_up(self, up: bool) -> None:
        assert self.live is not None
        number = self.live
        outcome = lifecycle.give_up(self.runs[number])
        assert outcome is not None
        self.take(number, outcome, RunEnding(RunState.LOST, cluster_stayed_up=up))

    def take(self, number: int, outcome: run_machine.RunOutcome, ending: RunEnding) -> None:
        before = self.job
        self.runs[number] = outcome.run
        self.become(lifecycle.follow(self.job, number, outcome, ending, self.retries, NOW).job)
        if outcome.run.state.is_terminal:
            assert number not in self.ends, "a run ended twice"
            self.ends[number] = outcome.run.state
            assert self.job.state in self.meant(before, ending), (before, ending, self.job)

    @staticmethod
    def meant(before: Job, ending: RunEnding) -> set[JobState]:
        """Return the states that a job may be in after the end of its run, by the documentation."""
        if ending.state is RunState.SUCCEEDED:
            return {JobState.SUCCEEDED}
        if before.wish is Wish.CANCEL or ending.state is RunState.CANCELLED:
            return {JobState.CANCELLED}
        may_fail = {JobState.FAILED} if ending.state in (RunState.FAILED, RunState.LOST) else set()
        if before.wish is Wish.SUSPEND or ending.state is RunState.SUSPENDED:
            return {JobState.HELD} | may_fail
        if ending.state is RunState.PREEMPTED:
            return {JobState.QUEUED}
        return {JobState.QUEUED, JobState.HELD} | may_fail

    # -- what the dispatcher wants reaches the agents, late or never

    @precondition(lambda self: self.live is not None)
    @rule()
    def wish_arrives(self) -> None:
        assert self.live is not None
        number, run = self.live, self.runs[self.live]
        held = self.agents.get(number)
        if run.state is not RunState.STOPPING:
            if held is None and number not in self.forgotten and run.state is RunState.LEASED:
                self.agents[number] = HeldRuns()
                self.say(number)
            return
        assert run.stop_cause is not None
        if held is None:
            state = run.stop_cause.ends_as
            self.forgotten.add(number)
            self.network.append(Message(number, Report(state, run.generation, _NOT_HERE_SEQ), RunEnding(state)))
        elif not held.state.is_terminal and held.generation < run.generation:
            held.generation, held.cause = run.generation, run.stop_cause
            held.seq += 1

    # -- the agents

    def say(self, number: int) -> None:
        held = self.agents[number]
        self.network.append(Message(number, held.report, held.end or RunEnding(held.state)))

    def active(self) -> list[int]:
        return sorted(number for number, held in self.agents.items() if not held.state.is_terminal)

    @precondition(lambda self: self.active())
    @rule(data=st.data(), steps=st.integers(1, 3), tell=st.booleans())
    def history_goes_on(self, data: st.DataObject, steps: int, tell: bool) -> None:
        number = data.draw(st.sampled_from(self.active()))
        for _ in range(steps):
            if not self.agents[number].state.is_terminal:
                self.one_step(self.agents[number])
            if tell:
                self.say(number)

    @precondition(lambda self: self.active())
    @rule(data=st.data(), tell=st.booleans(), end=st.sampled_from(["succeeded", "failed", "returned"]))
    def history_ends(self, data: st.DataObject, tell: bool, end: str) -> None:
        number = data.draw(st.sampled_from(self.active()))
        held = self.agents[number]
        state = RunState(end)
        self.finish(held, RunState.FAILED if state is RunState.RETURNED and held.state is RunState.RUNNING else state)
        if tell:
            self.say(number)

    def one_step(self, held: HeldRuns) -> None:
        if held.cause is not None:
            if held.state is RunState.STOPPING:
                self.finish(held, held.cause.ends_as)
            else:
                held.go(RunState.STOPPING)
        elif held.state in _FORWARD[:-1]:
            held.go(_FORWARD[_FORWARD.index(held.state) + 1])

    def finish(self, held: HeldRuns, state: RunState) -> None:
        category = FailureCategory.EXIT if state is RunState.FAILED else None
        held.end = RunEnding(state, category, 1 if category else None)
        held.go(state)

    @precondition(lambda self: self.agents)
    @rule(data=st.data())
    def state_is_told_again(self, data: st.DataObject) -> None:
        self.say(data.draw(st.sampled_from(sorted(self.agents))))

    # -- the network

    @precondition(lambda self: self.network)
    @rule(data=st.data(), again=st.booleans())
    def message_arrives(self, data: st.DataObject, again: bool) -> None:
        place = data.draw(st.integers(0, len(self.network) - 1))
        self.hear(self.network[place] if again else self.network.pop(place))

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def message_is_lost(self, data: st.DataObject) -> None:
        self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    def hear(self, message: Message) -> None:
        before = self.runs[message.number]
        outcome = run_machine.apply(before, message.report)
        assert outcome.verdict is not ReportVerdict.ILLEGAL, outcome.why
        if outcome.verdict is ReportVerdict.APPLIED:
            self.take(message.number, outcome, message.ending)
        else:
            self.runs[message.number] = outcome.run
        if outcome.run.state.is_terminal:
            # The answer is "settled" or "unknown": the agent lets go of it, and stops what still runs of it.
            self.agents.pop(message.number, None)
            self.forgotten.add(message.number)

    @rule()
    def all_is_quiet(self) -> None:
        """Deliver everything: the wishes of people to the agents, and what has happened to the dispatcher."""
        for _ in range(4):
            self.wish_arrives_if_any()
            for held in self.agents.values():
                if held.cause is not None and not held.state.is_terminal:
                    self.one_step(held)
            for number in sorted(self.agents):
                self.say(number)
            true = {number: held.state for number, held in self.agents.items()}
            was_live = self.live
            while self.network:
                self.hear(self.network.pop())
            if was_live is not None and true.get(was_live, RunState.LEASED).is_terminal:
                assert self.runs[was_live].state is true[was_live]
        assert self.job.wish is None
        if self.live is None:
            return
        run, held_there = self.runs[self.live], self.agents.get(self.live)
        if held_there is None:
            assert run.state is RunState.LEASED
            return
        assert run.state is held_there.state
        assert (self.job.state is JobState.RUNNING) is (held_there.state is RunState.RUNNING)

    def wish_arrives_if_any(self) -> None:
        if self.live is not None:
            self.wish_arrives()

    # -- what always holds

    @invariant()
    def at_most_one_run_lives_and_the_job_knows(self) -> None:
        assert self.job.state.has_live_run is (self.live is not None)
        if self.live is not None:
            assert self.live == self.job.attempt

    @invariant()
    def the_dead_stay_dead(self) -> None:
        for number, state in self.ends.items():
            assert self.runs[number].state is state

    @invariant()
    def a_wish_never_outlives_its_run(self) -> None:
        if self.job.wish is not None:
            assert self.live is not None
            assert self.runs[self.live].state is RunState.STOPPING

    @invariant()
    def a_hold_has_a_cause(self) -> None:
        assert (self.job.hold_cause is not None) is (self.job.state is JobState.HELD)
        has_end = self.job.hold_cause in (HoldCause.BACK_OFF, HoldCause.START_TIME)
        assert (self.job.hold_until is not None) is has_end

    def teardown(self) -> None:
        self.all_is_quiet()


TestJobAndAgents = JobAndAgents.TestCase
TestJobAndAgents.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=60)


def test_the_end_of_an_earlier_attempt_says_nothing_of_the_present_one() -> None:
    job = Job(JobState.RUNNING, attempt=2)
    outcome = run_machine.apply(Run(), Report(RunState.SUCCEEDED, 1, 1))
    assert lifecycle.follow(job, 1, outcome, RunEnding(RunState.SUCCEEDED), Retries(), NOW).job == job


def test_a_run_that_stops_before_it_ran_leaves_its_job_dispatched() -> None:
    """Five returns in a row make a job unplaceable; a stop on the way to the return is no start."""
    job = Job(JobState.DISPATCHED, attempt=5, returns=4)
    stopping = run_machine.apply(Run(RunState.ACCEPTED, seq=1), Report(RunState.STOPPING, 1, 2))
    job = lifecycle.follow(job, 5, stopping, RunEnding(RunState.STOPPING), Retries(), NOW).job
    assert job.state is JobState.DISPATCHED
    returned = run_machine.apply(stopping.run, Report(RunState.RETURNED, 1, 3))
    job = lifecycle.follow(job, 5, returned, RunEnding(RunState.RETURNED), Retries(), NOW).job
    assert job.hold_cause is HoldCause.UNPLACEABLE


def test_a_preemption_under_way_is_no_wish() -> None:
    run = run_machine.ask_stop(Run(RunState.RUNNING), StopCause.PREEMPT)
    assert lifecycle.stop_for(Job(JobState.RUNNING, attempt=1), run) == run
    cancelled = lifecycle.stop_for(Job(JobState.RUNNING, attempt=1)._replace(wish=Wish.CANCEL), run)
    assert (cancelled.stop_cause, cancelled.generation) == (StopCause.CANCEL, 3)
