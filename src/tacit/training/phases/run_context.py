"""A run with everything it needs in memory: from its settings, or from a finished folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from tacit.corpora import open_corpus
from tacit.corpus import Corpus
from tacit.detection.mentions import Mention
from tacit.detection.policies import Policy, mark, open_policy, overlooked
from tacit.detection.provenance import UNKNOWN, Provenance
from tacit.errors import DataError
from tacit.planning.plan import Plan
from tacit.privacy.certificates.scope import PublicInput
from tacit.training.data.attributes import Attribute, attribute_of
from tacit.training.data.known_names import require_marks_of_others
from tacit.training.data.protected_entities import ProtectedEntities, select_entities
from tacit.training.data.public_inputs import (
    GENERATED,
    declared_labels,
    label_input,
    public_corpus,
    public_inputs,
)
from tacit.training.data.shown_names import ShownNames
from tacit.training.data.substitution import Marked, marked
from tacit.training.data.training_data import Found, find_mentions, records_learnt_from
from tacit.training.dp.random_source import RandomSource
from tacit.training.models import networks, tokens, weights, word_vectors
from tacit.training.models.above_states import above_states
from tacit.training.models.devices import chosen_device
from tacit.training.models.features import OnFeatures, with_features
from tacit.training.models.memory import keep_freed_memory
from tacit.training.settings import Run, read_run
from tacit.training.tasks.examples import Examples, Spans, plain_targets
from tacit.training.tasks.masked_words import MaskedWord
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import Classification, NextWord, Regression, Task


@dataclass(frozen=True)
class RunContext:
    """A run with everything it needs in memory."""

    run: Run
    corpus: Corpus
    part: Corpus
    mentions: list[Mention]
    tokenizer: PreTrainedTokenizerBase
    task: Task
    model: nn.Module
    randomness: RandomSource
    leaks: list[str]
    protected: ProtectedEntities | None = None
    policy: Policy | None = None
    attribute: Attribute | None = None
    public: tuple[PublicInput, ...] = ()
    provenance: Provenance = UNKNOWN
    elsewhere: bool = False
    """Whether the private text lies with others, as in a federation."""
    names: Marked | None = None
    """Where names are protected: the records as written. `part` then has invented names, and
    nothing that learns reads anything else of these records."""


def _focus(run: Run, found: Found) -> ProtectedEntities | None:
    """What counts as an entity; None where nothing does."""
    plan = run.made_plan()
    if not (run.spec.owner_graph or (plan and "entities" in plan.protect)):
        return None
    kinds = plan.kinds if plan else getattr(run.options, "kinds", None)
    listed = Path(run.entity_list) if run.entity_list is not None else None
    return select_entities(kinds, listed, found.mentions, found.entities)


COUNTED_LABELS = (
    "The names of the labels: they were counted from the private text, and a label that one person "
    "used is among them. Declare them instead (labels: [...])."
)


def open_run(run: Run, *, private_here: bool = True) -> RunContext:
    """Read, detect, and make tokenizer, task and model.

    The private text lies elsewhere where this is the server of a federation.
    """
    keep_freed_memory()
    corpus = open_corpus(run.corpus, run.data)
    part = records_learnt_from(run, corpus)
    found = find_mentions(run, corpus)
    mentions = found.mentions
    part = run.spec.read(part, mentions)
    plan = run.made_plan()
    names = None
    if plan is not None and plan.about_names and private_here:
        require_marks_of_others(found.provenance)
        names = marked(
            plan, part, mentions, found.entities, provenance=found.provenance,
            tagged=run.task == "tagging",
        )  # fmt: skip
        part = names.base_corpus(part)
    randomness = RandomSource(run.seed)
    # Users of other splits are users too, so public text may come from none of them.
    public = list(public_inputs(run, corpus if private_here else None))
    tokenizer, leaks = _tokenizer(run, part)
    labels = declared_labels(run)
    if labels is not None:
        public.append(label_input(run, labels))
    elif run.task in ("classification", "tagging"):
        leaks.append(COUNTED_LABELS)
    task = _task(run, part, tokenizer, labels)
    model = make_model(run, task, tokenizer)
    protected = _focus(run, found)
    policy = open_policy(run.policy) if run.policy is not None else None
    left_out = overlooked(policy) if policy is not None else None
    if left_out is not None:
        leaks.append(
            f"Sensitive tokens that the policy leaves out: it is made for studies and {left_out}; "
            "these are learnt without protection."
        )
    hidden = run.spec.hidden_attribute(run)
    return RunContext(
        run, corpus, part, mentions, tokenizer, task, model, randomness, leaks, protected, policy,
        attribute_of(hidden, part, run.corpus) if hidden else None,
        tuple(public), found.provenance, not private_here, names,
    )  # fmt: skip


def tokenizer_of(run: Run, part: Corpus) -> PreTrainedTokenizerBase:
    """The tokenizer that a run on these records will have, before anything is trained."""
    return _tokenizer(run, part)[0]


def _tokenizer(run: Run, part: Corpus) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """The tokenizer, and what choosing it leaks: nothing, unless it is counted from the corpus."""
    given = run.tokenizer
    if given.kind == "folder" or (run.model.pretrained and given.folder is None):
        loaded = tokens.load_tokenizer(given.folder or str(run.model.folder))
        leaked = tokens.counted(loaded)
        return loaded, [] if leaked is None else [leaked]
    public = public_corpus(given.public_text, run.data) if given.public_text else None
    if given.kind == "words":
        size = None if given.min_count else given.size
        tokenizer, leak = tokens.word_vocabulary(
            part if public is None else public,
            size=size,
            min_count=given.min_count,
            punctuation=given.punctuation,
            digits=given.digits,
        )
        if public is not None:
            return tokenizer, []
        tokens.mark_as_counted(tokenizer, str(leak))
        return tokenizer, [str(leak)]
    texts = public.column("text").to_pylist() if public is not None else None
    tokenizer = tokens.byte_level_bpe(texts, given.size)
    if run.task == "masked-word":  # which stands for nothing else: every string can be written
        tokenizer.mask_token = tokenizer.unk_token
    return tokenizer, []


def _task(
    run: Run,
    part: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...] | None = None,
) -> Task:
    match run.task:
        case "masked-word":
            return MaskedWord.of(tokenizer)
        case "classification":
            return Classification.of(part) if labels is None else Classification(labels)
        case "regression":
            return Regression(*run.label_range)
        case "tagging":
            return Tagging.of(part) if labels is None else Tagging(labels)
    # Cutting a record into several would let one record weigh as many: it is truncated.
    return NextWord(long="truncate", weigh=run.weigh)


def make_model(run: Run, task: Task, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    """The network with its first weights: new ones, or those of a folder."""
    labels = getattr(task, "labels", None)
    # First weights are nobody's secret. They are the same every time, so that whoever goes on with
    # a run, or helps with it, has those that are frozen, which no checkpoint holds.
    given = run.pretrain.seed if run.pretrain else run.seed
    seed = RandomSource(given or 0).torch_seed("init", 0)
    model: nn.Module = networks.make_model(
        run.model, run.task, tokenizer=tokenizer, labels=labels, context=run.context, seed=seed
    )
    if run.model.public_frequencies:
        public = public_corpus(run.tokenizer.public_text or GENERATED, run.data)
        networks.begin_with_frequencies(model, tokens.frequencies(tokenizer, public))
    if run.model.kind == "states":
        text = public_corpus(
            run.model.adapter_text or GENERATED, run.data, style=run.model.adapter_style
        )
        shown = task.encode(text.take(range(min(len(text), 128))), tokenizer, context=run.context)
        shares = tokens.frequencies(tokenizer, text)
        model = above_states(model, run.model, shown, shares)  # type: ignore[arg-type]
    if run.model.embeddings is not None:
        vectors = word_vectors.open_vectors(run.model.embeddings, run.data)
        word_vectors.begin_with_vectors(model, tokenizer, vectors, seed)
    if isinstance(task, Regression):  # in config.json, for whoever gets the model alone
        model.config.label_range = [task.low, task.high]  # type: ignore[union-attr]
    if run.model.lora_rank:
        targets = run.model.lora_targets or None
        model = weights.with_lora(model, run.model.lora_rank, targets, seed=seed)  # type: ignore[arg-type]
    if run.model.adapter == "bitfit":
        weights.train_biases(model)
    if run.model.trained:
        weights.train_only(model, run.model.trained)
    if run.model.trained_rows is not None:
        shares = tokens.frequencies(tokenizer, _text_for_rows(run))
        weights.train_rows(
            model, np.argsort(-shares, kind="stable")[: run.model.trained_rows].tolist()
        )
    run.spec.prepare_model(run, model)
    return model.to(chosen_device(run.device))


def _text_for_rows(run: Run) -> Corpus:
    """The public text in which tokens are counted: that of the start, else the tokenizer's."""
    names = run.pretrain.corpus if run.pretrain else run.tokenizer.public_text or GENERATED
    return public_corpus(names, run.data)


def sensitive_spans(ctx: RunContext, corpus: Corpus) -> dict[str, list[tuple[int, int]]]:
    """What is sensitive in each record: by the run's policy, else by its mentions."""
    if ctx.policy is not None:
        return dict(mark(corpus, ctx.policy))
    spans: dict[str, list[tuple[int, int]]] = {}
    replaced = ctx.names is not None and corpus is ctx.part  # marks stand elsewhere there
    if not ctx.run.spec.changes_text and not replaced:
        for m in ctx.mentions:
            spans.setdefault(m.record, []).append((m.start, m.end))
    return spans


def encode(
    ctx: RunContext,
    corpus: Corpus,
    *,
    training: bool = True,
    on_features: OnFeatures | None = None,
    unlearnt: Spans | None = None,
) -> Examples:
    """A corpus as the run's task and its model read it, sensitive tokens marked.

    What stands for a name is read and not learnt: where these are (`unlearnt`) is known of the
    base texts, and given with copies that show a name.
    """
    if ctx.names is not None and corpus is ctx.part:
        ids = corpus.column("id").to_pylist()
        unlearnt = {record: ctx.names.unlearnt(row) for row, record in enumerate(ids)}
    if unlearnt is not None:
        made = encode_names(ctx.task, corpus, ctx.tokenizer, ctx.run.context, unlearnt)
        return with_features(ctx.model, made, on_features)
    return with_features(ctx.model, tokenize(ctx, corpus, training=training), on_features)


def encode_names(
    task: Task,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    unlearnt: Spans,
) -> Examples:
    """Texts with invented names, which are read and, where next words are learnt, not learnt."""
    if isinstance(task, NextWord):
        return plain_targets(task.encode(corpus, tokenizer, context=context, sensitive=unlearnt))
    return task.encode(corpus, tokenizer, context=context)


def tokenize(ctx: RunContext, corpus: Corpus, *, training: bool = True) -> Examples:
    """A corpus as the run's task reads it, before a model has seen it."""
    spans = sensitive_spans(ctx, corpus)
    return ctx.task.encode(
        corpus,
        ctx.tokenizer,
        context=ctx.run.context,
        sensitive=spans or None,
        training=training,
    )


def names_to_show(ctx: RunContext, plan: Plan | None) -> ShownNames | None:
    """What says which names are shown in a step; None where none ever is."""
    if plan is None or not plan.about_names or plan.name_share == 0 or ctx.names is None:
        return None
    return ShownNames(
        ctx.names, plan.users_per_name, plan.names_per_user, ctx.part,
        lambda copies, unlearnt: encode(ctx, copies, unlearnt=unlearnt),
    )  # fmt: skip


def load_run(folder: Path) -> RunContext:
    """A finished run with its weights in place."""
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} holds no trained model; train it, or --resume it, first.")
    keep_freed_memory()
    run = read_run(folder / "run.yml")
    corpus = open_corpus(run.corpus, run.data)
    part = records_learnt_from(run, corpus)
    tokenizer = tokens.load_tokenizer(folder)
    task = _task(run, part, tokenizer, declared_labels(run))
    model: nn.Module = networks.load_model(
        folder,
        run.task,
        labels=getattr(task, "labels", None),
        pad_token_id=tokenizer.pad_token_id,
    )
    model.to(chosen_device(run.device))
    found = find_mentions(run, corpus)
    protected = _focus(run, found)
    randomness = RandomSource(run.seed)
    policy = open_policy(run.policy) if run.policy is not None else None
    return RunContext(
        run, corpus, part, found.mentions, tokenizer, task, model, randomness, [], protected,
        policy, provenance=found.provenance,
    )  # fmt: skip
