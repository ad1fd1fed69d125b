"""Bugs of published code, planted in ours: the tests must notice each of them.

A change that no longer applies fails, too: then the suite would prove nothing.
"""

from pathlib import Path

import pytest

from support.planting import planted

NEIGHBOURS = (
    "training/methods/test_neighbours.py::test_a_neighbour_moves_a_step_no_further_than_declared"
)
ROUNDS = "federated/test_federated_rounds.py"
FAULTY = f"{ROUNDS}::test_a_faulty_client_counts_as_missing_and_nobody_else_does"
ALONE = "training/dp/test_dropout.py::test_a_unit_gives_alone_what_it_gives_among_others"
LOOKED_AT = "training/methods/test_independence.py"
APART = "training/dp/test_steps_apart.py::test_steps_share_neither_coins_nor_noise"
UNMOVED = "training/methods/test_methods.py::test_who_else_is_drawn_decides_nothing_about_a_user"
SHOWN = "training/methods/test_shown_names.py"
SAME = "training/methods/test_names.py::test_another_name_trains_the_very_same_model"
SUBSTITUTION = "training/data/test_substitution.py"
VERDICTS = "training/evaluation/test_verdicts.py"
RESIDUALS = "training/methods/test_residual_tokens.py"
PASSED_ON = (
    "training/methods/test_selective.py::test_what_plain_segments_begin_with_is_what_was_released"
)

# name: (file, what stands there, what a bug would make of it, the test that must notice)
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "variance passed as standard deviation": (
        "training/dp/noise.py",
        "noise *= np.float32(noise_std / grid)",
        "noise *= np.float32(noise_std**2 / grid)",
        "training/dp/test_noise.py::test_noise_is_gaussian_with_the_declared_deviation",
    ),
    "each tensor clipped instead of the user's update": (
        "training/dp/updates.py",
        "norm = math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))",
        "norm = max(float(t.double().norm()) for t in update.values())",
        "training/methods/test_methods.py::test_updates_leave_the_weights_and_refuse_what_they_cannot_bound",
    ),
    "the norm of one tensor taken for the norm of all": (
        "training/dp/gradients.py",
        "    for gradient in gradients.values():\n        found.add(",
        "    for gradient in list(gradients.values())[1:]:\n        found.add(",
        f"{NEIGHBOURS}[dp-sgd users user]",
    ),
    "the count of clipped units beside a whole gradient": (
        "training/dp/gradients.py",
        "kept = math.sqrt(1 - share**2)",
        "kept = 1.0",
        "training/methods/test_adaptive_clip.py::test_a_user_moves_sum_and_count_together_by_at_most_the_clip_norm",
    ),
    "rows that are not trained added to one that is": (
        "training/dp/grad_sample_rules.py",
        "return Lookup(ids.clamp(min=0), part.rows.masked_fill((ids < 0).unsqueeze(-1), 0))",
        "return Lookup(ids.clamp(min=0), part.rows)",
        "training/dp/test_gradients.py::test_records_equal_a_loop"
        "[ghost or direct-lstm projected, some rows]",
    ),
    "statistics that are longer than they say": (
        "training/models/features.py",
        "self.scale = 1.0 if self.moments is None else math.sqrt(0.5)",
        "self.scale = 1.0",
        "training/methods/test_statistics.py::"
        "test_the_sum_is_the_clipped_sum_of_users_statistics[50.0]",
    ),
    "records that name somebody are not clipped before their user is": (
        "training/methods/ngrams.py",
        "record_clip=plan.record_clip,",
        "record_clip=None,",
        "training/methods/test_ngrams.py::"
        "test_a_record_that_names_somebody_moves_its_user_by_its_share",
    ),
    "counts of more users than are asked, and of nobody who is": (
        "training/methods/ngrams.py",
        "units = contributions(plan, data, inputs.randomness, step, drawn)",
        "units = data.rows_of_user",
        "training/methods/test_ngrams.py::"
        "test_sums_are_those_of_a_naive_loop_and_neighbours_move_them_by_their_bound[plan0]",
    ),
    "counts that nobody charged": (
        "training/methods/ngrams.py",
        "noisy, stats = self.noisy(step)",
        "total = self._total(step, np.arange(self._sampler.users))\n"
        "        noisy, stats = total.tensors, StepStats(total.units, 0, 0, 0.0, noise_std=0.1)",
        "training/methods/test_ngrams.py::test_every_look_is_in_the_ledger_before_it_is_one",
    ),
    "a network that reads private records after the counts": (
        "training/methods/ngrams.py",
        "inputs.model, inputs.losses, sampled, inputs.randomness, None,",
        "inputs.model, inputs.losses, inputs.training_data, inputs.randomness, None,",
        "training/methods/test_ngrams.py::test_the_network_reads_released_counts_and_nothing_else",
    ),
    "features of another encoder": (
        "training/models/features.py",
        'sha.update(f"{name} {digest_of(tensor)}".encode())',
        "sha.update(name.encode())",
        "training/models/test_features.py::test_features_of_one_encoder_are_never_anothers",
    ),
    "batches of a fixed size priced as Poisson": (
        "training/dp/sampling.py",
        "return np.flatnonzero(rng.random(self.users) < self.rate)",
        "return rng.choice(self.users, size=round(self.users * self.rate), replace=False)",
        "training/dp/test_sampling.py::test_every_coin_falls_at_its_rate_and_alone",
    ),
    "a shuffled batch claims any event": (
        "training/dp/sampling.py",
        "return isinstance(event, NotPrivate | Public)",
        "return True",
        "training/dp/test_sampling.py::test_a_shuffled_batch_cannot_be_priced_as_poisson",
    ),
    "noise on hidden states left out of epsilon": (
        "privacy/accounting/dominating_pairs.py",
        "state = 2 * _inverse(event.state_noise_multiplier) if event.states else 0.0",
        "state = 0.0",
        "privacy/accounting/test_pricing.py::test_selective_passes_are_gaussian",
    ),
    "one of the neighbours' two roles left out of epsilon": (
        "privacy/accounting/composition.py",
        "return max(read_epsilon(losses, delta - rounding_noise(items)) for losses in roles)",
        "return read_epsilon(roles.forward, delta - rounding_noise(items))",
        "privacy/accounting/test_roles.py::test_exchanging_the_neighbours_changes_no_price[users]",
    ),
    "state noise left out": (
        "training/methods/selective.py",
        'noisy.append(self._release(bounded, number, at + 1, step, part + at)["state"])',
        "self._release(bounded, number, at + 1, step, part + at)\n"
        '            noisy.append(bounded.tensors["state"])',
        f"{PASSED_ON}[1]",
    ),
    "cell state forgotten": (
        "training/methods/selective.py",
        "tuple((h.unsqueeze(0), c.unsqueeze(0)) for h, c in pairs)",
        "tuple((h.unsqueeze(0), own[1]) for (h, _), own in zip(pairs, after))",
        f"{PASSED_ON}[2]",
    ),
    "plain updates scaled by what sensitive segments lost": (
        "training/methods/selective.py",
        "clip_grad_norm_(self._model.parameters(), self._plain_norm)",
        "clip_grad_norm_(self._model.parameters(), self._plain_norm * tally.losses)",
        "training/methods/test_selective.py::test_a_plain_gradient_knows_nothing_of_sensitive_tokens[0.001]",
    ),
    "the phase before noise reads the whole text": (
        "training/phases/redacted_start.py",
        "masked = redacted(ctx.part, ctx.tokenizer, sensitive_spans(ctx, ctx.part))",
        "masked = ctx.part",
        "training/phases/test_kept_models.py::test_models_of_the_masked_phase_do_not_know_a_sensitive_token",
    ),
    "what sensitive tokens change is not clipped": (
        "training/dp/gradients.py",
        "        total = self.users(losses, batches, clip_norm=clip_norm, units=units)\n"
        '        return replace(total, unit="records", made=_MADE_HERE)',
        "        total = self.users(losses, batches, clip_norm=1e9, units=units)\n"
        '        return replace(total, unit="records", clip_norm=clip_norm, made=_MADE_HERE)',
        f"{RESIDUALS}::test_neighbours_move_the_release_by_the_bound_and_the_rest_not_at_all[lstm]",
    ),
    "the noise-free batch has the coins of the hidden sample": (
        "training/methods/residual_tokens.py",
        "coins = RandomSource(None if seed is None else seed + 2)",
        "coins = inputs.randomness",
        f"{RESIDUALS}::test_the_visible_batch_says_nothing_about_the_hidden_sample",
    ),
    "the noise-free batch is the hidden sample": (
        "training/methods/plain.py",
        'drawn = self._sampler.draw(self._randomness.stream("coins", step))',
        "import numpy as np\n        "
        'coins = RandomSource(3).stream("coins", step).random(len(self._training_data.rows))\n'
        "        drawn = np.flatnonzero(coins < 0.7)[:3]",
        f"{RESIDUALS}::test_the_visible_batch_says_nothing_about_the_hidden_sample",
    ),
    "the noise-free part of a step reads the text as written": (
        "training/phases/redacted_start.py",
        "masked = redacted(ctx.part, ctx.tokenizer, sensitive_spans(ctx, ctx.part))",
        "masked = ctx.part",
        f"{RESIDUALS}::test_neighbours_move_the_release_by_the_bound_and_the_rest_not_at_all[lstm]",
    ),
    "a mask as long as what it hides": (
        "training/phases/redacted_start.py",
        "parts += [text[at:start], MASK]",
        "parts += [text[at:start], MASK * (end - start)]",
        f"{RESIDUALS}::test_neighbours_move_the_release_by_the_bound_and_the_rest_not_at_all[lstm]",
    ),
    "the phase before noise is not in the ledger": (
        "training/phases/redacted_start.py",
        "        ledger.charge(event, phase=PHASE)",
        "        pass",
        "training/methods/test_method_runs.py::test_masked_text_first_then_the_whole_text_with_noise",
    ),
    "a fixed seed that is proved": (
        "privacy/certificates/certificate.py",
        "if math.isfinite(epsilon) and not seeded and not leaks:",
        "if math.isfinite(epsilon) and not leaks:",
        "training/phases/test_session.py::test_a_private_run_keeps_its_promise_on_paper[users]",
    ),
    "hidden state passed on unclipped": (
        "training/methods/states.py",
        "made = rows.detach() * factors.to(rows.dtype).unsqueeze(1)",
        "made = rows.detach().clone()",
        "training/methods/test_selective.py::test_rows_are_bounded_whatever_they_are",
    ),
    "forked workers repeat one random stream": (
        "training/dp/random_source.py",
        "secrets.token_bytes(32)",
        "np.random.bytes(32)  # noqa: NPY002",
        "training/test_pitfalls.py::test_forked_workers_draw_their_own_noise",
    ),
    "one stream for all parameters": (
        "training/dp/noise.py",
        "normals.draw(number, ",
        "normals.draw(0, ",
        "training/test_pitfalls.py::test_parameters_of_one_shape_get_noise_of_their_own",
    ),
    "one noise key for all steps": (
        "training/dp/random_source.py",
        "return secrets.token_bytes(32)",
        'return self.__dict__.setdefault("once", secrets.token_bytes(32))',
        f"{APART}[users-system]",
    ),
    "one noise key for all steps of a seed": (
        "training/dp/noise.py",
        "key = randomness.key(step, part)",
        "key = randomness.key(1, part)",
        f"{APART}[users-seed]",
    ),
    "a key of noise that can be tried through": (
        "training/dp/random_source.py",
        "return secrets.token_bytes(32)",
        "return secrets.token_bytes(2) * 16",
        "training/dp/test_sampling.py::test_chance_of_the_system_cannot_be_tried_through",
    ),
    "coins that can be tried through": (
        "training/dp/random_source.py",
        "secrets.randbits(256)",
        "secrets.randbits(32)",
        "training/dp/test_sampling.py::test_chance_of_the_system_cannot_be_tried_through",
    ),
    "coins drawn once for all steps": (
        "training/methods/noisy_sums.py",
        'drawn = self._sampler.draw(self._randomness.stream("coins", step))',
        'drawn = self.__dict__.setdefault(\n            "once", '
        'self._sampler.draw(self._randomness.stream("coins", step)))',
        f"{APART}[users-system]",
    ),
    "coins of selective training drawn once for all steps": (
        "training/methods/selective.py",
        'drawn = self._sampler.draw(self._randomness.stream("coins", step))',
        'drawn = self._sampler.draw(self._randomness.stream("coins", 1))',
        "training/dp/test_steps_apart.py::test_passes_of_selective_training_share_neither[seed]",
    ),
    "characters masked instead of tokens": (
        "training/phases/redacted_start.py",
        "for first, last in spans_of(touching(pieces, sensitive.get(record, ()))):",
        "for first, last in []:",
        "training/methods/test_method_runs.py::test_a_token_of_which_a_part_is_sensitive_is_masked_whole",
    ),
    "the words of a masked text go with it": (
        "training/phases/redacted_start.py",
        'if n not in ("text", "tokens", "tags", "pos", "spans")]',
        'if n not in ("text", "spans")]',
        "training/methods/test_method_runs.py::test_a_token_of_which_a_part_is_sensitive_is_masked_whole",
    ),
    "the server takes the largest tensor's norm for that of an update": (
        "federated/aggregation.py",
        "norm = math.sqrt(sum(float(np.square(t, dtype=np.float64).sum()) for t in ",
        "norm = math.sqrt(max(float(np.square(t, dtype=np.float64).sum()) for t in ",
        f"{ROUNDS}::test_an_update_each_of_whose_tensors_is_short_enough_is_too_long_all_the_same",
    ),
    "streams of noise that are one stream, shifted": (
        "training/dp/random_source.py",
        'stream.to_bytes(8, "big") + bytes(8)',
        'bytes(8) + stream.to_bytes(8, "big")',
        "training/dp/test_noise.py::test_streams_of_one_key_do_not_overlap",
    ),
    "a vocabulary that leaks, and is proved": (
        "privacy/certificates/certificate.py",
        "if math.isfinite(epsilon) and not seeded and not leaks:",
        "if math.isfinite(epsilon) and not seeded:",
        "training/phases/test_session.py::test_a_vocabulary_of_the_private_text_ends_the_promise",
    ),
    "weights that go on without their ledger": (
        "training/phases/loop.py",
        "self.ledger.require_entries(saved.entries, saved.ledger)",
        "pass",
        "training/phases/test_session.py::test_resuming_is_refused_when_what_it_stands_on_changed",
    ),
    "users give records that the caps dropped": (
        "training/data/training_data.py",
        "return TrainingData(examples, kept, rows_by_user(examples, kept), graph, bounded)",
        "return TrainingData(examples, kept, rows_by_user(examples, everything), graph, bounded)",
        "training/phases/test_session.py::test_only_records_that_the_caps_keep_can_take_part[userclip]",
    ),
    "another ledger of as many entries is gone on with": (
        "privacy/ledger.py",
        "if count > len(contents.entries) or (count and contents.entries[count - 1].hash != last):",
        "if count > len(contents.entries):",
        "privacy/test_ledger.py::test_as_many_entries_are_not_yet_the_same_entries",
    ),
    "who else is drawn decides which records a user gives": (
        "training/methods/dp_sgd.py",
        "np.sort(streams(int(user)).choice(own, most, replace=False))\n"
        "        for user, own in zip(drawn, rows, strict=True)",
        "np.sort(streams(place).choice(own, most, replace=False))\n"
        "        for place, own in enumerate(rows)",
        f"{UNMOVED}[some records]",
    ),
    "who else is drawn decides in which order a user learns": (
        "training/methods/dp_fedavg.py",
        "rng = streams(int(drawn[unit]))",
        "rng = streams(unit)",
        f"{UNMOVED}[local steps]",
    ),
    "a vocabulary counted from private text": (
        "training/phases/run_context.py",
        "if public is not None else None\n    tokenizer = tokens.byte_level_bpe",
        'if public is not None else part.column("text").to_pylist()\n'
        "    tokenizer = tokens.byte_level_bpe",
        "training/test_pitfalls.py::test_no_vocabulary_is_counted_from_private_text_without_a_word",
    ),
    "a leaking vocabulary that is not recorded": (
        "training/phases/run_context.py",
        "        return tokenizer, [str(leak)]",
        "        return tokenizer, []",
        "training/test_pitfalls.py::test_no_vocabulary_is_counted_from_private_text_without_a_word",
    ),
    "the size of the data as the normaliser": (
        "planning/plan.py",
        "plan.sampling_rate * (counted if declared is None else declared)",
        "plan.sampling_rate * counted",
        "training/methods/test_neighbours.py::test_really_removing_a_user_leaves_the_others_as_they_were",
    ),
    "a checkpoint that loses the accountant": (
        "privacy/ledger.py",
        'if not self.path.exists() or b"\\n" not in _head(self.path):',
        "if True:",
        "privacy/test_ledger.py::test_a_full_disk_stops_the_release",
    ),
    "adapters that silently never train": (
        "training/models/weights.py",
        "        return get_peft_model(model, config)",
        "        return get_peft_model(model, config).requires_grad_(False)",
        "training/test_pitfalls.py::test_every_adapter_moves_in_a_private_step",
    ),
    "one factor of an adapter left out of the sum": (
        "training/models/weights.py",
        "return {n: t[rows[n]] if n in rows else t for n, t in trainable(model).items()}",
        "return {n: t[rows[n]] if n in rows else t for n, t in trainable(model).items()"
        ' if "lora_A" not in n}',
        "training/test_pitfalls.py::test_every_adapter_moves_in_a_private_step",
    ),
    "the ledger written after the noise": (
        "training/dp/noise.py",
        "    ledger.charge(event, phase=phase)\n",
        "",
        "training/methods/test_methods.py::test_every_noise_draw_has_its_entry_before_it",
    ),
    "no noise where nobody came": (
        "training/dp/noise.py",
        "    if noise_std == 0:",
        "    if noise_std == 0 or not any(bool(t.any()) for t in tensors.values()):",
        "training/methods/test_methods.py::test_a_step_to_which_nobody_comes_is_noise_all_the_same",
    ),
    "records of an entity not clipped first": (
        "training/methods/dp_sgd.py",
        "record_clip=plan.record_clip,",
        "record_clip=plan.record_clip and 1e9,",
        f"{NEIGHBOURS}[dp-sgd both entity]",
    ),
    "weights of one user carried over to the next": (
        "training/dp/updates.py",
        "                self._restore(start)",
        "                pass",
        "training/methods/test_methods.py::test_updates_leave_the_weights_and_refuse_what_they_cannot_bound",
    ),
    "published noise without the added user": (
        "replication/published.py",
        '    units = users_per_step + 1 if noise == "lemma" else users + 1\n    return UserClip(',
        '    units = users_per_step if noise == "lemma" else users + 1\n    return UserClip(',
        "training/methods/test_methods.py::test_published_noise_has_the_published_deviation",
    ),
    "the coin of an entity counted where any entity lets a record in": (
        "training/dp/sampling.py",
        'event.entity_rate == (self.entity_rate if self.rule == "all" else 1.0)',
        "event.entity_rate == self.entity_rate",
        "training/methods/test_methods.py::test_every_noise_draw_has_its_entry_before_it",
    ),
    "an update that nobody clipped is taken": (
        "federated/aggregation.py",
        "if norm > self._clip_norm * (1 + ROUNDING):",
        "if norm > 1e9 * self._clip_norm * (1 + ROUNDING):",
        f"{FAULTY}[does not clip]",
    ),
    "a user whom a client names twice counts twice": (
        "federated/aggregation.py",
        "if user in self._seen:",
        "if user in self._seen and weight == 0:",
        f"{ROUNDS}::test_a_user_whom_a_client_names_twice_counts_once",
    ),
    "an answer to an earlier attempt is taken": (
        "federated/clients.py",
        'if (fields["step"], fields["attempt"]) != (step, attempt):',
        'if fields["step"] != step:',
        f"{FAULTY}[repeats an answer of before]",
    ),
    "a client uses records that it may not": (
        "federated/client.py",
        "        return rows[allowed]",
        "        return rows",
        f"{ROUNDS}::test_only_permitted_records_are_used[1]",
    ),
    "a per-batch dropout mask": (
        "training/models/recurrent.py",
        "words = dropout.shared_mask(0, (self.config.vocab_size,), share, x)",
        "words = dropout._torch_mask(x.new_empty(self.config.vocab_size), share)",
        "training/dp/test_dropout.py::test_one_short_user_does_not_move_the_others",
    ),
    "dropout masks by place in the batch": (
        "training/dp/dropout.py",
        "_mix(numbers.to(torch.int64) * _GOLDEN + self.key)",
        "_mix(torch.arange(len(numbers)) * _GOLDEN + self.key)",
        f"{ALONE}[gpt2-next-word]",
    ),
    "one dropout mask for all steps": (
        "training/dp/dropout.py",
        "with _as_now(_Step(_wrapped(seed), seed)):",
        "with _as_now(_Step(1, seed)):",
        "training/dp/test_dropout.py::test_every_dropout_acts_and_is_drawn_anew_in_every_step[gpt2]",
    ),
    "masked words by place in the batch": (
        "training/tasks/masked_words.py",
        "if rng is None else None",
        "if rng is not None else None",
        f"{ALONE}[bert-masked-word]",
    ),
    "a sum that lets a model draw by itself": (
        "training/dp/hooks.py",
        "with capture.hooked(), refuse_torch_draws():",
        "with capture.hooked():",
        "training/dp/test_dropout.py::test_a_sum_outside_of_a_step_refuses_dropout",
    ),
    "units that nobody looks at before they are charged": (
        "training/phases/session.py",
        "    require_independent_units(inputs)\n    require_small_delta_of",
        "    require_small_delta_of",
        f"{LOOKED_AT}::test_a_run_is_refused_before_anything_is_charged[redacted]",
    ),
    "units that nobody looks at in a loop of one's own": (
        "torch/training.py",
        "        check.need(first=True)\n",
        "",
        "own_loops/test_make_private.py::test_losses_that_void_the_promise_charge_nothing"
        "[None-by_the_batch-One unit's clipped vector is another one among others]",
    ),
    "weights that others may change between steps": (
        "torch/private.py",
        "                    self._weights.require_as_left()\n",
        "",
        "own_loops/test_make_private.py::test_weights_are_left_to_it",
    ),
    "units that nobody looks at again": (
        "training/methods/noisy_sums.py",
        "            self._check.due(step)",
        "            pass",
        f"{LOOKED_AT}::test_what_begins_later_is_refused_before_its_release",
    ),
    "a comparison in which an entity has no share": (
        "training/methods/linear_sums.py",
        "clip_norm=clip_norm, record_clip=share, units",
        "clip_norm=clip_norm, record_clip=None, units",
        "training/phases/test_selecting.py::test_a_share_bounds_what_an_entity_moves_in_one_user",
    ),
    "steps that spend what the comparison needs": (
        "training/phases/promising.py",
        "            releases = {selection: 1} | releases\n",
        "            pass\n",
        "training/phases/test_selecting.py::test_steps_leave_room_for_the_comparison",
    ),
    "a comparison without a price": (
        "planning/plan.py",
        "        if selection is not None:\n            # Where",
        "        if False:\n            # Where",
        "training/phases/test_selecting.py::test_the_targets_cover_the_comparison_for_about_two_percent_of_noise[users]",
    ),
    "units that may differ": (
        "training/methods/independence.py",
        "TOLERANCE, EXACT = 1e-5, 1e-7",
        "TOLERANCE, EXACT = 1.0, 1.0",
        f"{LOOKED_AT}::test_users_who_train_for_themselves_must_not_meet_in_the_model"
        "[a count of calls]",
    ),
    "what a shown name changes clipped like a user": (
        "training/dp/gradients.py",
        "factor = min(1.0, self._name_clip / math.sqrt(square)) if square > 0 else 1.0",
        "factor = min(1.0, self._clip_norm / math.sqrt(square)) if square > 0 else 1.0",
        f"{SHOWN}::test_sums_equal_a_loop_over_users_names_and_records[4096]",
    ),
    "the same, where its records are spread over batches": (
        "training/dp/gradients.py",
        "_shorten(change, self._name_clip, square)",
        "_shorten(change, self._clip_norm, square)",
        f"{SHOWN}::test_sums_equal_a_loop_over_users_names_and_records[64]",
    ),
    "a shown name added without taking the base away": (
        "training/data/shown_names.py",
        "found.setdefault((unit, name), []).append((at, -1.0))",
        "found.setdefault((unit, name), []).append((at, 0.0))",
        f"{SHOWN}::test_sums_equal_a_loop_over_users_names_and_records[4096]",
    ),
    "the base clipped after the names instead of before": (
        "training/dp/gradients.py",
        "        _shorten(total, self._clip_norm, square)\n        for name, change",
        "        for name, change",
        f"{SHOWN}::test_sums_equal_a_loop_over_users_names_and_records[4096]",
    ),
    "words counted before names are replaced": (
        "training/phases/run_context.py",
        "    tokenizer, leaks = _tokenizer(run, part)\n",
        "    tokenizer, leaks = _tokenizer(run, records_learnt_from(run, corpus))\n",
        f"{SAME}[words]",
    ),
    "names replaced after the text was taken": (
        "training/phases/run_context.py",
        "        part = names.base_corpus(part)\n",
        "        names.base_corpus(part)\n",
        f"{SAME}[regression]",
    ),
    "names joined by whatever table lies beside the mentions": (
        "training/data/known_names.py",
        "        if name != spelled and not self._aliased:\n",
        "        if False:\n",
        f"{SUBSTITUTION}::test_names_are_joined_by_an_alias_file_and_by_nothing_else",
    ),
    "a tagger that read what others wrote": (
        "training/data/known_names.py",
        "    if provenance.learned:\n",
        "    if False:\n",
        "detection/test_whole_users.py::"
        "test_a_tagger_that_learned_from_the_text_is_known_and_refused",
    ),
    "users searched in whatever batch they come": (
        "detection/__init__.py",
        "        batch += rows\n        if len(batch) >= _BATCH:",
        "        batch += rows[:1]\n        if len(batch) >= _BATCH:",
        "detection/test_whole_users.py::test_a_stranger_who_leaves_changes_nobodys_marks",
    ),
    "public text above a run that is compared with nothing": (
        "training/data/public_inputs.py",
        '    if run.model.kind == "states":\n',
        '    if run.model.kind == "states" and not run.model.carry_ledger:\n',
        "training/test_ways_around.py::"
        "test_text_that_shows_an_adapters_directions_is_compared_above_a_run_too",
    ),
    "a verdict that takes worse for better": (
        "training/evaluation/verdicts.py",
        "    return 1 if (value < other) == less else -1\n",
        "    return 1 if value < other else -1\n",
        f"{VERDICTS}::test_labels_numbers_and_tags_are_judged_by_their_own_measures",
    ),
    "a verdict that leaves out what is better": (
        "training/evaluation/verdicts.py",
        'says = {-1: "worse than", 0: "no better than", 1: "better than"}',
        'says = {0: "no better than", 1: "better than"}',
        f"{VERDICTS}::test_labels_numbers_and_tags_are_judged_by_their_own_measures",
    ),
    "units looked at in another mode than training's": (
        "training/methods/independence.py",
        "    model.train()\n    try:",
        "    model.eval()\n    try:",
        f"{LOOKED_AT}::test_what_couples_units_is_refused[packed-users]",
    ),
}


@pytest.mark.parametrize("part", range(3))
def test_every_planted_bug_is_caught_and_nothing_else(tmp_path: Path, part: int) -> None:
    """In three parts, so that workers share them."""
    some = dict(list(MUTANTS.items())[part::3])
    found = planted(some, tmp_path)
    assert found.pop("unchanged") == 0
    assert found == dict.fromkeys(some, 1)
