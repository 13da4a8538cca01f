from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec
import pytest

from cotune.coordinator.federation import Federation
from cotune.errors import FederationError, UsageError
from cotune.learners import learner_names
from cotune.party.closed_list import TASKS
from cotune.party.keys import Keyed, OfKeys
from cotune.party.task import Configuration
from cotune.party.tasks import Evaluate, Inspect, Search
from cotune.party.train.assess import Assess, Score
from cotune.party.workers import Workers
from cotune.privacy.protection import Protection
from cotune.protocol.engine import Engine
from cotune.protocol.wire import Refusal, Request
from cotune.run.tune import tune
from cotune.site.audit import Audit, check, read
from cotune.site.door import Ask
from cotune.site.host import Host
from cotune.site.policy import Policy, task_names
from cotune.testing.tables import make_tables
from tests.parts import iris, party_of, problem_of, threads

TREE = Evaluate((Configuration("decision_tree", {}),))
KEYED = Keyed("session", ("a", "b", "c"), fewest=3)

SETTINGS = {"learners": ["decision_tree"], "folds": 3, "trials": 3, "method": "dash"}


def asked(task, verb="sum", keyed=None, **more) -> Request:
    return Request("run", 1, verb, task, keyed=keyed, **more)


def empty(kind):
    """A task of the kind, with nothing in it."""
    return kind(**{f.name: None for f in msgspec.structs.fields(kind) if f.required})


class HostEngine(Engine):
    """Brings messages to hosts of this process."""

    def __init__(self, folder, policies: Mapping[str, Policy]) -> None:
        self._hosts = {}
        for name, frame in make_tables(len(policies)).items():
            workers = Workers(threads())
            party = party_of(frame, folder / name, name=name, workers=workers)
            audit = Audit(folder / f"{name}.jsonl")
            self._hosts[name] = Host(party, workers, policies[name], audit, lambda ask: "anna")

    def parties(self):
        return sorted(self._hosts)

    def call(self, messages, timeout):
        return {
            name: self._hosts[name]
            .answer(Ask("call", uuid.uuid4().hex, "anna", message, wait=60))
            .reply
            for name, message in messages.items()
        }

    def close(self):
        for host in self._hosts.values():
            host.close()


def tuned(tmp_path, policy: Policy, **options):
    policies = {f"party-{number}": policy for number in (1, 2, 3)}
    with Federation(HostEngine(tmp_path, policies), quorum=1.0) as federation:
        return tune(federation, **(SETTINGS | options), progress=False)


@pytest.mark.parametrize("method", ["dash", "flora", "privtuna", "vote"])
def test_a_masked_run_with_training_passes_a_party_that_wants_masks(tmp_path, method):
    policy = Policy(("decision_tree",), "masked", fewest=3)
    outcome = tuned(tmp_path, policy, method=method, privacy="masked")
    assert outcome.model is not None
    record = tmp_path / "party-1.jsonl"
    assert check(record) is None
    entries = read(record)
    assert {entry.outcome for entry in entries} == {"told"}
    in_the_clear = {entry.task for entry in entries if entry.way in ("gather", "sum")}
    assert in_the_clear == {"inspect", "introduce", "acquaint"}


def test_hosts_answer_as_parties_of_a_simulation_do(tmp_path):
    outcomes = [
        tuned(tmp_path / privacy, Policy(), privacy=privacy) for privacy in ("plain", "masked")
    ]
    losses = [[trial.loss for trial in outcome.trials] for outcome in outcomes]
    assert losses[0] == losses[1]


def test_a_plain_run_is_refused_by_the_partys_name_and_with_the_fix(tmp_path):
    with pytest.raises(FederationError, match=r"party-1: this party tells nothing .* masked"):
        tuned(tmp_path, Policy(at_least="masked"), privacy="plain")


def test_a_masked_run_is_refused_where_encryption_is_wanted(tmp_path):
    with pytest.raises(FederationError, match="private total"):
        tuned(tmp_path, Policy(at_least="encrypted"), privacy="masked")
    refused = [entry for entry in read(tmp_path / "party-1.jsonl") if not entry.told]
    assert {entry.task for entry in refused} == {"measure"}
    assert refused[0].outcome == (
        "refused: masks are too little for this party (policy: at_least): use --privacy encrypted"
    )


def test_other_learners_are_refused(tmp_path):
    with pytest.raises(FederationError, match=r"party-1: .* 'decision_tree' .*: use svm, hgb"):
        tuned(tmp_path, Policy(learners=("svm", "hgb")))


def test_all_is_allowed_by_default():
    for verb in ("gather", "sum"):
        assert Policy().check(asked(TREE, verb)) is None
    for verb in ("masked", "encrypted"):
        assert Policy().check(asked(TREE, verb, KEYED)) is None


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("least", ["masked", "encrypted"])
def test_every_task_is_told_in_the_clear_only_if_it_is_harmless(kind, least):
    task, policy = empty(kind), Policy(at_least=least)
    harmless = issubclass(kind, OfKeys) or kind is Inspect
    assert (policy.check(asked(task, "gather")) is None) == harmless
    assert policy.check(asked(task, "sum")).code == "refused"
    assert (policy.check(asked(task, "masked", KEYED)) is None) == (least == "masked")
    assert policy.check(asked(task, "encrypted", KEYED)) is None


def test_a_task_that_cannot_be_gathered_comes_with_what_to_do_instead():
    refusal = Policy(at_least="masked").check(asked(Search(("svm",), 3), "gather"))
    assert refusal.sentence == (
        "this party tells nothing of its own in the clear, and 'search' would (policy: at_least): "
        "use flora, privtuna or dash, which need totals only"
    )


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_can_be_refused_by_its_name(kind):
    task = empty(kind)
    assert Policy(refused=(task.name,)).check(asked(task, "gather")).sentence == (
        f"this party does not perform the task {task.name!r} (policy: refused)"
    )
    others = tuple(name for name in task_names() if name != task.name)
    assert Policy(refused=others).check(asked(task, "gather")) is None


@pytest.mark.parametrize(
    "task",
    [
        Search(("decision_tree", "svm"), 3),
        Evaluate((Configuration("decision_tree", {}), Configuration("svm", {}))),
        Assess("svm", {}, b""),
        Score("svm", b""),
    ],
)
def test_a_learner_is_found_wherever_a_task_names_it(task):
    refusal = Policy(learners=("decision_tree",)).check(asked(task))
    assert "'svm'" in refusal.sentence
    assert Policy(learners=("decision_tree", "svm")).check(asked(task)) is None


def test_a_learner_is_found_in_the_problem():
    problem = problem_of(iris(), learners=("decision_tree", "extra_tree"))
    request = asked(TREE, attached=problem)
    assert "'extra_tree'" in Policy(learners=("decision_tree",)).check(request).sentence
    assert Policy(learners=("decision_tree", "extra_tree")).check(request) is None


def test_a_problem_nested_beyond_measure_is_looked_through():
    nested: list = []
    for _ in range(10_000):
        nested = [nested]
    problem = msgspec.structs.replace(problem_of(iris()), spaces={"decision_tree": {"x": nested}})
    assert Policy(learners=("decision_tree",)).check(asked(TREE, attached=problem)) is None


def test_every_field_that_names_a_learner_has_a_name_that_is_looked_for():
    """A task with, say, a field `model_of: str` would go unseen."""
    for kind in TASKS:
        for field in msgspec.structs.fields(kind):
            if "learner" in field.name:
                assert field.name in ("learner", "learners"), (kind, field.name)


@pytest.mark.parametrize(
    ("among", "left", "verb", "says"),
    [
        (("a", "b", "c", "d"), 4, "masked", None),
        (("a", "b", "c", "d"), 2, "encrypted", None),
        (("a", "b", "c"), 3, "masked", "not with 3"),
        (("a", "b", "c", "c"), 4, "encrypted", "not with 3"),
        (("a", "b", "c", "d"), 3, "masked", "3 could be left (policy: fewest): raise --quorum"),
    ],
)
def test_private_sums_are_made_among_enough_parties(among, left, verb, says):
    refusal = Policy(fewest=4).check(asked(TREE, verb, Keyed("session", among, fewest=left)))
    assert (refusal is None) == (says is None)
    assert says is None or says in refusal.sentence


@pytest.mark.parametrize(
    ("verb", "noise", "given"),
    [
        ("gather", None, "there is none"),
        ("sum", None, "there is none"),
        ("sum", 9.0, "there is none"),  # nothing is noised in the clear
        ("masked", None, "there is none"),
        ("masked", 1.99, "it is 1.99"),
        ("encrypted", float("nan"), "it is nan"),
        ("masked", 2.0, None),
        ("encrypted", 2.5, None),
    ],
)
def test_a_party_that_wants_noise_takes_part_in_no_total_with_less(verb, noise, given):
    protection = None if noise is None else Protection(noise)
    refusal = Policy(least_noise=2.0).check(asked(TREE, verb, KEYED, protection=protection))
    assert (refusal is None) == (given is None)
    if refusal is not None:
        assert refusal == Refusal(
            "refused",
            "this party takes part in totals with noise of 2 clipping norms or more, and "
            f"{given} (policy: least_noise): use --noise 2 with --privacy masked or encrypted",
        )


@pytest.mark.parametrize("kind", TASKS)
def test_without_noise_a_party_that_wants_it_tells_what_the_schema_needs_only(kind):
    task, policy = empty(kind), Policy(least_noise=1.0)
    harmless = issubclass(kind, OfKeys) or kind is Inspect
    assert (policy.check(asked(task, "gather")) is None) == harmless
    assert policy.check(asked(task, "sum")).code == "refused"
    for verb in ("masked", "encrypted"):
        assert (policy.check(asked(task, verb, KEYED)) is None) == (not kind.needs_problem)


def test_a_noised_run_passes_parties_that_want_noise_and_their_records_say_how_much(tmp_path):
    policy = Policy(least_noise=4.0)
    outcome = tuned(tmp_path, policy, privacy="masked", weights="equal", noise=4.0, train=False)
    assert set(outcome.noises) == {4.0}
    entries = read(tmp_path / "party-1.jsonl")
    assert {entry.outcome for entry in entries} == {"told"}
    noised = {entry.discloses for entry in entries if entry.task == "evaluate"}
    assert len(noised) == 1
    assert "adds a deviation of 2.31 clipping norms, as one of 3 that make 4" in noised.pop()


def test_a_run_with_less_noise_is_refused_by_parties_that_want_more(tmp_path):
    options = {"privacy": "masked", "weights": "equal", "noise": 3.9, "train": False}
    with pytest.raises(FederationError, match=r"noise of 4 clipping norms or more, and it is 3\.9"):
        tuned(tmp_path, Policy(least_noise=4.0), **options)


@pytest.mark.parametrize("verb", ["masked", "encrypted"])
def test_a_party_that_knows_its_federation_adds_up_with_no_invented_party(verb):
    known, ghosts = ("a", "b", "c", "d"), tuple(f"ghost-{i}" for i in range(1000))
    keyed = Keyed("session", ("a", "b", *ghosts), fewest=1000)
    request = asked(TREE, verb, keyed, protection=Protection(1.0, parties=1000))
    refusal = Policy().check(request, known)
    assert refusal.code == "refused"
    assert "1000 of those named do not belong to it" in refusal.sentence
    assert Policy().check(asked(TREE, verb, KEYED), known) is None
    assert Policy().check(asked(TREE, "gather"), known) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"least_noise": -1.0}, "least_noise is -1.0"),
        ({"least_noise": float("nan")}, "least_noise is nan"),
        ({"least_noise": float("inf")}, "least_noise is inf"),
        ({"refused": ("evaluat",)}, "unknown task 'evaluat': did you mean 'evaluate'"),
        ({"learners": ("hbg",)}, "unknown learner 'hbg': did you mean 'hgb'"),
        ({"at_least": "mask"}, "unknown privacy 'mask': did you mean 'masked'"),
        ({"fewest": -1}, "fewest is -1"),
    ],
)
def test_a_policy_with_a_mistake_is_not_taken(settings, says):
    with pytest.raises(UsageError, match=says):
        Policy(**settings)


def test_a_policy_file_with_an_unknown_setting_is_not_taken():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"at_most": "plain"}', type=Policy)
    assert msgspec.json.decode(b'{"fewest": 3}', type=Policy) == Policy(fewest=3)


def test_names_that_a_policy_may_have_are_those_of_tasks_and_learners():
    Policy(learners=learner_names(), refused=task_names())
    assert {empty(kind).name for kind in TASKS} == set(task_names())
